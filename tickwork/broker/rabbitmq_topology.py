"""Declares exchanges and queues on RabbitMQ. Called once per connection by the publisher and the consumer.

Declares on channels of its own, since RabbitMQ answers a difference by closing the channel. A queue that exists
with other arguments is used as it is, with a warning; it is never deleted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Any

from pika.channel import Channel

from tickwork.broker import topology
from tickwork.broker.rabbitmq_link import ChannelClosed, Link
from tickwork.broker.topology import Queue

logger = logging.getLogger(__name__)

OTHER_ARGUMENTS = 406


def arguments(queue: Queue) -> dict[str, Any]:
    """A queue's arguments: portable from RabbitMQ 3.10 to 4.x; exclusive queues are classic, all others quorum."""
    wanted: dict[str, Any] = {"x-queue-type": "classic" if queue.exclusive else "quorum"}
    if queue.message_ttl_seconds is not None:
        wanted["x-message-ttl"] = int(queue.message_ttl_seconds * 1000)
    if queue.dead_letter_exchange is not None:
        wanted["x-dead-letter-exchange"] = queue.dead_letter_exchange
    if queue.delivery_limit is not None and not queue.exclusive:
        wanted["x-delivery-limit"] = queue.delivery_limit
    if queue.single_active:
        wanted["x-single-active-consumer"] = True
    return wanted


class Declarer:
    """What has been declared on one connection, and the channel that it is done on."""

    def __init__(self, link: Link, differing: set[str]) -> None:
        """`differing`: names already known to exist with other arguments; shared, so that the warning comes once."""
        self._link = link
        self._differing = differing
        self._channel: Channel | None = None

    async def declare_all(self, queues: Iterable[Queue]) -> dict[str, Queue]:
        """The exchanges, the dead-letter queue, the events queue and `queues`: broker's name of each -> the queue.

        An exclusive queue has a random end in its name: a connection that died unnoticed may hold the last one.
        """
        for exchange in topology.EXCHANGES:
            await self._declare_exchange(exchange)
        for queue in (topology.dead_letter_queue(), topology.events_queue()):
            await self.declare(queue)
        return {await self.declare(queue): queue for queue in queues}

    async def declare(self, queue: Queue) -> str:
        """Make sure that the queue exists and is bound; returns its name on the broker."""
        name = f"{queue.name}.{secrets.token_hex(4)}" if queue.exclusive else queue.name
        if name in self._differing:
            await self._ask("queue_declare", queue=name, passive=True)
        else:
            try:
                await self._ask(
                    "queue_declare",
                    queue=name,
                    durable=not queue.exclusive,
                    exclusive=queue.exclusive,
                    arguments=arguments(queue),
                )
            except ChannelClosed as error:
                if error.code != OTHER_ARGUMENTS:
                    raise
                self._warn("queue", name, error)
                await self._ask("queue_declare", queue=name, passive=True)
        for pattern in queue.bindings:
            await self._ask("queue_bind", queue=name, exchange=queue.exchange, routing_key=pattern)
        return name

    async def _declare_exchange(self, name: str) -> None:
        if name not in self._differing:
            try:
                await self._ask("exchange_declare", exchange=name, exchange_type="topic", durable=True)
                return
            except ChannelClosed as error:
                if error.code != OTHER_ARGUMENTS:
                    raise
                self._warn("exchange", name, error)
        await self._ask("exchange_declare", exchange=name, passive=True)

    def _warn(self, kind: str, name: str, error: ChannelClosed) -> None:
        self._differing.add(name)
        logger.warning(
            "broker.declared_differently %s=%s: it exists with other arguments and is used as it is (%s); "
            "to change it, stop its consumers, delete it when it is empty, and start again",
            kind,
            name,
            error,
        )

    async def _ask(self, method: str, **arguments: Any) -> Any:
        if self._channel is None or not self._channel.is_open:
            self._channel = await self._link.channel()
        return await self._link.ask(self._channel, getattr(self._channel, method), **arguments)
