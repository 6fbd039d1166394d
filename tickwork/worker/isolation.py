"""The child's side of isolation="process": `python -m tickwork.worker.isolation FD`.

Reads one call from standard input, runs the job function, writes lines of JSON to the given file descriptor. Job
code may print as it likes. SIGTERM is a cancellation: the job can clean up for 5 seconds. When the worker
that started this process is gone (its end of standard input closes), everything in this process group ends at
once, because the attempt will be given to somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Any

import msgspec

from tickwork import logs
from tickwork.contracts import Log, Progress
from tickwork.errors import JobCancelled
from tickwork.worker import outcome
from tickwork.worker.children import Call, Said
from tickwork.worker.context import ForwardingHandler, JobContext, current_job
from tickwork.worker.jobs import Job, load_worker


class Pipe:
    """The sink of the child: each line goes to the parent. From any thread."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "wb")
        self._lock = threading.RLock()  # a signal handler may interrupt a thread that holds it

    def log(self, event: Log) -> None:
        self.say(Said(log=event))

    def progress(self, event: Progress) -> None:
        self.say(Said(progress=event))

    def say(self, said: Said) -> None:
        line = msgspec.json.encode(said) + b"\n"
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._file.write(line)
            self._file.flush()


def main(descriptor: int) -> None:
    """Run the call that waits on standard input."""
    pipe = Pipe(descriptor)
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(0, 65536)
        if not chunk:
            return
        line += chunk
    threading.Thread(target=_end_with_parent, name="tickwork-parent", daemon=True).start()
    call = msgspec.json.decode(bytes(line), type=Call)
    context = JobContext(call.dispatch, pipe, timeout_seconds=call.timeout_seconds, max_log_lines=call.max_log_lines)
    try:
        job = load_worker(call.target).jobs[call.job]
        ended = outcome.from_result(_run(job, context, call.dispatch.data), call.max_result_bytes)
    except BaseException as error:  # also SystemExit: the parent must be told
        ended = outcome.from_exception(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.say(Said(outcome=ended.outcome, result=ended.result, error=ended.error, observed_stop=context.observed_stop))


def _run(job: Job, context: JobContext, data: dict[str, Any]) -> Any:
    logs.configure()
    logging.getLogger().addHandler(ForwardingHandler())
    current_job.set(context)
    logs.current_fields.set(context.log_fields)
    return asyncio.run(_run_async(job, context, data)) if job.is_async else _run_sync(job, context, data)


def _run_sync(job: Job, context: JobContext, data: dict[str, Any]) -> Any:
    def stop(signum: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        context.observed_stop = True
        context.cancel("terminated")
        raise JobCancelled("terminated")

    signal.signal(signal.SIGTERM, stop)
    return job.call(context, data)


async def _run_async(job: Job, context: JobContext, data: dict[str, Any]) -> Any:
    task = asyncio.ensure_future(job.call(context, data))

    def stop() -> None:
        context.observed_stop = True
        context.cancel("terminated")
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await task


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
