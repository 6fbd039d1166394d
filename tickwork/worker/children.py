"""The parent's side of isolation="process": start a child, hand it the call, read what it says, judge its end.

Used by the execution, one thread per running child. The child (`isolation`) leads a session and process group
of its own, so that it can be ended together with everything that it started. Lines of JSON travel between
the two, never pickles: the child finds the job function again by its worker's import path and its name.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import Any

import msgspec

from tickwork.contracts import Dispatch, ErrorInfo, Log, Outcome, Progress
from tickwork.worker.context import JobContext
from tickwork.worker.outcome import NULL, Ended

POLL_MILLISECONDS = 500
SLACK_BYTES = 256 * 1024


class Call(msgspec.Struct, kw_only=True):
    """The one line that the child reads: what to run."""

    target: str
    job: str
    dispatch: Dispatch
    timeout_seconds: float | None = None
    max_result_bytes: int
    max_log_lines: int


class Said(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line from the child: a log line, progress, or the end."""

    log: Log | None = None
    progress: Progress | None = None
    outcome: Outcome | None = None
    result: msgspec.Raw = NULL
    error: ErrorInfo | None = None
    observed_stop: bool = False


_decode = msgspec.json.Decoder(Said).decode


class ChildProcess:
    """A child that runs one attempt."""

    def __init__(self, target: str, job: str, context: JobContext, max_result_bytes: int) -> None:
        self._target = target
        self._job = job
        self._context = context
        self._max_result_bytes = max_result_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lines = -1

    def start(self) -> None:
        """Start the process. Raises OSError when the machine refuses."""
        self._lines, theirs = os.pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tickwork.worker.isolation", str(theirs)],
                stdin=subprocess.PIPE,
                pass_fds=[theirs],
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            os.close(self._lines)
            raise
        finally:
            os.close(theirs)

    def run(self, data: dict[str, Any]) -> Ended:
        """Hand over the call and return how the attempt ended. The child is gone afterwards."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(self._call(data) + b"\n")
                process.stdin.flush()
            ended = self._listen(process)
            if ended is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                return ended
            status = process.wait()
            self.kill()  # what it started goes with it: the attempt may be tried again
            return _died(status)
        finally:
            if process.poll() is None:
                self.kill()
                process.wait()
            os.close(self._lines)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def terminate(self) -> None:
        """Ask the child and everything in its group to end; the job sees it as a cancellation."""
        self._context.observed_stop = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the child and everything in its group now."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _call(self, data: dict[str, Any]) -> bytes:
        call = Call(
            target=self._target,
            job=self._job,
            dispatch=msgspec.structs.replace(self._context.dispatch, data=data),
            timeout_seconds=self._context.timeout_seconds,
            max_result_bytes=self._max_result_bytes,
            max_log_lines=self._context.max_log_lines,
        )
        return msgspec.json.encode(call)

    def _listen(self, process: subprocess.Popen[bytes]) -> Ended | None:
        """Pass on what the child says until it tells its end; None when it died without."""
        most = self._max_result_bytes + SLACK_BYTES
        buffer = b""
        readable = select.poll()
        readable.register(self._lines, select.POLLIN)
        while True:
            if not readable.poll(POLL_MILLISECONDS):
                if process.poll() is not None:  # a grandchild may keep the pipe open for ever
                    return None
                continue
            chunk = os.read(self._lines, 65536)
            if not chunk:
                return None
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                ended = self._hear(line)
                if ended is not None:
                    return ended
            if len(buffer) > most:
                message = f"the child process sent a line of more than {most} bytes"
                return Ended("failed", error=ErrorInfo(type="ChildProcessBroken", message=message))

    def _hear(self, line: bytes) -> Ended | None:
        try:
            said = _decode(line)
        except msgspec.MsgspecError as error:
            return Ended("failed", error=ErrorInfo(type="ChildProcessBroken", message=f"unreadable line: {error}"))
        if said.outcome is not None:
            if not said.observed_stop and self._context.cancel_reason:
                self._context.observed_stop = False  # it was done before the signal reached it
            return Ended(said.outcome, said.result, said.error)
        if not self._context.closed:
            if said.log is not None:
                self._context.sink.log(said.log)
            if said.progress is not None:
                self._context.sink.progress(said.progress)
        return None


def _died(status: int) -> Ended:
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        message = f"the child process was ended by {name}{hint}"
    else:
        message = f"the child process left with status {status} before the job ended"
    return Ended("failed", error=ErrorInfo(type="ChildProcessDied", message=message))
