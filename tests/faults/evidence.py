"""What is known after a fault run, from three sources that do not trust each other: the effects that the jobs wrote,
the witness's record of every move with its commit time, and the rows that Tickwork itself kept.

Read once by `tests.faults.run`; judged by `tests.faults.verdict`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from tests.faults import jobs
from tests.processes.cluster import Cluster
from tests.processes.witness import MOVES


class Effect(NamedTuple):
    """A job function started or ended: where (pid of the worker) and when (Unix time)."""

    kind: str
    attempt: int
    pid: int
    at: float


class Move(NamedTuple):
    """One move as the witness saw it; `at` is the Unix time of its commit. The first one has no `was`."""

    was_status: int | None
    was_attempt: int | None
    status: int
    attempt: int
    instance: str
    at: float


@dataclass(kw_only=True)
class Run:
    """One occurrence with everything that is known of it."""

    id: str
    job: str
    job_type: str
    data: dict[str, Any]
    scheduled_for: datetime | None
    status: int
    attempt: int
    max_attempts: int
    instance: str
    reason: str
    history: list[list[Any]]
    is_sturdy: bool
    open_failures: list[str]
    log_lines: int
    moves: list[Move] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Effect]:
        """Its starts, or its ends, by time."""
        return [effect for effect in self.effects if effect.kind == kind]


@dataclass(kw_only=True)
class Evidence:
    """All of it."""

    runs: dict[str, Run]
    unknown_effects: int
    outbox: int
    unreadable: int

    @property
    def completions(self) -> list[float]:
        """Commit times of the moves to Completed, in order."""
        return sorted(move.at for run in self.runs.values() for move in run.moves if move.status == 2)


def gather(cluster: Cluster) -> Evidence:
    """Read everything."""
    rows = cluster.rows(
        """SELECT o.id::text, o.job_id::text, o.job_type, o.data, o.scheduled_for, o.status, o.attempt, o.max_attempts,
                  o.instance, o.reason, o.history, (o.policy->>'retry_on_zombie')::bool,
                  (SELECT coalesce(array_agg(f.kind), '{}') FROM occurrences_failedoccurrence f
                   WHERE f.occurrence_id = o.id AND f.resolved_at IS NULL),
                  (SELECT count(DISTINCT l.sequence) FROM occurrences_occurrencelog l
                   WHERE l.occurrence_id = o.id AND l.attempt = o.attempt)
           FROM occurrences_occurrence o"""
    )
    names = (
        "id", "job", "job_type", "data", "scheduled_for", "status", "attempt", "max_attempts", "instance", "reason",
        "history", "is_sturdy", "open_failures", "log_lines",
    )  # fmt: skip
    runs = {row[0]: Run(**dict(zip(names, row, strict=True))) for row in rows}
    for _, identifier, *move in cluster.rows(MOVES):
        if identifier in runs:
            runs[identifier].moves.append(Move(*move))
    unknown = 0
    effects = defaultdict(list)
    for kind, identifier, attempt, pid, at, _ in jobs.read(cluster.effects_file):
        effects[identifier].append(Effect(kind, attempt, pid, at))
    for identifier, found in effects.items():
        if identifier in runs:
            runs[identifier].effects = sorted(found, key=lambda effect: effect.at)
        else:
            unknown += 1
    # A run that was given up may still be told to stop, at each heartbeat of its instance: that leaves at once.
    ((outbox,),) = cluster.rows(
        "SELECT count(*) FROM occurrences_outboxmessage WHERE occurred_at < now() - interval '5 seconds'"
    )
    ((unreadable,),) = cluster.rows("SELECT count(*) FROM occurrences_failedoccurrence WHERE occurrence_id IS NULL")
    return Evidence(runs=runs, unknown_effects=unknown, outbox=outbox, unreadable=unreadable)
