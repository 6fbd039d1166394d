"""The embedded broker's file: opening it, and one function per thing that happens to a message in it.

Used by the embedded publisher and consumer. Every function that writes runs inside `Store.transaction`, which is
short and takes the write lock at its start; nothing here waits, retries or starts a thread.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tickwork.broker.base import Death
from tickwork.broker.routing import Router
from tickwork.errors import BrokerError, BrokerUnavailable

SCHEMA_VERSION = 1
BUSY_SECONDS = 20.0
PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -8000",
)

INSERT = """
INSERT INTO message (queue, expires_at, routing_key, correlation_id, message_id, type, headers, deaths, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class Target(NamedTuple):
    """A queue as routing sees it."""

    queue: int
    message_ttl_seconds: float | None


class Store:
    """One connection to the file. Its lock lets several threads share it."""

    def __init__(self, path: Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        """Open the file; make it when it is not there. Raises BrokerUnavailable, or BrokerError for another version."""
        self.path = path
        self.lock = threading.RLock()
        self._busy_seconds = busy_seconds
        self._routers: dict[str, Router[Target]] = {}
        self._routers_version = -1
        with unavailable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Release the file."""
        with self.lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; rolled back when the block raises. Raises BrokerUnavailable when SQLite fails."""
        with self.lock, unavailable(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise

    def read(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Rows of one query, without the write lock."""
        with self.lock, unavailable(self.path):
            return self._connection.execute(sql, values).fetchall()

    def data_version(self) -> int:
        """A number that changes when another connection has committed."""
        return int(self.read("PRAGMA data_version")[0][0])

    def wait_for_lock(self, seconds: float) -> None:
        """How long a transaction may wait for other writers."""
        if seconds != self._busy_seconds:
            self._busy_seconds = seconds
            self.read(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def targets(self, exchange: str, routing_key: str) -> list[Target]:
        """The queues that this routing key reaches; to be called inside a transaction."""
        (version,) = self._connection.execute("SELECT version FROM topology").fetchone()
        if version != self._routers_version:
            self._routers = {}
            rows = self._connection.execute(
                "SELECT exchange, pattern, queue, message_ttl_seconds FROM binding JOIN queue ON queue.id = queue"
            )
            for bound_exchange, pattern, queue, ttl in rows:
                self._routers.setdefault(bound_exchange, Router()).add(pattern, Target(queue, ttl))
            self._routers_version = version
        router = self._routers.get(exchange)
        return router.route(routing_key) if router is not None else []

    def _prepare(self) -> None:
        """Pragmas, and the schema on first use. Several processes may do this at the same moment."""
        deadline = time.monotonic() + self._busy_seconds
        while True:
            try:
                for pragma in PRAGMAS:
                    self._connection.execute(pragma)
                break
            except sqlite3.OperationalError as error:
                # The change to WAL does not use the busy timeout.
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        if self._version() == 0:
            with self.transaction() as connection:
                if self._version() == 0:
                    for statement in (files(__package__) / "embedded.sql").read_text("utf-8").split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        if self._version() != SCHEMA_VERSION:
            raise BrokerError(
                f"the broker file {self.path} has schema {self._version()}, this program knows {SCHEMA_VERSION}: "
                "upgrade the program, or stop everything and delete the file (the scheduler sends again what was in it)"
            )

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def unavailable(path: Path) -> Iterator[None]:
    """Turn SQLite's and the file system's errors into BrokerUnavailable."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise BrokerUnavailable(f"cannot use the broker file {path}: {error}") from error


def insert(connection: sqlite3.Connection, rows: Iterable[Sequence[object]]) -> None:
    """Add messages; the columns of a row are those of INSERT."""
    connection.executemany(INSERT, rows)


# ── what happens to messages that were handed out, or were not taken in time ────────────────────────

_SELECT_LEAVING = """
SELECT m.id, q.name, q.dead_letter_exchange,
       m.routing_key, m.correlation_id, m.message_id, m.type, m.headers, m.deaths, m.body
FROM message m JOIN queue q ON q.id = m.queue
"""


def acknowledge(connection: sqlite3.Connection, consumer: int, ids: Iterable[int]) -> None:
    """Delete messages that this consumer still holds."""
    connection.executemany("DELETE FROM message WHERE id = ? AND consumer = ?", [(one, consumer) for one in ids])


def reject(store: Store, connection: sqlite3.Connection, consumer: int, ids: Sequence[int]) -> None:
    """Dead-letter messages that this consumer still holds."""
    rows = connection.execute(
        f"{_SELECT_LEAVING} WHERE m.consumer = ? AND m.id IN (SELECT value FROM json_each(?)) ORDER BY m.id",
        (consumer, msgspec.json.encode(ids).decode()),
    ).fetchall()
    _dead_letter(store, connection, rows, "rejected")


def give_back(store: Store, connection: sqlite3.Connection, consumer: int, ids: Sequence[int] | None) -> None:
    """Return messages of this consumer (`ids`, or all it holds) to their place in their queues.

    Those that were handed out more often than their queue allows are dead-lettered.
    """
    which = "m.consumer = ?"
    values: list[object] = [consumer]
    if ids is not None:
        which += " AND m.id IN (SELECT value FROM json_each(?))"
        values.append(msgspec.json.encode(ids).decode())
    spent = connection.execute(
        f"{_SELECT_LEAVING} WHERE {which} AND m.delivery_count > q.delivery_limit ORDER BY m.id", values
    ).fetchall()
    _dead_letter(store, connection, spent, "delivery_limit")
    connection.execute(f"UPDATE message AS m SET consumer = NULL WHERE {which}", values)


def expire(store: Store, connection: sqlite3.Connection, now: float) -> None:
    """Dead-letter what waited longer than its time to live."""
    rows = connection.execute(
        f"{_SELECT_LEAVING} WHERE m.consumer IS NULL AND m.expires_at <= ? ORDER BY m.id", (now,)
    ).fetchall()
    _dead_letter(store, connection, rows, "expired")


def anything_expired(store: Store, now: float) -> bool:
    """Whether `expire` would find something; takes no write lock."""
    return bool(
        store.read("SELECT EXISTS (SELECT 1 FROM message WHERE consumer IS NULL AND expires_at <= ?)", (now,))[0][0]
    )


def _dead_letter(store: Store, connection: sqlite3.Connection, rows: list[Any], reason: str) -> None:
    """Move messages to the queues behind their dead-letter exchange; where there is none, they are dropped."""
    now = time.time()
    moved: list[Sequence[object]] = []
    for _, queue, exchange, routing_key, correlation_id, message_id, kind, headers, deaths, body in rows:
        if exchange is not None:
            history = _with_death(deaths, queue, reason)
            moved += [
                (
                    target.queue,
                    None if target.message_ttl_seconds is None else now + target.message_ttl_seconds,
                    *(routing_key, correlation_id, message_id, kind, headers, history, body),
                )
                for target in store.targets(exchange, routing_key)
            ]
    connection.executemany("DELETE FROM message WHERE id = ?", [(row[0],) for row in rows])
    insert(connection, moved)


def _with_death(encoded: bytes, queue: str, reason: str) -> bytes:
    """A history with one more death: newest first, one entry per queue and reason with a count."""
    deaths = msgspec.json.decode(encoded, type=list[Death])
    count = 1 + sum(death.count for death in deaths if (death.queue, death.reason) == (queue, reason))
    others = [death for death in deaths if (death.queue, death.reason) != (queue, reason)]
    return msgspec.json.encode([Death(queue=queue, reason=reason, count=count), *others])
