"""Publishes to RabbitMQ with pipelined confirms. Made by `RabbitBroker.publisher`.

A batch is written in one piece and its confirms are awaited together. The connection is opened by the first
publish, and again by the first one after it was lost; nothing is kept or sent twice here: when a batch fails, its
caller decides.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pika
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from tickwork.broker import base
from tickwork.broker.base import Message
from tickwork.broker.rabbitmq_frames import publish_frames
from tickwork.broker.rabbitmq_link import IoThread, Link, address, readable
from tickwork.broker.rabbitmq_topology import Declarer
from tickwork.broker.routing import job_queue_for
from tickwork.broker.topology import Queue
from tickwork.errors import BrokerError, BrokerUnavailable
from tickwork.loop import Backoff

logger = logging.getLogger(__name__)

PIECE = 100
RETRY_MOST_SECONDS = 5.0
CLOSE_SECONDS = 5.0


class _Batch:
    """Messages under way: one result each, how many are unconfirmed, and an event for the waiting caller."""

    __slots__ = ("abandoned", "done", "error", "left", "messages", "results")

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.results: list[str | None] = [None] * len(messages)
        self.left = len(messages)
        self.done = threading.Event()
        self.error: str | None = None
        self.abandoned = False

    def fail(self, reason: str) -> None:
        self.error = reason
        self.done.set()

    def settle(self, count: int) -> None:
        self.left -= count
        if self.left == 0:
            self.done.set()


class RabbitPublisher(base.Publisher):
    """See `base.Publisher`. Its I/O thread starts with the first publish."""

    def __init__(self, known: pika.URLParameters, queues: Sequence[Queue], differing: set[str]) -> None:
        self._known = known
        self._queues = list(queues)
        self._differing = differing
        self._lock = threading.Lock()
        self._io: IoThread | None = None
        self._closed = False
        # From here on: touched on the I/O thread only.
        self._opening = asyncio.Lock()
        self._backoff = Backoff(last=RETRY_MOST_SECONDS)
        self._not_before = 0.0
        self._refusal = ""
        self._was_connected = False
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._declarer: Declarer | None = None
        self._declared: set[str] = set()
        self._served: set[str] = set()  # "worker.job_type" of the declared job queues, the look-up of the hot path
        self._pending: dict[int, tuple[_Batch, int]] = {}
        self._next_tag = 1
        self._lowest_tag = 1

    def publish(self, messages: Sequence[Message], *, timeout: float = 10.0) -> list[str | None]:
        if not messages:
            return []
        batch = _Batch(messages)
        if not self._thread().call(self._submit, batch):
            raise BrokerUnavailable("this publisher is closed")
        if not batch.done.wait(timeout):
            batch.abandoned = True
            link = self._link
            why = "; it blocks publishers (memory or disk alarm)" if link is not None and link.blocked else ""
            self._thread().call(self._give_up, batch, timeout)
            raise BrokerUnavailable(f"the broker at {address(self._known)} did not confirm within {timeout:g} s{why}")
        if batch.error is not None:
            raise BrokerUnavailable(batch.error)
        return batch.results

    def close(self) -> None:
        with self._lock:
            io, already = self._io, self._closed
            self._closed = True
        if already or io is None:
            return
        farewell = asyncio.run_coroutine_threadsafe(self._leave(), io.loop)
        try:
            farewell.result(CLOSE_SECONDS)
        except (TimeoutError, BrokerError):
            logger.warning("broker.publisher_not_closed_in_time address=%s", address(self._known))
        io.stop(CLOSE_SECONDS)

    def _thread(self) -> IoThread:
        with self._lock:
            if self._closed:
                raise BrokerUnavailable("this publisher is closed")
            if self._io is None:
                self._io = IoThread("tickwork-publisher")
            return self._io

    # ── on the I/O thread ──────────────────────────────────────────────────────────────────────────

    def _submit(self, batch: _Batch) -> None:
        if self._ready() and not self._missing(batch):
            self._send(batch)
        else:
            task = asyncio.ensure_future(self._prepare_and_send(batch))
            task.add_done_callback(lambda done: self._on_prepared(batch, done))

    def _ready(self) -> bool:
        return self._link is not None and self._link.is_open and self._channel is not None and self._channel.is_open

    def _missing(self, batch: _Batch) -> list[Queue]:
        """Job queues of these messages that were not declared on this connection yet."""
        missing: dict[str, Queue] = {}
        served = self._served
        for message in batch.messages:
            prefix = message.routing_key.rpartition(".")[0]
            if prefix not in served and prefix not in missing:
                queue = job_queue_for(message.exchange, message.routing_key)
                if queue is None:
                    continue
                if queue.name in self._declared:
                    served.add(prefix)
                else:
                    missing[prefix] = queue
        return list(missing.values())

    async def _prepare_and_send(self, batch: _Batch) -> None:
        async with self._opening:
            if not self._ready():
                await self._open()
            assert self._declarer is not None
            for queue in self._missing(batch):
                await self._declarer.declare(queue)
                self._declared.add(queue.name)
        if not batch.abandoned:
            self._send(batch)

    def _on_prepared(self, batch: _Batch, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            batch.fail("this publisher is closed")
        elif (error := task.exception()) is not None:
            if not isinstance(error, BrokerError):
                logger.error("broker.publisher_failed", exc_info=error)
            batch.fail(readable(error))

    async def _open(self) -> None:
        if time.monotonic() < self._not_before:
            raise BrokerUnavailable(f"{self._refusal}; the next attempt waits a moment")
        try:
            self._link = link = await Link.open(self._known)
            link.lost.add_done_callback(lambda lost: self._on_lost(link, lost.result()))
            self._declarer = Declarer(link, self._differing)
            await self._declarer.declare_all(self._queues)
            channel = await link.channel()
            channel.add_on_return_callback(self._on_return)
            link.depend_on(channel)
            await link.ask(channel, channel.confirm_delivery, ack_nack_callback=self._on_confirm)
        except BrokerError as error:
            self._refusal = str(error)
            self._not_before = time.monotonic() + self._backoff.next()
            if self._link is not None:
                await self._link.close()
            raise
        self._declared = {queue.name for queue in self._queues}
        self._served = set()
        self._channel = channel
        self._next_tag = self._lowest_tag = 1
        self._backoff.reset()
        if self._was_connected:
            logger.info("broker.reconnected role=publisher address=%s", address(self._known))
        self._was_connected = True

    def _send(self, batch: _Batch) -> None:
        """Write the whole batch, piece by piece: the broker works on the first while the next is encoded."""
        link, channel = self._link, self._channel
        if link is None or channel is None or not self._ready():
            batch.fail("the connection was lost before the messages were sent")
            return
        self._send_piece(batch, 0, link, channel)

    def _send_piece(self, batch: _Batch, start: int, link: Link, channel: Channel) -> None:
        if not (link.is_open and channel.is_open):
            batch.fail("the connection was lost while the messages were sent")
            return
        number: int = channel.channel_number
        frame_max = link.frame_max
        frames: list[bytes] = []
        refused = 0
        end = min(start + PIECE, len(batch.messages))
        for index in range(start, end):
            try:
                frames.append(publish_frames(number, batch.messages[index], frame_max))
            except Exception as error:
                # A message that cannot be encoded must not keep back the others of its batch, for ever.
                batch.results[index] = f"cannot be encoded: {error}"
                refused += 1
            else:
                self._pending[self._next_tag] = (batch, index)
                self._next_tag += 1
        if frames:
            link.write(b"".join(frames))
        if refused:
            batch.settle(refused)
        if end < len(batch.messages):
            asyncio.get_running_loop().call_soon(self._send_piece, batch, end, link, channel)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag: int = method.delivery_tag
        pending = self._pending
        if method.multiple:
            confirmed = [pending.pop(one) for one in range(self._lowest_tag, tag + 1) if one in pending]
            self._lowest_tag = tag + 1
        else:
            one = pending.pop(tag, None)
            confirmed = [one] if one is not None else []
        nacked = isinstance(method, Basic.Nack)
        counts: dict[_Batch, int] = {}
        for batch, index in confirmed:
            if nacked and batch.results[index] is None:
                batch.results[index] = "nacked"
            counts[batch] = counts.get(batch, 0) + 1
        for batch, count in counts.items():
            batch.settle(count)

    def _on_return(self, _: Channel, method: Any, properties: BasicProperties, body: bytes) -> None:
        """A message that no queue took comes back before its confirm: find it among the unconfirmed ones."""
        returned = (method.exchange, method.routing_key, properties.message_id or "", body)
        for batch, index in self._pending.values():
            message = batch.messages[index]
            if batch.results[index] is None and returned == (
                message.exchange,
                message.routing_key,
                message.message_id,
                message.body,
            ):
                batch.results[index] = "unroutable"
                return
        logger.warning("broker.return_unknown exchange=%s routing_key=%s", method.exchange, method.routing_key)

    def _give_up(self, batch: _Batch, timeout: float) -> None:
        """The caller has stopped waiting: a connection that does not confirm is replaced, not waited for."""
        if self._link is None or batch.done.is_set():
            return
        if any(owner is batch for owner, _ in self._pending.values()):
            self._link.cut(f"no confirm within {timeout:g} s")

    def _on_lost(self, link: Link, reason: str) -> None:
        if link is not self._link:
            return
        self._link = self._channel = self._declarer = None
        batches = {batch for batch, _ in self._pending.values()}
        self._pending.clear()
        for batch in batches:
            batch.fail(f"the connection to the broker was lost: {reason}")
        if not self._closed and self._was_connected:
            logger.warning("broker.lost role=publisher address=%s reason=%s", address(self._known), reason)

    async def _leave(self) -> None:
        if self._link is not None:
            await self._link.close()
