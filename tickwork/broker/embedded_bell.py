"""Wakes takers of the same process at once when something was written to the broker file.

Other processes notice by SQLite's own change counter, which the consumer looks at every few milliseconds.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path


class Bell:
    """A counter that can be waited for; one per file and process (`bell_of`)."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung = 0

    @property
    def rung(self) -> int:
        """How often it was rung; hand it to `wait` as `seen`."""
        return self._rung

    def ring(self) -> None:
        """Wake everybody who waits."""
        with self._condition:
            self._rung += 1
            self._condition.notify_all()

    def wait(self, seconds: float, seen: int) -> bool:
        """Wait until it was rung more often than `seen`; False after `seconds`."""
        with self._condition:
            return self._condition.wait_for(lambda: self._rung != seen, seconds)


_bells: weakref.WeakValueDictionary[Path, Bell] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def bell_of(path: Path) -> Bell:
    """The bell of this file in this process."""
    with _lock:
        return _bells.setdefault(path.absolute(), Bell())
