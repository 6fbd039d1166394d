"""Whether this process has been in touch with the broker without a gap.

A process that stood still (a frozen machine) or was cut off (a dead network) wakes with deliveries that the broker may
have handed to somebody else meanwhile, and that somebody may have run to their end. What reached it before such a gap,
or right after it, is therefore not begun before the scheduler was asked. The runtime asks here before it begins
anything; the heartbeat's thread tells that time passes. Any thread may call; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable

STILL_SECONDS = 2.0
"""The heartbeat's thread comes round every half second; when it did not for this long, the process stood still."""


class Continuity:
    """`silence_seconds`: how long the broker may confirm nothing. `last_heard_at`: monotonic time of its last confirm.

    Times are those of `time.monotonic()`.
    """

    def __init__(self, *, silence_seconds: float, last_heard_at: Callable[[], float | None], now: float) -> None:
        self._silence_seconds = silence_seconds
        self._last_heard_at = last_heard_at
        self._began_at = now
        self._turn_at = now
        self._gap_at = float("-inf")

    def turn(self, now: float) -> None:
        """Time passes, and this process with it."""
        self.gap_at(now)
        self._turn_at = now

    def gap_at(self, now: float) -> float:
        """When the last gap was over: `now` while there is one, minus infinity when there never was."""
        heard_at = self._last_heard_at() or self._began_at
        if now - self._turn_at > STILL_SECONDS or now - heard_at > self._silence_seconds:
            self._gap_at = now
        return self._gap_at
