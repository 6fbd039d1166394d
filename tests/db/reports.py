"""What workers report, as deliveries of the events queue; and what leaves through the outbox, decoded."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from jobs.models import Job
from occurrences import messages, operations
from occurrences.models import LoopPass, Occurrence, OutboxMessage
from occurrences.states import Status
from tests.factories import NOON, make_job
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Death, Delivery
from tickwork.contracts import ErrorInfo, Event, Finished, Heartbeat, Inquiry, Log, Progress, Started

ANNA = "steady-host-1-anna"
BERT = "steady-host-2-bert"
FLAW = ErrorInfo(type="ValueError", message="no")
LONG_AGO = NOON - timedelta(days=1)
About = Occurrence | UUID


def at(seconds: float) -> datetime:
    """That many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


# ── events ─────────────────────────────────────────────────────────────────────────────────────────


def _id(about: About | str) -> str:
    return str(about.pk if isinstance(about, Occurrence) else about)


def started(about: About, *, attempt: int = 1, when: datetime = NOON) -> Started:
    return Started(id=_id(about), attempt=attempt, at=when)


def finished(
    about: About,
    outcome: contracts.Outcome = "completed",
    *,
    attempt: int = 1,
    when: datetime = NOON,
    started_at: datetime | None = NOON,
    result: bytes = b"null",
    error: ErrorInfo | None = None,
) -> Finished:
    """The end of an attempt; a failed one has an error."""
    if outcome == "failed" and error is None:
        error = FLAW
    return Finished(
        id=_id(about), attempt=attempt, at=when, outcome=outcome, started_at=started_at, result=contracts.raw(result),
        error=error,
    )  # fmt: skip


def progress(about: About, fraction: float, message: str = "", *, attempt: int = 1) -> Progress:
    return Progress(id=_id(about), attempt=attempt, at=NOON, fraction=fraction, message=message)


def line(about: About, seq: int, message: str = "a line", *, attempt: int = 1, **fields: Any) -> Log:
    return Log(id=_id(about), attempt=attempt, at=NOON, seq=seq, level="info", message=message, fields=fields)


def asks(about: About, question: Any = "redelivered", *, attempt: int = 1) -> Inquiry:
    return Inquiry(id=_id(about), attempt=attempt, at=NOON, question=question)


def heartbeat(*running: About, attempt: int = 1) -> Heartbeat:
    return Heartbeat(at=NOON, running=[(_id(about), attempt) for about in running])


# ── deliveries ─────────────────────────────────────────────────────────────────────────────────────


def raw_delivery(body: bytes, *, headers: dict[str, Any] | None = None, deaths: tuple[Death, ...] = ()) -> Delivery:
    """A delivery with any body."""
    return Delivery(
        queue="q", routing_key="k", body=body, headers=headers or {}, correlation_id="", message_id="", type="",
        redelivered=False, delivery_count=0, deaths=deaths, tag=None,
    )  # fmt: skip


def report(*events: Event, instance: str = ANNA, worker: str = "steady") -> Delivery:
    """One message of an instance with these events."""
    return raw_delivery(contracts.encode(contracts.EventBatch(worker=worker, instance=instance, events=list(events))))


def listens(*, until: datetime, since: datetime = LONG_AGO) -> None:
    """An event consumer has it on record that it has heard everything within this time."""
    said = {"started_at": LONG_AGO, "last_pass_at": until, "hearing_since": since, "heard_until": until}
    LoopPass.objects.update_or_create(role="consume_events", process="here-1", defaults=said)


# ── the outbox ─────────────────────────────────────────────────────────────────────────────────────


class Sent(NamedTuple):
    """A dispatch message that waits in the outbox."""

    row: OutboxMessage
    headers: dict[str, Any]
    dispatch: contracts.Dispatch


def dispatches(about: About | None = None) -> list[Sent]:
    """The dispatch messages in the outbox, oldest first."""
    rows = OutboxMessage.objects.filter(event_type=messages.DISPATCH).order_by("id")
    if about is not None:
        rows = rows.filter(occurrence_id=UUID(_id(about)))
    return [Sent(row, row.headers, contracts.decode(contracts.Dispatch, row.body.encode())) for row in rows]


def commands() -> list[tuple[str, contracts.Command]]:
    """(routing key, command) of each command in the outbox, oldest first."""
    return [
        (row.routing_key, contracts.decode(contracts.CommandMessage, row.body.encode()).command)
        for row in OutboxMessage.objects.filter(event_type=messages.COMMAND).order_by("id")
    ]


def notifications() -> list[dict[str, Any]]:
    """The notifications in the outbox, oldest first."""
    rows = OutboxMessage.objects.filter(exchange=topology.NOTIFICATIONS).order_by("id")
    return [msgspec.json.decode(row.body) for row in rows]


def publish_all() -> None:
    """Pretend that the relay has sent everything."""
    OutboxMessage.objects.all().delete()


# ── occurrences that workers may report about, with a policy as real ones have it ──────────────────


def sent(job: Job | None = None, **values: Any) -> Occurrence:
    """A queued one whose message has left; `values`: of its job."""
    occurrence = Occurrence.objects.get(pk=operations.trigger(job or make_job(**values), now=NOON))
    publish_all()
    return occurrence


def running(**values: Any) -> Occurrence:
    """One that Anna runs, heard for the last time at noon; `values`: of its job."""
    occurrence = sent(**values)
    Occurrence.objects.filter(pk=occurrence.pk).update(
        status=Status.RUNNING, instance=ANNA, started_at=NOON, heartbeat_at=NOON
    )
    occurrence.refresh_from_db()
    return occurrence
