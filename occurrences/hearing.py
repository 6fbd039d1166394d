"""What the workers said and somebody heard: since when, and up to which moment. Only silence within that time counts.

The broker gives the events queue to one consumer at a time. A connection alone proves nothing: a standby has one too,
and so has a consumer behind a network that carries nothing any more. And whoever hears something may be far behind:
what was said last waits in the queue. So each consumer sends words with the time to itself, through the queue. Whoever
hears anything is the one that listens; whoever hears its own word has heard all that was said before.

`Ear` belongs to the event consumer and never waits for the broker. `Hearing` is for all who judge silence: the event
consumer has its own, the others read the newest one.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple

from occurrences.models import LoopPass
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Delivery, Message
from tickwork.errors import BrokerUnavailable

PULSE_SECONDS = 2.0
DEAF_AFTER_SECONDS = 3 * PULSE_SECONDS
WORKER, INSTANCE = "tickwork", "pulse"
SAID_AT = "x-tickwork-said-at"


class Hearing(NamedTuple):
    """All that was said between `since` and `until`, by the consumer's clock, has been heard and written."""

    since: datetime
    until: datetime

    def silence_seconds(self, heard_at: datetime) -> float:
        """For how long, within this time, somebody said nothing who was heard last at `heard_at`; below 0 if not yet
        for a moment.
        """
        return (self.until - max(heard_at, self.since)).total_seconds()

    @classmethod
    def newest(cls) -> Hearing | None:
        """What reaches furthest of all that event consumers have on record; None when none has heard anything.

        One that has died since leaves a claim that is still true: its `until` stands still.
        """
        claim = LoopPass.objects.exclude(heard_until=None).order_by("-heard_until").first()
        if claim is None or claim.hearing_since is None or claim.heard_until is None:
            return None
        return cls(claim.hearing_since, claim.heard_until)


class Ear:
    """Knows what this consumer has heard (`hearing`; None: nothing, as a standby). It sends a word to itself every
    PULSE_SECONDS, on a thread of its own.
    """

    def __init__(self, broker: Broker) -> None:
        self.hearing: Hearing | None = None
        self._heard_at = 0.0
        self._name = uuid.uuid4().hex
        self._publisher = broker.publisher()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="pulse")
        self._sending: Future[None] | None = None
        self._next_at = time.monotonic() + PULSE_SECONDS

    def beat(self, *, now: datetime) -> None:
        """Send a word when it is time; call often."""
        if time.monotonic() >= self._next_at and (self._sending is None or self._sending.done()):
            self._next_at = time.monotonic() + PULSE_SECONDS
            self._sending = self._sender.submit(self._send, now)

    def took(self, deliveries: Sequence[Delivery], *, connected_since: float | None, now: datetime, new: bool) -> None:
        """These are in hand (not `new`: still, since they could not be written before).

        The hearing begins anew when the broker or the database was away, the network carried nothing, another consumer
        was the active one, or this loop stood still: silence in between proves nothing.
        """
        moment = time.monotonic()
        gap = (
            connected_since is None or connected_since > self._heard_at or moment - self._heard_at > DEAF_AFTER_SECONDS
        )
        if gap:
            self.hearing = None
        if deliveries:
            self.hearing = self.hearing or Hearing(now, now)
            self._heard_at = moment if new else self._heard_at

    def wrote(self, deliveries: Sequence[Delivery]) -> None:
        """What these said is in the database."""
        own = [delivery.headers[SAID_AT] for delivery in deliveries if delivery.message_id == self._name]
        if own and self.hearing is not None:
            until = max(datetime.fromisoformat(said_at) for said_at in own)
            self.hearing = self.hearing._replace(until=max(self.hearing.until, until))

    def close(self) -> None:
        """Stop."""
        self._publisher.close()
        self._sender.shutdown()

    def _send(self, now: datetime) -> None:
        word = Message(
            exchange=topology.EVENTS,
            routing_key=topology.events_key(WORKER, INSTANCE),
            body=contracts.encode(contracts.EventBatch(worker=WORKER, instance=INSTANCE, events=[])),
            headers={SAID_AT: now.isoformat()},
            message_id=self._name,
        )
        with contextlib.suppress(BrokerUnavailable):
            self._publisher.publish([word])
