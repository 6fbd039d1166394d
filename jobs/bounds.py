"""What the numbers of a job may be: one table for definitions, calls, job types and settings; pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from jobs.retry import MAX_ATTEMPTS

# RabbitMQ refuses a message that is to expire in 50 days or more.
THIRTY_DAYS = 30 * 86400


class Bounds(NamedTuple):
    """The least and the greatest value, both allowed; reads "from 0 to 500"."""

    low: float
    high: float
    unit: str = ""

    def allows(self, value: float) -> bool:
        """Whether the value lies within; "not a number" does not."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"from {plain(self.low)} to {plain(self.high)}" + (f" {self.unit}" if self.unit else "")


def plain(number: float) -> str:
    """The number without an exponent and without needless zeros."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _seconds(low: float) -> Bounds:
    return Bounds(low, THIRTY_DAYS, "seconds")


BOUNDS: Mapping[str, Bounds] = MappingProxyType(
    {
        "jitter_seconds": _seconds(0),
        "misfire_limit": Bounds(0, 500),
        "start_deadline_seconds": _seconds(1),  # each run starts a little late; one second is the dispatcher's pace
        "timeout_seconds": _seconds(0.1),
        "max_attempts": Bounds(1, MAX_ATTEMPTS),
        "retry_base_seconds": _seconds(0),
        "retry_cap_seconds": _seconds(0),
        "retry_jitter_seconds": _seconds(0),
        "queue_ttl_seconds": _seconds(0.001),
        "auto_disable_threshold": Bounds(0, 1000),  # a job keeps the times of this many failures
        "auto_disable_window_seconds": _seconds(1),
        "auto_reenable_after_seconds": _seconds(0),
    }
)
