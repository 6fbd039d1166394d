"""Consumes from RabbitMQ on a thread of its own. Made by `RabbitBroker.consumer`.

Deliveries wait in a local buffer for `take`; acks and rejects are gathered and sent together by the I/O thread.
When the connection, the channel or a queue is gone, everything is built anew with backoff; an `epoch` tells the
deliveries of the old channel from those of the new one. User code never runs on the I/O thread, except for the
two callbacks, which must return at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pika
import pika.exceptions
from pika.channel import Channel

from tickwork.broker import base
from tickwork.broker.base import Delivery
from tickwork.broker.rabbitmq_link import IoThread, Link, address
from tickwork.broker.rabbitmq_received import Received, delivery
from tickwork.broker.rabbitmq_settling import Settling
from tickwork.broker.rabbitmq_topology import Declarer
from tickwork.broker.topology import Queue
from tickwork.errors import BrokerError
from tickwork.loop import Backoff

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
# RabbitMQ closes a channel that holds a delivery for 30 minutes. What nobody takes from the buffer goes back earlier.
BUFFER_SECONDS = 600.0
BUFFER_CHECK_SECONDS = 30.0
# Unique in the process: a delivery of another consumer is as stale as one of an earlier connection.
_epochs = itertools.count()


class RabbitConsumer(base.Consumer):
    """See `base.Consumer`.

    RabbitMQ limits each queue's share to `prefetch` (a limit over all queues is refused for quorum queues), so
    with several queues the buffer may hold more; `take` never lets more than `prefetch` be in hand.
    """

    def __init__(
        self,
        known: pika.URLParameters,
        queues: Sequence[Queue],
        differing: set[str],
        *,
        prefetch: int,
        on_connect: Callable[[], None] | None,
        on_disconnect: Callable[[], None] | None,
    ) -> None:
        self._known = known
        self._queues = list(queues)
        self._differing = differing
        self._prefetch = prefetch
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        # Guarded by the condition: what takers and the I/O thread share.
        self._changed = threading.Condition()
        self._buffer: deque[Received] = deque()
        self._takers = 0
        self._epoch = next(_epochs)
        self._in_hand: set[int] = set()
        self._acks: list[int] = []
        self._rejects: list[tuple[int, bool]] = []
        self._flush_due = False
        self._paused = False
        self._closed = False
        self._since: float | None = None
        # Touched on the I/O thread only.
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._tags: list[str] = []
        self._settling = Settling()
        self._ending = asyncio.Event()
        self._io = IoThread("tickwork-consumer")
        self._running = asyncio.run_coroutine_threadsafe(self._run(), self._io.loop)

    # ── any thread ─────────────────────────────────────────────────────────────────────────────────

    def take(self, limit: int, *, wait: float) -> list[Delivery]:
        deadline = time.monotonic() + wait
        with self._changed:
            paused = self._paused
            self._takers += 1
            try:
                while not (count := self._takeable(limit)):
                    left = deadline - time.monotonic()
                    if left <= 0 or self._closed or self._paused != paused:
                        return []
                    self._changed.wait(left)
            finally:
                self._takers -= 1
            taken = [self._buffer.popleft() for _ in range(count)]
            self._in_hand.update([received.tag for received in taken])
            epoch = self._epoch
        return [delivery(received, epoch) for received in taken]

    def _takeable(self, limit: int) -> int:
        if self._paused:
            return 0
        return max(0, min(limit, len(self._buffer), self._prefetch - len(self._in_hand)))

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        with self._changed:
            self._acks += self._let_go(deliveries)
            self._schedule_flush()

    def reject(self, deliveries: Iterable[Delivery], *, requeue: bool) -> None:
        with self._changed:
            self._rejects += [(tag, requeue) for tag in self._let_go(deliveries)]
            self._schedule_flush()

    def pause(self) -> None:
        with self._changed:
            if self._paused or self._closed:
                return
            self._paused = True
            self._changed.notify_all()
        self._io.call(self._stop_consuming)

    @property
    def connected(self) -> bool:
        return self._since is not None and not self._paused

    @property
    def connected_since(self) -> float | None:
        return self._since

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._io.call(self._ending.set)
        try:
            self._running.result(CLOSE_SECONDS)
        except TimeoutError:
            logger.warning("broker.consumer_not_closed_in_time address=%s", address(self._known))
        self._io.stop(CLOSE_SECONDS)

    def _let_go(self, deliveries: Iterable[Delivery]) -> list[int]:
        """Tags of those that are in hand on this channel; stale ones and repeats are left out."""
        tags = []
        for one in deliveries:
            epoch, tag = one.tag
            if epoch == self._epoch and tag in self._in_hand:
                self._in_hand.discard(tag)
                tags.append(tag)
        return tags

    def _schedule_flush(self) -> None:
        if not self._flush_due and (self._acks or self._rejects):
            self._flush_due = self._io.call(self._flush)
        if self._takers and self._buffer:
            self._changed.notify_all()

    # ── on the I/O thread ──────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        backoff = Backoff()
        told = ""
        while not self._ending.is_set() and not self._paused:
            try:
                link = await self._subscribe()
            except BrokerError as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("broker.unavailable role=consumer reason=%s", told)
            else:
                backoff.reset()
                told = ""
                await self._consume_until_lost(link)
            await self._ends_within(backoff.next())

    async def _subscribe(self) -> Link:
        self._link = link = await Link.open(self._known)
        try:
            names = await Declarer(link, self._differing).declare_all(self._queues)
            self._channel = channel = await link.channel()
            link.depend_on(channel)
            channel.add_on_cancel_callback(lambda _: link.cut("the broker cancelled a consumer: its queue was deleted"))
            await link.ask(channel, channel.basic_qos, prefetch_count=self._prefetch)
            self._settling = Settling()
            self._tags = []
            self._since = time.monotonic()  # before the first delivery: whoever takes it must see a connection
            for name, queue in names.items():
                answer = await link.ask(
                    channel,
                    channel.basic_consume,
                    queue=name,
                    on_message_callback=partial(self._on_delivery, queue.name),
                )
                self._tags.append(answer.method.consumer_tag)
        except BrokerError:
            may_have_delivered = self._since is not None
            self._forget_channel()
            await link.close()
            if may_have_delivered:  # by way of the first of several queues
                self._call_back(self._on_disconnect)
            raise
        return link

    async def _consume_until_lost(self, link: Link) -> None:
        logger.info("broker.connected role=consumer address=%s", address(self._known))
        self._call_back(self._on_connect)
        if self._paused:
            self._stop_consuming()
        ending = asyncio.ensure_future(self._ending.wait())
        either: set[asyncio.Future[Any]] = {link.lost, ending}
        while not (link.lost.done() or ending.done()):
            await asyncio.wait(either, timeout=BUFFER_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self._give_back_old()
        ending.cancel()
        if link.lost.done():
            self._forget_channel()
            logger.warning("broker.lost role=consumer address=%s reason=%s", address(self._known), link.lost.result())
            self._call_back(self._on_disconnect)
        else:
            self._flush()
            await link.close()
            self._forget_channel()

    def _forget_channel(self) -> None:
        """The broker hands out again whatever this channel had: nothing of it can be taken or settled any more."""
        with self._changed:
            self._since = None
            self._channel = None
            self._epoch = next(_epochs)
            self._buffer.clear()
            self._in_hand.clear()
            self._acks.clear()
            self._rejects.clear()
            self._changed.notify_all()

    def _on_delivery(self, queue: str, _: Channel, method: Any, properties: Any, body: bytes) -> None:
        tag: int = method.delivery_tag
        self._settling.delivered(tag)
        self._buffer.append(Received(queue, tag, method, properties, body, time.monotonic()))
        # A taker counts itself before it looks into the buffer, so none can miss this one.
        if self._takers:
            with self._changed:
                self._changed.notify()

    def _flush(self) -> None:
        """Send the gathered acks, as few frames as their order allows, and the rejects."""
        with self._changed:
            acks, rejects = self._acks, self._rejects
            self._acks, self._rejects = [], []
            self._flush_due = False
        link, channel = self._link, self._channel
        if link is None or channel is None or not link.is_open or not channel.is_open:
            return
        for tag, requeue in rejects:
            channel.basic_nack(tag, requeue=requeue)
        for tag, multiple in self._settling.settle(acks, [tag for tag, _ in rejects]):
            channel.basic_ack(tag, multiple=multiple)

    def _stop_consuming(self) -> None:
        channel = self._channel
        if channel is not None and channel.is_open:
            for tag in self._tags:
                channel.basic_cancel(tag)
        self._tags = []
        with self._changed:
            self._give_back(len(self._buffer))

    def _give_back_old(self) -> None:
        oldest = time.monotonic() - BUFFER_SECONDS
        with self._changed:
            self._give_back(sum(received.at < oldest for received in self._buffer))

    def _give_back(self, count: int) -> None:
        self._rejects += [(self._buffer.popleft().tag, True) for _ in range(count)]
        self._schedule_flush()

    def _call_back(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            try:
                callback()
            except Exception:
                logger.exception("broker.callback_failed role=consumer")

    async def _ends_within(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return
