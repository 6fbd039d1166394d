"""The names of exchanges, queues and routing keys: built here and nowhere else.

    tickwork.jobs     topic   {worker}.{job_type}.{occurrence}  ─▶ queue tickwork.jobs.{worker}.{job_type}
    tickwork.events   topic   {worker}.{instance}               ─▶ queue tickwork.events (single active consumer)
    tickwork.control  topic   {worker}.{instance | "all"}       ─▶ queue tickwork.control.{instance} (exclusive)
    tickwork.dlx      topic   anything                          ─▶ queue tickwork.dlq (24 h)
    tickwork.notifications  topic  {kind}                       ─▶ whoever subscribes (no queue of ours)

A message's time to live travels with the message (per-message expiration), not with the queue: two jobs of
one queue may differ, and changing it never meets a queue declared with another argument.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

JOBS = "tickwork.jobs"
EVENTS = "tickwork.events"
CONTROL = "tickwork.control"
DEAD_LETTERS = "tickwork.dlx"
DEAD_LETTER_QUEUE = "tickwork.dlq"
NOTIFICATIONS = "tickwork.notifications"
EVERY_INSTANCE = "all"

EXCHANGES = (JOBS, EVENTS, CONTROL, DEAD_LETTERS, NOTIFICATIONS)

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,63})\Z")
"""What a worker's or a job type's name may be: a routing key is split at dots, so there are none."""

DEAD_LETTER_TTL_SECONDS = 24 * 3600
DELIVERY_LIMIT = 10


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A queue and its bindings, as every implementation must provide it.

    bindings: topic patterns on `exchange` (`*` one word, `#` any number of words).
    message_ttl_seconds: messages older than this are dead-lettered (or dropped without a dead-letter exchange).
    dead_letter_exchange: where expired, rejected and over-delivered messages go; None drops them.
    delivery_limit: after this many redeliveries a message is dead-lettered with reason `delivery_limit`.
    single_active: one consumer at a time receives, the others stand by; order is kept.
    exclusive: belongs to one live consumer, vanishes with it, not durable.
    """

    name: str
    exchange: str
    bindings: tuple[str, ...]
    message_ttl_seconds: float | None = None
    dead_letter_exchange: str | None = None
    delivery_limit: int | None = None
    single_active: bool = False
    exclusive: bool = False


def job_queue(worker: str, job_type: str, *, delivery_limit: int = DELIVERY_LIMIT) -> Queue:
    """The queue of one job type of one worker."""
    return Queue(
        name=f"{JOBS}.{worker}.{job_type}",
        exchange=JOBS,
        bindings=(f"{worker}.{job_type}.#",),
        dead_letter_exchange=DEAD_LETTERS,
        delivery_limit=delivery_limit,
    )


def job_key(worker: str, job_type: str, occurrence_id: str) -> str:
    """Routing key of a job message."""
    return f"{worker}.{job_type}.{occurrence_id}"


def events_queue() -> Queue:
    """Where all workers' events arrive. One active consumer keeps the order of each worker's events."""
    return Queue(name=EVENTS, exchange=EVENTS, bindings=("#",), single_active=True)


def events_key(worker: str, instance: str) -> str:
    """Routing key of an event batch."""
    return f"{worker}.{instance}"


def control_queue(worker: str, instance: str) -> Queue:
    """The exclusive queue of an instance, bound for itself and for every instance of its worker."""
    return Queue(
        name=f"{CONTROL}.{instance}",
        exchange=CONTROL,
        bindings=(f"{worker}.{instance}", f"{worker}.{EVERY_INSTANCE}"),
        exclusive=True,
    )


def control_key(worker: str, instance: str = EVERY_INSTANCE) -> str:
    """Routing key of a command to one instance, or to every instance of the worker."""
    return f"{worker}.{instance}"


def dead_letter_queue() -> Queue:
    """Where everything that could not be executed arrives; has no dead-letter exchange itself."""
    return Queue(
        name=DEAD_LETTER_QUEUE,
        exchange=DEAD_LETTERS,
        bindings=("#",),
        message_ttl_seconds=DEAD_LETTER_TTL_SECONDS,
    )
