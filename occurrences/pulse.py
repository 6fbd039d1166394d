"""A word to oneself by way of the events queue: whoever hears it is the one that listens.

The broker gives the events queue to one consumer at a time. A connection alone proves nothing: a standby has one too,
and so has a consumer behind a network that carries nothing any more. Used by the event consumer, since silence of a
worker counts only while somebody would have heard it. Never waits for the broker.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor

from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Message
from tickwork.errors import BrokerUnavailable

PULSE_SECONDS = 2.0
WORKER, INSTANCE = "tickwork", "pulse"


class Pulse:
    """Sends an empty set of events every PULSE_SECONDS, on a thread of its own."""

    def __init__(self, broker: Broker) -> None:
        self._publisher = broker.publisher()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="pulse")
        self._sending: Future[None] | None = None
        self._next_at = time.monotonic() + PULSE_SECONDS
        self._message = Message(
            exchange=topology.EVENTS,
            routing_key=topology.events_key(WORKER, INSTANCE),
            body=contracts.encode(contracts.EventBatch(worker=WORKER, instance=INSTANCE, events=[])),
        )

    def beat(self) -> None:
        """Send one when it is time; call often."""
        if time.monotonic() >= self._next_at and (self._sending is None or self._sending.done()):
            self._next_at = time.monotonic() + PULSE_SECONDS
            self._sending = self._sender.submit(self._send)

    def close(self) -> None:
        """Stop."""
        self._publisher.close()
        self._sender.shutdown()

    def _send(self) -> None:
        with contextlib.suppress(BrokerUnavailable):
            self._publisher.publish([self._message])
