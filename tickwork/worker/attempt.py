"""One attempt on its way: what to run, when it began, how to stop it, and its end, which is told exactly once.

Made by `journey` (and by `tickwork.testing`), run by `execution`. It calls nothing but its callbacks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from tickwork.errors import JobCancelled
from tickwork.worker import outcome
from tickwork.worker.context import JobContext
from tickwork.worker.jobs import Job
from tickwork.worker.outcome import Ended, StopKind

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
