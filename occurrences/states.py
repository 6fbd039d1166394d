"""The statuses of an occurrence, which of them are final, and which moves between them are legal. Pure.

                    ┌────────────── requeued / retry ──────────────┐
                    ▼                                              │
    (new) ──▶ Queued ──▶ Running ──▶ Completed | Failed | Cancelled | TimedOut
      │         │          │  ▲                                    ▲
      │         │   silent ▼  │ heard again                        │
      │         └──────▶ Unknown ──────────────────────────────────┘
      └──▶ Skipped

A final status never changes, save by an operator's explicit retry (final ─▶ Queued).
Only `occurrences.transitions` performs a move.
"""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The fixed codes; they are part of the API."""

    QUEUED = 0  # waits: for the relay, for a worker, or for its next attempt's time
    RUNNING = 1  # an instance reported that it runs the attempt
    COMPLETED = 2  # the job function returned
    FAILED = 3  # it raised, or could not be run, and no attempt is left
    CANCELLED = 4  # a person or another system stopped it
    TIMED_OUT = 5  # its attempt took longer than allowed
    UNKNOWN = 6  # it ran, and its worker fell silent; a late report may still revive it
    SKIPPED = 7  # its tick came while the job's rules said not to run

    @property
    def label(self) -> str:
        """The word for people."""
        return _LABELS[self]


_LABELS = {
    Status.QUEUED: "Queued",
    Status.RUNNING: "Running",
    Status.COMPLETED: "Completed",
    Status.FAILED: "Failed",
    Status.CANCELLED: "Cancelled",
    Status.TIMED_OUT: "Timed out",
    Status.UNKNOWN: "Unknown",
    Status.SKIPPED: "Skipped",
}

LIVE = frozenset({Status.QUEUED, Status.RUNNING, Status.UNKNOWN})
FINAL = frozenset(Status) - LIVE
STARTED = frozenset({Status.RUNNING, Status.UNKNOWN})
CHOICES = [(status.value, status.label) for status in Status]

LEGAL: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset(Status) - {Status.SKIPPED},
    Status.RUNNING: frozenset(Status) - {Status.SKIPPED},
    Status.UNKNOWN: frozenset(Status) - {Status.SKIPPED},
    **{status: frozenset({Status.QUEUED}) for status in FINAL},
}
"""From each status, where a move may lead. Queued to Queued is the next attempt, or the same one sent again."""
