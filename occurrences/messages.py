"""From rows to messages: what an outbox row carries for a worker, or for people. Pure but for the encoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from tickwork import contracts
from tickwork.broker import topology

OUTBOX_COLUMNS = (
    "event_type", "occurrence_id", "exchange", "routing_key", "headers", "body", "expiration_seconds",
    "occurred_at", "next_attempt_at", "attempt_count", "last_error",
)  # fmt: skip

DISPATCH = "job.dispatch"
COMMAND = "worker.command"
NOTIFICATION = "notification"
DEAD_LETTER = "dead_letter"
DEATH = "x-tickwork-death"
"""Header of a dead letter that waits to be looked at again: why it died."""


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """An outbox row before it is written; `headers` and `body` are JSON text."""

    event_type: str
    occurrence_id: UUID | None
    exchange: str
    routing_key: str
    headers: str
    body: str
    expiration_seconds: float | None = None
    not_before: datetime | None = None

    def row(self, now: datetime) -> tuple[Any, ...]:
        """The values of OUTBOX_COLUMNS."""
        return (
            self.event_type, self.occurrence_id, self.exchange, self.routing_key, self.headers, self.body,
            self.expiration_seconds, now, self.not_before or now, 0, "",
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class DispatchFacts:
    """What a dispatch message says beyond the occurrence's own state. `data` is JSON text."""

    job_name: str
    data: str
    scheduled_for: datetime | None = None
    trace: dict[str, str] = field(default_factory=dict)


def dispatch(
    *,
    occurrence_id: UUID,
    job_id: UUID,
    worker: str,
    job_type: str,
    attempt: int,
    max_attempts: int,
    timeout_seconds: float,
    queue_ttl_seconds: float,
    queued_at: datetime,
    facts: DispatchFacts,
    not_before: datetime | None = None,
    maybe_duplicate: bool = False,
) -> Outgoing:
    """The message that makes a worker run one attempt.

    `maybe_duplicate`: an earlier message for the same attempt may still be under way, so the worker must ask first.
    `queued_at` tells this message from an earlier one of the same attempt when it comes back as a dead letter.
    """
    identifier = str(occurrence_id)
    body = contracts.DispatchOut(
        id=identifier,
        job_id=str(job_id),
        job_name=facts.job_name,
        worker=worker,
        job_type=job_type,
        attempt=attempt,
        max_attempts=max_attempts,
        data=contracts.raw(facts.data),
        timeout_seconds=timeout_seconds,
        scheduled_for=facts.scheduled_for,
        trace=facts.trace,
    )
    flag = f',"{contracts.HEADER_MAYBE_DUPLICATE}":1' if maybe_duplicate else ""
    headers = (
        f'{{"{contracts.HEADER_ATTEMPT}":{attempt},"{contracts.HEADER_RETRY_COUNT}":{attempt - 1},'
        f'"{contracts.HEADER_MAX_RETRIES}":{max_attempts - 1},"{contracts.HEADER_CORRELATION_ID}":"{identifier}",'
        f'"{contracts.HEADER_QUEUED_AT}":"{queued_at.isoformat()}"{flag}}}'
    )
    return Outgoing(
        event_type=DISPATCH,
        occurrence_id=occurrence_id,
        exchange=topology.JOBS,
        routing_key=topology.job_key(worker, job_type, identifier),
        headers=headers,
        body=contracts.encode(body).decode(),
        expiration_seconds=queue_ttl_seconds,
        not_before=not_before,
    )


def command(*, occurrence_id: UUID, worker: str, instance: str, command: contracts.Command) -> Outgoing:
    """A command to one instance, or with an empty `instance` to every instance of the worker."""
    return Outgoing(
        event_type=COMMAND,
        occurrence_id=occurrence_id,
        exchange=topology.CONTROL,
        routing_key=topology.control_key(worker, instance or topology.EVERY_INSTANCE),
        headers="{}",
        body=contracts.encode(contracts.CommandMessage(command=command)).decode(),
    )


def notification(*, kind: str, body: dict[str, Any]) -> Outgoing:
    """Something that people want to be told; carried to `tickwork.notifications` for whoever subscribes there."""
    return Outgoing(
        event_type=NOTIFICATION,
        occurrence_id=None,
        exchange=topology.NOTIFICATIONS,
        routing_key=kind,
        headers="{}",
        body=contracts.encode_json(body).decode(),
    )


def dead_letter(
    *, occurrence_id: UUID, routing_key: str, body: str, queued_at: str, reason: str, not_before: datetime
) -> Outgoing:
    """A dead letter that is to be looked at again later, with what the dead-letter consumer needs to know of it."""
    return Outgoing(
        event_type=DEAD_LETTER,
        occurrence_id=occurrence_id,
        exchange=topology.DEAD_LETTERS,
        routing_key=routing_key,
        headers=contracts.encode_json({contracts.HEADER_QUEUED_AT: queued_at, DEATH: reason}).decode(),
        body=body,
        not_before=not_before,
    )
