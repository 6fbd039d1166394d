"""The broker port: what Tickwork needs of a message broker, and nothing more.

Two implementations pass one contract test suite: RabbitMQ (`amqp://…`) and a SQLite file (`sqlite:///…`).
`tickwork.broker.connect.connect(url)` chooses. No implementation's own exception leaves this package.

Thread rule: every method of Publisher and Consumer may be called from any thread; an implementation that
needs one thread per connection owns that thread itself, and user code never runs on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tickwork.broker.topology import Queue


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message to publish. It is persistent; `expiration_seconds` dead-letters it when nobody took it by then.

    `mandatory`: a message that no queue takes counts as not delivered (`unroutable`), and is not an error otherwise.
    """

    exchange: str
    routing_key: str
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    correlation_id: str = ""
    message_id: str = ""
    type: str = ""
    expiration_seconds: float | None = None
    mandatory: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """One entry of a dead letter's history, newest first: `reason` is expired, rejected or delivery_limit."""

    queue: str
    reason: str
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A message that was handed to a consumer and waits for its ack.

    `redelivered`: it was handed out before, to this or another consumer. `delivery_count`: how many times before.
    `tag` is the implementation's own handle; it goes stale when the connection is lost, and acking a stale
    delivery does nothing, since the broker hands it out again.
    """

    queue: str
    routing_key: str
    body: bytes
    headers: Mapping[str, Any]
    correlation_id: str
    message_id: str
    type: str
    redelivered: bool
    delivery_count: int
    deaths: tuple[Death, ...]
    tag: Any


class Publisher(ABC):
    """Publishes with confirms. Reconnects by itself: a lost connection fails the batch at hand, not the publisher."""

    @abstractmethod
    def publish(self, messages: Sequence[Message], *, timeout: float = 10.0) -> list[str | None]:
        """Publish all and wait until the broker has confirmed each one.

        Returns one entry per message, in order: None when it is durable in at least one queue (or was not
        mandatory), else a short reason such as `unroutable` or `nacked`. The confirms of a batch are
        awaited together, never one by one.

        Raises BrokerUnavailable when the broker cannot be reached or did not confirm in time: then nothing
        is known about any message of the batch, and the caller publishes all of them again.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the connection; safe to call twice."""


class Consumer(ABC):
    """Takes messages from queues, each at least once. Reconnects by itself and resumes its queues."""

    @abstractmethod
    def take(self, limit: int, *, wait: float) -> list[Delivery]:
        """Up to `limit` deliveries; blocks at most `wait` seconds for the first one, none for the rest.

        Returns an empty list when nothing came, also while the broker is away (see `connected`).
        """

    @abstractmethod
    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Forget these messages for good. Stale deliveries are ignored. Returns before the broker answered."""

    @abstractmethod
    def reject(self, deliveries: Iterable[Delivery], *, requeue: bool) -> None:
        """Give these messages back: to their queue (`requeue`), or to the dead-letter exchange (reason `rejected`)."""

    @abstractmethod
    def pause(self) -> None:
        """Take no further messages (shutdown); deliveries already taken may still be acked or rejected.

        Messages that were prefetched but not yet returned by `take` go back to their queue.
        """

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the queues are being consumed now."""

    @property
    @abstractmethod
    def connected_since(self) -> float | None:
        """`time.monotonic()` of the last (re)connection, None while away."""

    @abstractmethod
    def close(self) -> None:
        """Flush acks, release the connection; unacked messages go back to their queues. Safe to call twice."""


class Broker(ABC):
    """One broker address; makes publishers and consumers, each with a connection of its own."""

    @abstractmethod
    def publisher(self, queues: Sequence[Queue] = ()) -> Publisher:
        """A publisher. The exchanges, the dead-letter queue, the events queue and `queues` exist before the first
        publish.

        A job message's own queue is declared before its first publish on each connection, derived from its
        routing key, so that it waits there for a worker that has not started yet.
        """

    @abstractmethod
    def consumer(
        self,
        queues: Sequence[Queue],
        *,
        prefetch: int,
        on_connect: Callable[[], None] | None = None,
        on_disconnect: Callable[[], None] | None = None,
    ) -> Consumer:
        """A consumer of these queues, declared first. At most `prefetch` deliveries are unacked at a time over all
        queues.

        The callbacks run on the consumer's own thread and must return at once. The constructor does not wait
        for the broker: a broker that is away is awaited with backoff in the background.
        """

    @abstractmethod
    def check(self, *, timeout: float = 3.0) -> None:
        """Prove that the broker answers. Raises BrokerUnavailable with a readable reason."""

    @abstractmethod
    def depth(self, queue: Queue) -> int | None:
        """How many messages wait in the queue, or None when the queue does not exist."""
