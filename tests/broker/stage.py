"""What broker tests play on: a broker, and publishers, consumers and names that last for one test."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.broker import topology
from tickwork.broker.base import Broker, Consumer, Delivery, Message, Publisher
from tickwork.broker.connect import connect
from tickwork.broker.topology import Queue


class Stage:
    """A broker; closes at its end whatever was opened through it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.broker: Broker = connect(url)
        self._open = ExitStack()

    def close(self) -> None:
        self._open.close()

    def publisher(self, *queues: Queue) -> Publisher:
        publisher = self.broker.publisher(queues)
        self._open.callback(publisher.close)
        return publisher

    def consumer(
        self,
        *queues: Queue,
        prefetch: int = 1000,
        on_connect: Callable[[], None] | None = None,
        on_disconnect: Callable[[], None] | None = None,
        ready: bool = True,
    ) -> Consumer:
        """A consumer; with `ready`, only once it consumes."""
        consumer = self.broker.consumer(queues, prefetch=prefetch, on_connect=on_connect, on_disconnect=on_disconnect)
        self._open.callback(consumer.close)
        if ready:
            eventually(lambda: consumer.connected, what="the consumer is connected")
        return consumer


def job_queue(**changes: Any) -> Queue:
    """A job queue of a worker that no other test knows; `changes` replace what it would be."""
    queue = topology.job_queue(f"w{uuid.uuid4().hex[:10]}", "Work")
    return Queue(**{**vars(queue), **changes})


def to(queue: Queue, body: bytes = b"{}", number: int | str = 0, **changes: Any) -> Message:
    """A message that `queue`, a job queue, takes."""
    worker, job_type = queue.bindings[0].split(".")[:2]
    fields: dict[str, Any] = {
        "exchange": topology.JOBS,
        "routing_key": topology.job_key(worker, job_type, f"occurrence-{number}"),
        "body": body,
        "message_id": str(number),
    }
    return Message(**{**fields, **changes})


def numbers(deliveries: Sequence[Delivery]) -> list[str]:
    """The message ids, in order."""
    return [delivery.message_id for delivery in deliveries]


def collect(consumer: Consumer, count: int, *, limit: int = 500) -> list[Delivery]:
    """Take until there are `count` deliveries; an AssertionError says how many came instead."""
    taken: list[Delivery] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(taken) < count and time.monotonic() < deadline:
        taken += consumer.take(min(limit, count - len(taken)), wait=0.5)
    assert len(taken) == count, f"{len(taken)} of {count} deliveries came"
    return taken


def nothing_comes(consumer: Consumer, *, wait: float = 0.4) -> bool:
    """Whether the queues stay silent for a moment."""
    return consumer.take(10, wait=wait) == []
