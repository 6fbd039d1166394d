"""How an occurrence comes to be: its row and its first message, written together, a batch in two statements.

Called by the dispatcher (due ticks), by operations (triggers) and by the zombie detector (probe runs). It only makes
new rows; what happens to them later is `transitions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from jobs.job_types import policy_and_text
from jobs.models import Job
from occurrences import live, messages, sql
from occurrences.models import Occurrence
from occurrences.run import append_history, enqueue
from occurrences.states import Status
from tickwork.contracts import encode_json
from tickwork.ids import uuid7


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What all occurrences of one job have in common, computed once per batch. `data` and `policy` are JSON text."""

    job_id: UUID
    version: int
    name: str
    worker: str
    job_type: str
    data: str
    policy: str
    max_attempts: int
    timeout_seconds: float
    queue_ttl_seconds: float


@dataclass(slots=True, kw_only=True)
class Birth:
    """One occurrence to be made. `skipped_because`: it is recorded as Skipped and never sent. `not_before`: a
    jittered start.
    """

    template: Template
    trigger: str
    by: str = ""
    data: str | None = None
    scheduled_for: datetime | None = None
    not_before: datetime | None = None
    reason: str = ""
    skipped_because: str = ""
    id: UUID = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.id = self.id or uuid7()


def template(job: Job, *, call: dict[str, Any] | None = None) -> Template:
    """The job's template. Raises ValueError when its policy is not valid."""
    policy, policy_text = policy_and_text(job, call)
    return Template(
        job_id=job.pk,
        version=job.version,
        name=job.name,
        worker=job.worker,
        job_type=job.job_type,
        data=encode_json(job.data).decode(),
        policy=policy_text,
        max_attempts=policy.max_attempts,
        timeout_seconds=policy.timeout_seconds,
        queue_ttl_seconds=policy.queue_ttl_seconds,
    )


COLUMNS = (
    "id", "job_id", "job_version", "worker", "job_type", "data", "policy", "trigger", "triggered_by", "scheduled_for",
    "created_at",
    "timeout_seconds", *sql.STATE_COLUMNS,
)  # fmt: skip


def create(births: Sequence[Birth], *, now: datetime) -> None:
    """Write the occurrences and their messages, in the caller's transaction (a single one is one statement by itself).

    Raises IntegrityError when a tick of a job already has its occurrence; then nothing of the batch was written.
    """
    rows = [_row(birth, now) for birth in births]
    outgoing = [_message(birth, now) for birth in births if not birth.skipped_because]
    if len(rows) == len(outgoing) == 1:
        sql.insert_with_message(COLUMNS, rows[0], messages.OUTBOX_COLUMNS, outgoing[0].row(now))
    else:
        sql.insert_rows(Occurrence, COLUMNS, rows)
        enqueue(outgoing, now=now)
    if births:
        changes = [
            live.Change(
                str(birth.id),
                str(birth.template.job_id),
                (Status.SKIPPED if birth.skipped_because else Status.QUEUED).value,
                "status",
            )
            for birth in births
        ]
        transaction.on_commit(lambda: live.announce(changes))


def _row(birth: Birth, now: datetime) -> tuple[Any, ...]:
    common, skipped = birth.template, bool(birth.skipped_because)
    status = Status.SKIPPED if skipped else Status.QUEUED
    reason = birth.skipped_because or birth.reason
    by = birth.by or birth.trigger
    return (
        birth.id, common.job_id, common.version, common.worker, common.job_type, birth.data or common.data,
        common.policy,
        birth.trigger, birth.by, birth.scheduled_for, now, common.timeout_seconds,
        # the State, in the order of its columns
        status.value, 1, common.max_attempts, "", now, birth.not_before, None, now if skipped else None, None, None,
        0, None, "",
        None, None, reason, append_history("", status, attempt=1, at=now, by=by, reason=reason),
    )  # fmt: skip


def _message(birth: Birth, now: datetime) -> messages.Outgoing:
    common = birth.template
    return messages.dispatch(
        occurrence_id=birth.id,
        job_id=common.job_id,
        worker=common.worker,
        job_type=common.job_type,
        attempt=1,
        max_attempts=common.max_attempts,
        timeout_seconds=common.timeout_seconds,
        queue_ttl_seconds=common.queue_ttl_seconds,
        queued_at=now,
        facts=messages.DispatchFacts(
            job_name=common.name, data=birth.data or common.data, scheduled_for=birth.scheduled_for
        ),
        not_before=birth.not_before,
    )
