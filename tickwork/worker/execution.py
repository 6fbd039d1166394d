"""Run attempts: async jobs on one event loop, sync jobs in threads, isolated jobs in child processes.

`journey` hands in attempts; each one tells its end through its callback, on whichever thread the job ended. Nothing
here knows of brokers or messages; `tickwork.testing` uses it too.

An attempt that is out of time, or told to stop, gets `GRACE_SECONDS`; then a child process is killed, and a coroutine
or thread that does not listen is reported without waiting for it and left behind.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence

from tickwork import logs
from tickwork.contracts import ErrorInfo
from tickwork.worker import outcome
from tickwork.worker.attempt import NEVER, Attempt
from tickwork.worker.clock import Clock
from tickwork.worker.context import current_job
from tickwork.worker.outcome import Ended, StopKind

log = logs.get_logger("tickwork.execution")

GRACE_SECONDS = 5.0
MAX_RESULT_BYTES = 256 * 1024


class Executor:
    """Runs attempts; the number at a time is the caller's business. Threads are started when first needed."""

    def __init__(self, *, threads: int, max_result_bytes: int = MAX_RESULT_BYTES, target: str = "") -> None:
        self.abandoned = 0
        """How many attempts were left behind because they did not stop."""
        self._max_result_bytes = max_result_bytes
        self._target = target
        self._active: set[Attempt] = set()
        self._queue: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._most_threads = threads
        self._threads = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._asked_loop_at: float | None = None
        self._clock = Clock(self._enforce)

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Begin these attempts; returns at once. From any thread."""
        together: list[Attempt] = []
        for attempt in attempts:
            self._active.add(attempt)
            if attempt.job.is_async and attempt.job.isolation == "thread":
                together.append(attempt)
            else:
                if self._threads < self._most_threads:
                    self._add_thread()
                self._queue.put(attempt)
        if together:
            loop = self._loop or self._start_loop()
            if threading.get_ident() == self._loop_thread:
                self._create_tasks(loop, together)
            else:
                loop.call_soon_threadsafe(self._create_tasks, loop, together)

    def stop(self, attempt: Attempt, kind: StopKind, reason: str, *, grace_seconds: float = GRACE_SECONDS) -> None:
        """Tell an attempt to stop; the first kind of stop stays. From any thread."""
        with self._lock:
            if attempt.stop_kind is not None or attempt.context.closed:
                return
            attempt.stop_reason = reason
            attempt.stop_kind = kind
            attempt.give_up_at = time.monotonic() + grace_seconds
            child, loop = attempt.child, self._loop
        attempt.context.cancel(reason)
        self._clock.due(attempt.give_up_at)
        if child is not None:
            child.terminate()
        if loop is not None and attempt.job.is_async and child is None:
            loop.call_soon_threadsafe(self._cancel_task, attempt)

    def loop_blocked_seconds(self) -> float:
        """How long the loop of the async jobs has not come round; called regularly, each call looks once more."""
        loop, asked_at = self._loop, self._asked_loop_at
        if asked_at is not None:
            return time.monotonic() - asked_at
        if loop is not None:
            self._asked_loop_at = time.monotonic()
            loop.call_soon_threadsafe(self._loop_answered)
        return 0.0

    def _loop_answered(self) -> None:
        self._asked_loop_at = None

    def close(self) -> None:
        """End the threads that are idle. Attempts still running are left to themselves."""
        self._clock.close()
        for _ in range(self._threads):
            self._queue.put(None)
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    # ── async jobs, on the loop's thread ───────────────────────────────────────────────────────────

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._run_loop, args=(loop,), name="tickwork-async", daemon=True)
                thread.start()
                self._loop_thread = thread.ident or 0
                self._loop = loop
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _create_tasks(self, loop: asyncio.AbstractEventLoop, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            attempt.task = loop.create_task(self._run_async(attempt))

    def _cancel_task(self, attempt: Attempt) -> None:
        task = attempt.task
        # A task that is cancelled before its first step never comes to its end: one that has not begun refuses to.
        if task is not None and not task.done() and attempt.context.started_at is not None:
            attempt.context.observed_stop = True
            task.cancel()

    async def _run_async(self, attempt: Attempt) -> None:
        context = attempt.context
        current_job.set(context)
        logs.current_fields.set(context.log_fields)
        try:
            attempt.begin()
            self._clock.due(attempt.deadline)
            ended = outcome.from_result(await attempt.job.call(context, attempt.data), self._max_result_bytes)
        except BaseException as error:  # whatever job code raises ends its attempt, never the loop
            ended = outcome.from_exception(error)
        self._finish(attempt, ended)

    # ── sync and isolated jobs, each on a thread ───────────────────────────────────────────────────

    def _add_thread(self) -> None:
        with self._lock:
            if self._threads >= self._most_threads:
                return
            self._threads += 1
        threading.Thread(target=self._run_thread, name=f"tickwork-job-{self._threads}", daemon=True).start()

    def _run_thread(self) -> None:
        while (attempt := self._queue.get()) is not None:
            if not self._finish(attempt, self._run_one(attempt)):
                return  # it was given up meanwhile, and a thread that replaces this one was allowed

    def _run_one(self, attempt: Attempt) -> Ended:
        context = attempt.context
        job_token = current_job.set(context)
        fields_token = logs.current_fields.set(context.log_fields)
        try:
            attempt.begin()
            self._clock.due(attempt.deadline)
            if attempt.job.isolation == "process":
                return self._run_child(attempt)
            return outcome.from_result(attempt.job.call(context, attempt.data), self._max_result_bytes)
        except BaseException as error:  # SystemExit in a job is a failed attempt, not the end of the worker
            return outcome.from_exception(error)
        finally:
            logs.current_fields.reset(fields_token)
            current_job.reset(job_token)

    def _run_child(self, attempt: Attempt) -> Ended:
        from tickwork.worker.children import ChildProcess

        attempt.job.signature.bind(attempt.data)
        child = ChildProcess(self._target, attempt.job.name, attempt.context, self._max_result_bytes)
        child.start()
        with self._lock:
            attempt.child = child
            stopped = attempt.stop_kind is not None
        if stopped:
            child.terminate()
        try:
            return child.run(attempt.data)
        finally:
            if attempt.stop_kind is not None:
                child.kill()  # what it started itself goes with it

    def _finish(self, attempt: Attempt, ended: Ended) -> bool:
        self._active.discard(attempt)
        return attempt.end(ended)

    # ── out of time, or out of patience ────────────────────────────────────────────────────────────

    def _enforce(self, now: float) -> float:
        """Stop what is out of time, give up what does not stop; returns when to look again."""
        next_at = NEVER
        for attempt in list(self._active):
            if attempt.stop_kind is None and attempt.deadline <= now:
                seconds = attempt.timeout_seconds
                self.stop(attempt, StopKind.TIMEOUT, f"ran longer than its timeout of {seconds:g} s")
            elif attempt.give_up_at <= now:
                self._give_up(attempt)
                continue
            next_at = min(next_at, attempt.deadline if attempt.stop_kind is None else attempt.give_up_at)
        return next_at

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.child is not None:
            attempt.give_up_at = NEVER
            attempt.child.kill()
            return
        self._active.discard(attempt)
        attempt.context.observed_stop = True
        message = "told to stop, it went on and was left behind"
        if not attempt.job.is_async:
            with self._lock:  # before the end is told: that may start the next attempt, which needs a thread
                self._most_threads += 1
        if attempt.end(Ended("failed", error=ErrorInfo(type="NotStopped", message=message))):
            self.abandoned += 1
            log.error("attempt.abandoned", reason=attempt.stop_reason, hint=message, **attempt.context.log_fields())
