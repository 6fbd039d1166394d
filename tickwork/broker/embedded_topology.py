"""Queues, bindings and consumers in the embedded broker's file: how they come and go.

Called by the embedded publisher and consumer, inside a transaction of `Store`. Never touches message contents,
except that a queue which vanishes takes its messages along.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable

from tickwork.broker import topology
from tickwork.broker.embedded_store import Store, give_back
from tickwork.broker.topology import Queue

logger = logging.getLogger(__name__)

_ARGUMENTS = ("dead_letter_exchange", "message_ttl_seconds", "delivery_limit", "single_active")


def declare_all(connection: sqlite3.Connection, queues: Iterable[Queue], *, owner: int | None = None) -> dict[int, str]:
    """The dead-letter queue, the events queue and `queues` exist: row id -> name of those asked for."""
    for queue in (topology.dead_letter_queue(), topology.events_queue()):
        declare(connection, queue, owner=None)
    return {declare(connection, queue, owner=owner): queue.name for queue in queues}


def declare(connection: sqlite3.Connection, queue: Queue, *, owner: int | None) -> int:
    """Make sure that the queue exists and is bound; `owner` is the consumer that an exclusive queue belongs to.

    A queue that exists with other arguments is used as it is, with a warning.
    """
    wanted = tuple(getattr(queue, name) for name in _ARGUMENTS)
    row = connection.execute(f"SELECT id, {', '.join(_ARGUMENTS)} FROM queue WHERE name = ?", (queue.name,)).fetchone()
    if row is None:
        cursor = connection.execute(
            f"INSERT INTO queue (name, {', '.join(_ARGUMENTS)}) VALUES (?, ?, ?, ?, ?)", (queue.name, *wanted)
        )
        identifier = int(cursor.lastrowid or 0)
    else:
        identifier = int(row[0])
        if tuple(row[1:]) != wanted:
            logger.warning(
                "broker.declared_differently queue=%s: it exists with other arguments and is used as it is; "
                "to change it, stop everything and delete the broker file",
                queue.name,
            )
    if queue.exclusive:
        connection.execute("UPDATE queue SET owner = ? WHERE id = ?", (owner, identifier))
    added = 0
    for pattern in queue.bindings:
        added += connection.execute(
            "INSERT OR IGNORE INTO binding (exchange, pattern, queue) VALUES (?, ?, ?)",
            (queue.exchange, pattern, identifier),
        ).rowcount
    if added:
        _changed(connection)
    return identifier


def register(connection: sqlite3.Connection, lease_until: float) -> int:
    """A new consumer, alive until then; returns its id."""
    cursor = connection.execute("INSERT INTO consumer (lease_until) VALUES (?)", (lease_until,))
    return int(cursor.lastrowid or 0)


def renew(connection: sqlite3.Connection, consumer: int, lease_until: float) -> bool:
    """Prolong a consumer's lease. False when it was lost: others may have what it held."""
    return connection.execute("UPDATE consumer SET lease_until = ? WHERE id = ?", (lease_until, consumer)).rowcount == 1


def release(store: Store, connection: sqlite3.Connection, consumer: int) -> None:
    """A consumer leaves: what it holds goes back, its place at single-active queues is free, its own queues vanish."""
    give_back(store, connection, consumer, None)
    stand_down(connection, consumer)
    own = "(SELECT id FROM queue WHERE owner = ?)"
    vanished = connection.execute(f"DELETE FROM binding WHERE queue IN {own}", (consumer,)).rowcount
    connection.execute(f"DELETE FROM message WHERE queue IN {own}", (consumer,))
    connection.execute("DELETE FROM queue WHERE owner = ?", (consumer,))
    connection.execute("DELETE FROM consumer WHERE id = ?", (consumer,))
    if vanished:
        _changed(connection)


def stand_down(connection: sqlite3.Connection, consumer: int) -> None:
    """Leave the place at single-active queues to others."""
    connection.execute("UPDATE queue SET active = NULL WHERE active = ?", (consumer,))


def release_dead(store: Store, connection: sqlite3.Connection, now: float) -> int:
    """Release every consumer whose lease has run out; returns how many."""
    dead = connection.execute("SELECT id FROM consumer WHERE lease_until < ?", (now,)).fetchall()
    for (consumer,) in dead:
        release(store, connection, consumer)
        logger.warning("broker.consumer_lease_expired consumer=%s: what it held is handed out again", consumer)
    return len(dead)


def anyone_dead(store: Store, now: float) -> bool:
    """Whether `release_dead` would find one; takes no write lock."""
    return bool(store.read("SELECT EXISTS (SELECT 1 FROM consumer WHERE lease_until < ?)", (now,))[0][0])


def _changed(connection: sqlite3.Connection) -> None:
    """Make every process read the bindings again."""
    connection.execute("UPDATE topology SET version = version + 1")
