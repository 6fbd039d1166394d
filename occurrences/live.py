"""What happens to runs, workers and failures, in the topics that pages watch; `jobs.announcer` tells them.

Call each function after the commit: it costs an append, never blocks and never raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from jobs import announcer
from occurrences.states import Status

Kind = Literal["status", "detail"]
"""`detail`: a log line, progress or a note, which only the occurrence's own page shows."""


class Change(NamedTuple):
    """Something changed about an occurrence; `status` is the one that it has now."""

    occurrence_id: str
    job_id: str
    status: int
    kind: Kind

    def topics(self) -> Iterable[str]:
        """A detail touches its occurrence's page only."""
        yield f"occurrence:{self.occurrence_id}"
        if self.kind == "status":
            yield from (f"job:{self.job_id}", "overview", "jobs", "occurrences")
            if self.status in (Status.FAILED, Status.TIMED_OUT, Status.QUEUED):
                yield "failures"


def announce(changes: Iterable[Change]) -> None:
    """Occurrences changed."""
    announcer.announce(changes)


def announce_worker(name: str) -> None:
    """A worker or one of its instances came, went or changed."""
    announcer.announce((f"worker:{name}", "workers", "overview"))


def announce_failures() -> None:
    """Failures were resolved or reopened."""
    announcer.announce(("failures", "overview"))
