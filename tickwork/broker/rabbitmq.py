"""The broker port on RabbitMQ (3.10 and later, also 4.x). Chosen by `connect` for `amqp[s]://` addresses.

Only the modules `rabbitmq*` import pika. Publishers and consumers have a connection and a thread each; `check`
and `depth` open a short-lived connection of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingConnection

from tickwork.broker import base
from tickwork.broker.rabbitmq_consumer import RabbitConsumer
from tickwork.broker.rabbitmq_link import CONNECT_SECONDS, address, parameters, readable
from tickwork.broker.rabbitmq_publisher import RabbitPublisher
from tickwork.broker.topology import Queue
from tickwork.errors import BrokerUnavailable

NOT_FOUND = 404


class RabbitBroker(base.Broker):
    """See `base.Broker`. Raises ConfigurationError when the URL cannot be read."""

    def __init__(self, url: str) -> None:
        self._known = parameters(url)
        self._differing: set[str] = set()

    def __repr__(self) -> str:
        return f"RabbitBroker({address(self._known)})"

    def publisher(self, queues: Sequence[Queue] = ()) -> base.Publisher:
        return RabbitPublisher(self._known, queues, self._differing)

    def consumer(
        self,
        queues: Sequence[Queue],
        *,
        prefetch: int,
        on_connect: Callable[[], None] | None = None,
        on_disconnect: Callable[[], None] | None = None,
    ) -> base.Consumer:
        return RabbitConsumer(
            self._known,
            queues,
            self._differing,
            prefetch=prefetch,
            on_connect=on_connect,
            on_disconnect=on_disconnect,
        )

    def check(self, *, timeout: float = 3.0) -> None:
        with self._connection(timeout):
            return

    def depth(self, queue: Queue) -> int | None:
        with self._connection(CONNECT_SECONDS) as connection:
            try:
                answer = connection.channel().queue_declare(queue.name, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                if error.reply_code == NOT_FOUND:
                    return None
                raise
            return int(answer.method.message_count)

    @contextmanager
    def _connection(self, timeout: float) -> Iterator[BlockingConnection]:
        known = copy.copy(self._known)
        known.socket_timeout = known.stack_timeout = known.blocked_connection_timeout = timeout
        try:
            connection = BlockingConnection(known)
            try:
                yield connection
            finally:
                if connection.is_open:
                    connection.close()
        except (pika.exceptions.AMQPError, OSError) as error:
            raise BrokerUnavailable(f"cannot reach the broker at {address(self._known)}: {readable(error)}") from None
