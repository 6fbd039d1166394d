"""A Run: an occurrence while moves are applied to it, from the read to the guarded write. Decides nothing.

Made by `load`, changed by the functions of `occurrences.transitions`, written by `save`: one UPDATE for a batch, each
row guarded by the (status, attempt, instance, row version) that was read. Only for rows that still matched, and in the
same transaction, it writes what follows from the moves: outbox messages, the record of an ended attempt, the failure,
the job's failure count, the live update. A Run that lost the race is returned, to be read and decided anew (`change`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction

from jobs import auto_disable
from occurrences import live, messages, sql
from occurrences.failures import FAILURE_COLUMNS, Failure
from occurrences.models import Attempt, FailedOccurrence, Occurrence, OutboxMessage
from occurrences.states import FINAL, LIVE, Status
from tickwork import contracts
from tickwork.logs import get_logger

log = get_logger("tickwork.occurrences")
MAX_LOGGED = 20
LATE_REPORT = "late report ignored"


@dataclass(slots=True)
class Resend:
    """The attempt's message must be written (again)."""

    not_before: datetime | None
    maybe_duplicate: bool


@dataclass(slots=True)
class Run:
    """An occurrence while moves are applied to it: what is fixed, its State, the guard it was read with, and what
    follows. `touched`: there is something to write; `moved`: a move is part of it, not only a note or progress.
    """

    id: UUID
    job_id: UUID
    worker: str
    job_type: str
    timeout_seconds: float
    policy_text: str
    state: sql.State
    guard: sql.Guard
    touched: bool = False
    moved: bool = False
    resend: Resend | None = None
    withdraw: bool = False
    commands: list[messages.Outgoing] = field(default_factory=list)
    attempts: list[tuple[Any, ...]] = field(default_factory=list)
    failure: Failure | None = None
    outcomes: list[bool] = field(default_factory=list)
    new_data: str | None = None

    @property
    def status(self) -> Status:
        """Where it stands now, moves of this batch included."""
        return Status(self.state.status)

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that was resolved when the occurrence was made."""
        policy: dict[str, Any] = msgspec.json.decode(self.policy_text)
        return policy

    def holders(self, attempt: int) -> set[str]:
        """The instances that ran this attempt, or were to run it."""
        entries = msgspec.json.decode(self.state.history)
        return {by for status, number, _, by, _ in entries if (status, number) == (Status.RUNNING, attempt)}

    def has_heard_end(self, attempt: int, instance: str) -> bool:
        """Whether this instance's report of this attempt's end was applied or noted before: workers repeat their latest
        ends when they connect, since the broker may have lost them.
        """
        for status, number, _, by, reason in msgspec.json.decode(self.state.history):
            if by == instance and reason.startswith(LATE_REPORT):
                if reason.startswith(f"{LATE_REPORT}: attempt {attempt} "):
                    return True
            elif by == instance and (number, status) in _after(attempt):
                return True
        return False

    def is_held_by(self, attempt: int, instance: str) -> bool:
        """Whether a report of this attempt by this instance is current. An attempt that nobody holds is open to its
        first reporter.
        """
        state = self.state
        return state.attempt == attempt and state.status in LIVE and state.instance in ("", instance)


def load(ids: Iterable[UUID]) -> dict[UUID, Run]:
    """The known ones among these occurrences, as they are now."""
    return {
        fixed["id"]: Run(
            id=fixed["id"],
            job_id=fixed["job_id"],
            worker=fixed["worker"],
            job_type=fixed["job_type"],
            timeout_seconds=fixed["timeout_seconds"],
            policy_text=fixed["policy"],
            state=state,
            guard=(state.status, state.attempt, state.instance, fixed["version"]),
        )
        for fixed, state in sql.read_states(ids)
    }


def _after(attempt: int) -> set[tuple[int, int]]:
    """The (attempt, status) that the end of an attempt can lead to."""
    return {(attempt, status) for status in FINAL} | {(attempt + 1, Status.QUEUED)}


def append_history(history: str, status: Status, *, attempt: int, at: datetime, by: str, reason: str) -> str:
    """The history (JSON text of a list) with one more entry."""
    entry = contracts.encode_json([status.value, attempt, at, by, reason]).decode()
    return f"[{entry}]" if len(history) <= 2 else f"{history[:-1]},{entry}]"


# ── the write ──────────────────────────────────────────────────────────────────────────────────────

_ATTEMPT_COLUMNS = ("id", "occurrence_id", "number", "outcome", "instance", "started_at", "ended_at", "error")


def save(runs: Iterable[Run], *, now: datetime) -> list[Run]:
    """Write what the moves changed and what follows from them, in the caller's transaction; returns the Runs that
    lost a race.
    """
    touched = sorted((run for run in runs if run.touched), key=lambda run: run.id)
    written = sql.guarded_update([(run.id, run.guard, run.state) for run in touched])
    done = [run for run in touched if run.id in written]
    commands = [command for run in runs if run.id in written or not run.touched for command in run.commands]
    _write_consequences(done, commands, now=now)
    return [run for run in touched if run.id not in written]


def _write_consequences(done: list[Run], commands: list[messages.Outgoing], *, now: datetime) -> None:
    if withdrawn := [run.id for run in done if run.withdraw]:
        OutboxMessage.objects.filter(occurrence_id__in=withdrawn, event_type=messages.DISPATCH).delete()
    for run in done:
        if run.new_data is not None:
            Occurrence.objects.filter(pk=run.id).update(data=msgspec.json.decode(run.new_data))
    outgoing = commands + _resends([run for run in done if run.resend])
    sql.insert_rows(Attempt, _ATTEMPT_COLUMNS, [row for run in done for row in run.attempts])
    sql.insert_rows(FailedOccurrence, FAILURE_COLUMNS, [run.failure.row() for run in done if run.failure], once=True)
    outcomes = [(run.job_id, succeeded) for run in done for succeeded in run.outcomes]
    outgoing += [messages.notification(kind=n["kind"], body=n) for n in auto_disable.record(outcomes, now=now)]
    enqueue(outgoing, now=now)
    _log([run for run in done if run.moved])
    if done:
        changes = [
            live.Change(str(run.id), str(run.job_id), run.state.status, "status" if run.moved else "detail")
            for run in done
        ]
        transaction.on_commit(lambda: live.announce(changes))


def _log(moved: list[Run]) -> None:
    """Each failure and each retry always; ordinary moves only while they are few enough to read."""
    for run in moved:
        state = run.state
        said: dict[str, Any] = {
            "occurrence": str(run.id),
            "job": str(run.job_id),
            "runs": f"{run.worker}/{run.job_type}",
            "attempt": state.attempt,
        }
        if state.status in (Status.FAILED, Status.TIMED_OUT):
            log.warning("occurrence.failed", **said, instance=state.instance, reason=state.reason)
        elif run.attempts and state.status == Status.QUEUED:
            log.info("occurrence.again", **said, next_attempt_at=state.next_attempt_at, reason=state.reason)
        elif len(moved) <= MAX_LOGGED:
            log.info(f"occurrence.{run.status.name.lower()}", **said, instance=state.instance)


def _resends(runs: list[Run]) -> list[messages.Outgoing]:
    if not runs:
        return []
    facts = {
        row.id: messages.DispatchFacts(
            job_name=row.job.name, data=contracts.encode_json(row.data).decode(), scheduled_for=row.scheduled_for
        )
        for row in Occurrence.objects.filter(pk__in=[run.id for run in runs])
        .select_related("job")
        .only("id", "data", "scheduled_for", "job__name")
    }
    return [
        messages.dispatch(
            occurrence_id=run.id,
            job_id=run.job_id,
            worker=run.worker,
            job_type=run.job_type,
            attempt=run.state.attempt,
            max_attempts=run.state.max_attempts,
            timeout_seconds=run.timeout_seconds,
            queue_ttl_seconds=run.policy["queue_ttl_seconds"],
            queued_at=run.state.queued_at,
            facts=facts[run.id],
            not_before=run.resend.not_before,
            maybe_duplicate=run.resend.maybe_duplicate,
        )
        for run in runs
        if run.resend
    ]


def enqueue(outgoing: Sequence[messages.Outgoing], *, now: datetime) -> None:
    """Write outbox rows in the caller's transaction and wake the relay at its commit."""
    if outgoing:
        sql.insert_rows(OutboxMessage, messages.OUTBOX_COLUMNS, [message.row(now) for message in outgoing])
        sql.notify(sql.OUTBOX_CHANNEL)


def change(ids: Sequence[UUID], decide: Callable[[Run], Any], *, now: datetime) -> dict[UUID, Any]:
    """Load, decide, save, and again for those that lost a race; returns what `decide` answered for each known id.

    For callers whose decision concerns one row at a time. Opens its own transaction (or joins the caller's).
    """
    answers: dict[UUID, Any] = {}
    waiting = list(ids)
    for _ in range(20):
        with transaction.atomic():
            runs = load(waiting)
            answers.update({run.id: decide(run) for run in runs.values()})
            waiting = [run.id for run in save(runs.values(), now=now)]
        if not waiting:
            return answers
    raise RuntimeError(f"occurrence {waiting[0]} kept changing while it was being changed")
