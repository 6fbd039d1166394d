"""Run attempts: async jobs on one event loop, sync jobs in threads, isolated jobs in child processes.

The runtime hands in `Attempt`s and gets each one's `Ended` value back through its callback, exactly once, on
whichever thread the job ended. Nothing here knows of brokers or messages; `tickwork.testing` uses it too.

A clock thread enforces deadlines. An attempt that is told to stop gets `GRACE_SECONDS`; then a child process is
killed, and a coroutine or thread that does not listen is reported without waiting for it and left behind.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

from tickwork import logs
from tickwork.contracts import ErrorInfo
from tickwork.errors import JobCancelled
from tickwork.worker import outcome
from tickwork.worker.context import JobContext, current_job
from tickwork.worker.jobs import Job
from tickwork.worker.outcome import Ended, StopKind

log = logs.get_logger("tickwork.execution")

GRACE_SECONDS = 5.0
MAX_RESULT_BYTES = 256 * 1024
NEVER = float("inf")


class Child(Protocol):
    """A child process that runs an attempt; may be signalled from any thread, also when it is gone already."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Attempt:
    """One attempt on its way: what to run, and how to stop it."""

    __slots__ = (
        "_on_end",
        "_on_start",
        "_once",
        "child",
        "context",
        "data",
        "deadline",
        "give_up_at",
        "job",
        "stop_kind",
        "stop_reason",
        "task",
        "timeout_seconds",
    )

    def __init__(
        self,
        job: Job,
        context: JobContext,
        data: dict[str, object],
        *,
        timeout_seconds: float | None,
        on_start: Callable[[Attempt], None],
        on_end: Callable[[Attempt, Ended], None],
    ) -> None:
        self.job = job
        self.context = context
        self.data = data
        self.timeout_seconds = timeout_seconds
        self.deadline = NEVER
        self.give_up_at = NEVER
        self.stop_kind: StopKind | None = None
        self.stop_reason = ""
        self.task: asyncio.Task[None] | None = None
        self.child: Child | None = None
        self._on_start = on_start
        self._on_end = on_end
        self._once = threading.Lock()

    def begin(self) -> None:
        """The job function is about to be called. Raises JobCancelled when it was told to stop before."""
        if self.stop_kind is not None:
            raise JobCancelled(self.stop_reason)
        self.context.started_at = datetime.now(UTC)
        if self.timeout_seconds is not None:
            self.deadline = time.monotonic() + self.timeout_seconds
        self._on_start(self)

    def end(self, ended: Ended) -> bool:
        """It ended; the first caller's word counts. Returns whether this was the first."""
        if not self._once.acquire(blocking=False):
            return False
        context = self.context
        context.closed = True
        if self.stop_kind is not None:
            ended = outcome.judged(ended, self.stop_kind, observed=context.observed_stop, reason=self.stop_reason)
        self._on_end(self, ended)
        return True


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
        self._next_due = NEVER
        self._closing = False
        self._clock_wake = threading.Event()
        self._clock = threading.Thread(target=self._watch, name="tickwork-clock", daemon=True)
        self._clock.start()

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
            child, task, loop = attempt.child, attempt.task, self._loop
        attempt.context.cancel(reason)
        self._due(attempt.give_up_at)
        if child is not None:
            child.terminate()
        if loop is not None and attempt.job.is_async and child is None:
            loop.call_soon_threadsafe(self._cancel_task, attempt, task)

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
        self._closing = True
        self._clock_wake.set()
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

    def _cancel_task(self, attempt: Attempt, task: asyncio.Task[None] | None) -> None:
        task = task or attempt.task
        if task is not None and not task.done():
            attempt.context.observed_stop = True
            task.cancel()

    async def _run_async(self, attempt: Attempt) -> None:
        context = attempt.context
        current_job.set(context)
        logs.current_fields.set(context.log_fields)
        try:
            attempt.begin()
            self._due(attempt.deadline)
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
            self._due(attempt.deadline)
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

    # ── the clock ──────────────────────────────────────────────────────────────────────────────────

    def _due(self, at: float) -> None:
        """Something must be looked at then; wakes the clock only when that is earlier than what it waits for."""
        if at < self._next_due:
            self._next_due = at
            self._clock_wake.set()

    def _watch(self) -> None:
        while not self._closing:
            wait = self._next_due - time.monotonic()
            if wait > 0:
                self._clock_wake.wait(None if wait == NEVER else wait)
            self._clock_wake.clear()
            try:
                self._enforce(time.monotonic())
            except Exception:
                log.exception("clock.failed")

    def _enforce(self, now: float) -> None:
        """Stop what is out of time, give up what does not stop, and find out when to look again."""
        self._next_due = NEVER
        for attempt in list(self._active):
            if attempt.stop_kind is None and attempt.deadline <= now:
                seconds = attempt.timeout_seconds
                self.stop(attempt, StopKind.TIMEOUT, f"ran longer than its timeout of {seconds:g} s")
            elif attempt.give_up_at <= now:
                self._give_up(attempt)
                continue
            at = attempt.deadline if attempt.stop_kind is None else attempt.give_up_at
            if at < self._next_due:
                self._next_due = at

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
