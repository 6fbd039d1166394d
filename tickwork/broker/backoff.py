"""How long to wait before the next attempt to reach the broker. Used by what reconnects; never sleeps."""

from __future__ import annotations

import random


class Backoff:
    """Seconds that double from `first` to `most`, with a random part, so that many clients do not return at once."""

    def __init__(self, first: float = 0.2, most: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def next_seconds(self) -> float:
        """The wait before the next attempt: between half of the current step and all of it."""
        step = self._next
        self._next = min(self._most, step * 2)
        return step * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start over after a success."""
        self._next = self._first
