"""A thread that looks when something is due: deadlines of attempts, and the end of the grace that stopped ones have.

Owned by the execution. It sleeps until the earliest moment that it was told of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tickwork.logs import get_logger

log = get_logger("tickwork.clock")

NEVER = float("inf")
LONGEST_WAIT_SECONDS = 3600.0


class Clock:
    """Calls `look(now)` when the earliest due time has come; it returns the next one. Times are monotonic."""

    def __init__(self, look: Callable[[float], float]) -> None:
        self._look = look
        self._next_due = NEVER
        self._closing = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        threading.Thread(target=self._run, name="tickwork-clock", daemon=True).start()

    def due(self, at: float) -> None:
        """Something must be looked at then. From any thread; wakes the clock only when it would come too late."""
        if at < self._next_due:
            with self._lock:
                self._next_due = min(self._next_due, at)
            self._wake.set()

    def close(self) -> None:
        """Look no more."""
        self._closing = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            wait = self._next_due - time.monotonic()
            if wait > 0:
                self._wake.wait(min(wait, LONGEST_WAIT_SECONDS))
            self._wake.clear()
            with self._lock:
                self._next_due = NEVER
            try:
                next_due = self._look(time.monotonic())
            except Exception:
                log.exception("clock.failed")
                next_due = time.monotonic() + 1.0
            with self._lock:  # somebody may have named an earlier moment meanwhile
                self._next_due = min(self._next_due, next_due)
