"""Hands out messages of the SQLite file: which queues have some for a consumer, and taking a batch of them.

Called by the embedded consumer. `claim` runs inside a transaction of `Store`; nothing here waits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tickwork.broker.base import Death, Delivery
from tickwork.broker.embedded_store import Store

READY = """
SELECT id FROM queue WHERE id IN (SELECT value FROM json_each(?))
AND (single_active = 0 OR active IS NULL OR active = ?)
AND EXISTS (SELECT 1 FROM message WHERE message.queue = queue.id AND message.consumer IS NULL)
"""
BECOME_ACTIVE = "UPDATE queue SET active = ? WHERE id = ? AND single_active = 1 AND active IS NULL"
MAY_TAKE = "SELECT single_active = 0 OR active = ? FROM queue WHERE id = ?"
CLAIM = """
UPDATE message SET consumer = ?, delivery_count = delivery_count + 1
WHERE id IN (SELECT id FROM message WHERE queue = ? AND consumer IS NULL ORDER BY id LIMIT ?)
RETURNING id, routing_key, body, headers, correlation_id, message_id, type, delivery_count, deaths
"""


def ready_queues(store: Store, consumer: int, queues: Iterable[int]) -> list[int]:
    """Those of `queues` that have a message which this consumer may take; takes no write lock."""
    return [row[0] for row in store.read(READY, (msgspec.json.encode(list(queues)).decode(), consumer))]


def claim(
    connection: sqlite3.Connection, consumer: int, queues: Iterable[int], names: Mapping[int, str], limit: int
) -> list[Delivery]:
    """Take up to `limit` messages, queue by queue, each queue's in order; they belong to the consumer from now on."""
    taken: list[Delivery] = []
    for queue in queues:
        connection.execute(BECOME_ACTIVE, (consumer, queue))
        if connection.execute(MAY_TAKE, (consumer, queue)).fetchone()[0]:
            rows = connection.execute(CLAIM, (consumer, queue, limit - len(taken))).fetchall()
            rows.sort(key=lambda row: int(row[0]))
            taken += [_delivery(consumer, names[queue], row) for row in rows]
        if len(taken) >= limit:
            break
    return taken


def _delivery(consumer: int, queue: str, row: tuple[Any, ...]) -> Delivery:
    message, routing_key, body, headers, correlation_id, message_id, kind, count, deaths = row
    return Delivery(
        queue=queue,
        routing_key=routing_key,
        body=body,
        headers={} if headers == b"{}" else msgspec.json.decode(headers),
        correlation_id=correlation_id,
        message_id=message_id,
        type=kind,
        redelivered=count > 1,
        delivery_count=count - 1,
        deaths=() if deaths == b"[]" else msgspec.json.decode(deaths, type=tuple[Death, ...]),
        tag=(consumer, message),
    )
