"""The broker port on a SQLite file: no server, any number of processes. Chosen by `connect` for `sqlite:///` addresses.

Same semantics as RabbitMQ for what the port promises. What was handed out belongs to its consumer for as long as
that one renews its lease; when its process dies, the messages return after the lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote

import msgspec

from tickwork.broker import base
from tickwork.broker.base import Message
from tickwork.broker.embedded_bell import bell_of
from tickwork.broker.embedded_consumer import EmbeddedConsumer
from tickwork.broker.embedded_store import Store, insert
from tickwork.broker.embedded_topology import declare, declare_all
from tickwork.broker.routing import job_queue_for
from tickwork.broker.topology import Queue
from tickwork.errors import BrokerUnavailable, ConfigurationError

PREFIX = "sqlite:///"
WAITING = """
SELECT (SELECT count(*) FROM message WHERE message.queue = queue.id AND message.consumer IS NULL)
FROM queue WHERE name = ?
"""


class EmbeddedBroker(base.Broker):
    """See `base.Broker`. The URL is `sqlite:///relative.db` or `sqlite:////absolute.db`.

    Raises ConfigurationError for other forms.
    """

    def __init__(self, url: str) -> None:
        path = unquote(url.removeprefix(PREFIX))
        if not url.startswith(PREFIX) or not path or path.endswith("/") or "?" in url:
            raise ConfigurationError(
                f"BROKER_URL {url!r} is not of the form sqlite:///relative/file or sqlite:////absolute/file"
            )
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"EmbeddedBroker({self._path})"

    def publisher(self, queues: Sequence[Queue] = ()) -> base.Publisher:
        return EmbeddedPublisher(self._path, queues)

    def consumer(
        self,
        queues: Sequence[Queue],
        *,
        prefetch: int,
        on_connect: Callable[[], None] | None = None,
        on_disconnect: Callable[[], None] | None = None,
    ) -> base.Consumer:
        return EmbeddedConsumer(
            self._path, queues, prefetch=prefetch, on_connect=on_connect, on_disconnect=on_disconnect
        )

    def check(self, *, timeout: float = 3.0) -> None:
        store = Store(self._path, busy_seconds=timeout)
        try:
            with store.transaction():
                return
        finally:
            store.close()

    def depth(self, queue: Queue) -> int | None:
        store = Store(self._path)
        try:
            rows = store.read(WAITING, (queue.name,))
        finally:
            store.close()
        return int(rows[0][0]) if rows else None


class EmbeddedPublisher(base.Publisher):
    """See `base.Publisher`. A batch is one transaction, opened on the first publish; the commit is the confirm."""

    def __init__(self, path: Path, queues: Sequence[Queue]) -> None:
        self._path = path
        self._queues = list(queues)
        self._bell = bell_of(path)
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._closed = False
        self._declared: set[str] = set()

    def publish(self, messages: Sequence[Message], *, timeout: float = 10.0) -> list[str | None]:
        if not messages:
            return []
        with self._lock:
            if self._closed:
                raise BrokerUnavailable("this publisher is closed")
            try:
                results = self._publish(messages, timeout)
            except BrokerUnavailable:
                self._release()
                raise
        self._bell.ring()
        return results

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._release()

    def _publish(self, messages: Sequence[Message], timeout: float) -> list[str | None]:
        store = self._opened(timeout)
        rows: list[Sequence[object]] = []
        results: list[str | None] = []
        declared: set[str] = set()
        with store.transaction() as connection:
            now = time.time()
            for message in messages:
                queue = job_queue_for(message.exchange, message.routing_key)
                if queue is not None and queue.name not in self._declared and queue.name not in declared:
                    declare(connection, queue, owner=None)
                    declared.add(queue.name)
                result, added = _rows(store, message, now)
                results.append(result)
                rows += added
            insert(connection, rows)
        self._declared |= declared
        return results

    def _opened(self, timeout: float) -> Store:
        if self._store is None:
            self._store = store = Store(self._path, busy_seconds=timeout)
            with store.transaction() as connection:
                declare_all(connection, self._queues)
            self._declared = {queue.name for queue in self._queues}
        self._store.wait_for_lock(timeout)
        return self._store

    def _release(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _rows(store: Store, message: Message, now: float) -> tuple[str | None, list[Sequence[object]]]:
    """The result of a message, and its row in each queue that takes it."""
    targets = store.targets(message.exchange, message.routing_key)
    if not targets:
        return ("unroutable" if message.mandatory else None), []
    try:
        headers = msgspec.json.encode(message.headers)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        return f"cannot be encoded: {error}", []
    rows: list[Sequence[object]] = []
    for queue, queue_ttl in targets:
        lives = [seconds for seconds in (message.expiration_seconds, queue_ttl) if seconds is not None]
        expires_at = now + min(lives) if lives else None
        rows.append(
            (
                *(queue, expires_at, message.routing_key, message.correlation_id, message.message_id, message.type),
                *(headers, b"[]", message.body),
            )
        )
    return None, rows
