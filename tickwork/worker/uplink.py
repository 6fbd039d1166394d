"""The way to the events queue: publishes batches of reports, and knows whether the broker answers.

Used by the reporter's thread and its backlog. It keeps nothing: what was not confirmed is its caller's to keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tickwork.broker import topology
from tickwork.broker.base import Message, Publisher
from tickwork.errors import BrokerUnavailable
from tickwork.logs import get_logger
from tickwork.loop import Backoff
from tickwork.worker.gathering import envelope
from tickwork.worker.store import Row

log = get_logger("tickwork.reporting")

PUBLISH_TIMEOUT_SECONDS = 10.0
LAST_PAUSE_SECONDS = 30.0


class Uplink:
    """`on_return` is called when the broker answers again after it did not."""

    def __init__(self, publisher: Publisher, *, worker: str, on_return: Callable[[], None]) -> None:
        self.last_confirmed_at: float | None = None
        """`time.monotonic()` of the last confirm."""
        self.retry_at = 0.0
        """When to try again while the broker is away."""
        self._publisher = publisher
        self._worker = worker
        self._on_return = on_return
        self._envelope = envelope(worker)
        self._away_since: float | None = None
        self._backoff = Backoff(last=LAST_PAUSE_SECONDS)

    @property
    def is_away(self) -> bool:
        """Whether the broker did not answer last time."""
        return self._away_since is not None

    def send(self, batches: Sequence[Sequence[Row]]) -> bool:
        """Publish each batch (rows of one instance) as one message; True when the broker has confirmed all."""
        messages = [
            Message(
                exchange=topology.EVENTS,
                routing_key=topology.events_key(self._worker, rows[0].instance),
                body=self._envelope(rows),
                type="events",
            )
            for rows in batches
        ]
        try:
            results = self._publisher.publish(messages, timeout=PUBLISH_TIMEOUT_SECONDS)
            refused = [reason for reason in results if reason]
        except BrokerUnavailable as error:
            refused = [str(error)]
        now = time.monotonic()
        if refused:
            if self._away_since is None:
                self._away_since = now
                log.warning("broker.away", reason=refused[0], hint="reports are kept in the local store")
            self.retry_at = now + self._backoff.next()
            return False
        self.last_confirmed_at = now
        self._backoff.reset()
        if self._away_since is not None:
            log.info("broker.back", seconds=round(now - self._away_since, 1))
            self._away_since = None
            self._on_return()
        return True
