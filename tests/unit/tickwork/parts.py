"""Parts that the worker's tests share: messages, deliveries, a sink, a publisher whose broker can go away."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from tests.waiting import PATIENCE_SECONDS
from tickwork import contracts
from tickwork.broker.base import Delivery, Message, Publisher
from tickwork.contracts import Dispatch, Event, EventBatch, Log, Progress
from tickwork.errors import BrokerUnavailable
from tickwork.ids import uuid7


class Notes:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.logs: list[Log] = []
        self.steps: list[Progress] = []

    def log(self, event: Log) -> None:
        self.logs.append(event)

    def progress(self, event: Progress) -> None:
        self.steps.append(event)


def dispatch(
    job_type: str = "work",
    *,
    id: str = "",
    attempt: int = 1,
    data: dict[str, Any] | None = None,
    scheduled_for: datetime | None = None,
    timeout: float | None = None,
    worker: str = "w",
) -> Dispatch:
    """A message that asks for one attempt."""
    return Dispatch(
        id=id or str(uuid7()),
        job_id="j",
        job_name="a job",
        worker=worker,
        job_type=job_type,
        attempt=attempt,
        max_attempts=3,
        data=data or {},
        scheduled_for=scheduled_for,
        timeout_seconds=timeout,
    )


def delivery(message: msgspec.Struct | bytes, *, redelivered: bool = False, maybe_duplicate: bool = False) -> Delivery:
    """The message as a consumer hands it out; its tag is new each time."""
    body = message if isinstance(message, bytes) else contracts.encode(message)
    headers = {contracts.HEADER_MAYBE_DUPLICATE: True} if maybe_duplicate else {}
    return Delivery(
        queue="q",
        routing_key="k",
        body=body,
        headers=headers,
        correlation_id="",
        message_id="",
        type="",
        redelivered=redelivered,
        delivery_count=int(redelivered),
        deaths=(),
        tag=object(),
    )


class Outside(Publisher):
    """The broker as a reporter sees it: takes messages, or is away, or keeps one waiting for its confirm."""

    def __init__(self) -> None:
        self.away = False
        self.batches: list[EventBatch] = []
        self.attempts = 0
        self.may_confirm = threading.Event()
        self.may_confirm.set()

    @property
    def events(self) -> list[Event]:
        """Everything that arrived, in order."""
        return [event for batch in self.batches for event in batch.events]

    def publish(self, messages: Sequence[Message], *, timeout: float = 10.0) -> list[str | None]:
        self.attempts += 1
        assert self.may_confirm.wait(PATIENCE_SECONDS)
        if self.away:
            raise BrokerUnavailable("the test took the broker away")
        self.batches += [contracts.decode(EventBatch, message.body) for message in messages]
        return [None] * len(messages)

    def close(self) -> None:
        return None
