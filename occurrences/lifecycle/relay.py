"""Sent: outbox messages reach the broker.

One pass claims a set of due messages for a while, publishes them with one wait for all confirms, and deletes those
that the broker confirmed. While one set waits for its confirms the next is claimed. A relay that dies leaves its
claims to expire; the copy that is then published says that it may be one (`x-maybe-duplicate`), and the worker asks.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from jobs.conf import conf
from jobs.retry import PRESETS, delay_seconds
from occurrences import messages, sql
from occurrences.models import OutboxMessage
from tickwork.broker.base import Broker, Message
from tickwork.contracts import HEADER_MAYBE_DUPLICATE
from tickwork.errors import BrokerError
from tickwork.logs import get_logger

log = get_logger("tickwork.relay")
AWAY_SECONDS = 1.0
Claimed = list[dict[str, Any]]


class Relay:
    """The relay's passes; owns a publisher and one thread that publishes."""

    role = "relay_outbox"

    def __init__(self, broker: Broker) -> None:
        self._publisher = broker.publisher()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="relay-publish")
        self._in_flight: tuple[Claimed, Future[list[str | None]]] | None = None

    def tick(self, *, now: datetime) -> int:
        """Claim and publish one set, settle the one before; returns how many messages were claimed or settled."""
        settings = conf()
        claimed = sql.claim_outbox(
            now=now, limit=settings.relay_batch, until=now + timedelta(seconds=settings.outbox_lease_seconds)
        )
        try:
            settled = self._settle(now)
        except Exception as error:
            self._postpone(claimed, f"not sent: {_words(error)}", until=_later(now, AWAY_SECONDS), sent=False)
            raise
        if claimed:
            to_send = [_message(row) for row in claimed]
            self._in_flight = claimed, self._sender.submit(self._publisher.publish, to_send)
        return len(claimed) + settled

    def sleep_until(self) -> datetime | None:
        """When the next message is due; at once while a set is under way."""
        return None if self._in_flight else sql.next_outbox_at()

    def close(self) -> None:
        """Settle what is under way and leave."""
        try:
            self._settle(None)
        finally:
            self._sender.shutdown()
            self._publisher.close()

    def _settle(self, now: datetime | None) -> int:
        if self._in_flight is None:
            return 0
        claimed, publishing = self._in_flight
        try:
            answers = publishing.result()
        except Exception as error:
            self._in_flight = None
            self._postpone(claimed, _words(error), until=_later(now, AWAY_SECONDS))
            raise
        self._in_flight = None
        sql.settle_outbox([row["id"] for row, refusal in zip(claimed, answers, strict=True) if refusal is None])
        for row, refusal in zip(claimed, answers, strict=True):
            if refusal is not None:
                wait = delay_seconds(PRESETS["outbox"], row["attempt_count"], random=0.0)
                log.warning("relay.refused", outbox=row["id"], reason=refusal, routing_key=row["routing_key"])
                self._postpone([row], refusal, until=_later(now, wait))
        return len(claimed)

    @transaction.atomic
    def _postpone(self, rows: Claimed, error: str, *, until: datetime, sent: bool = True) -> None:
        """Give claimed messages back until then; one that was never `sent` is no possible duplicate."""
        OutboxMessage.objects.filter(pk__in=[row["id"] for row in rows]).update(
            next_attempt_at=until, last_error=error[:1000], attempt_count=F("attempt_count") - (0 if sent else 1)
        )


def _later(now: datetime | None, seconds: float) -> datetime:
    return (now or timezone.now()) + timedelta(seconds=seconds)


def _words(error: Exception) -> str:
    """What is kept of an error: only our own are known to hold no secrets."""
    return str(error) if isinstance(error, BrokerError) else type(error).__name__


def _message(row: dict[str, Any]) -> Message:
    headers = msgspec.json.decode(row["headers"])
    is_dispatch = row["event_type"] == messages.DISPATCH
    if is_dispatch and row["attempt_count"] > 1:
        headers[HEADER_MAYBE_DUPLICATE] = 1
    return Message(
        exchange=row["exchange"],
        routing_key=row["routing_key"],
        body=row["body"].encode(),
        headers=headers,
        correlation_id=str(row["occurrence_id"] or ""),
        message_id=str(row["id"]),
        type=row["event_type"],
        expiration_seconds=row["expiration_seconds"],
        mandatory=is_dispatch,
    )
