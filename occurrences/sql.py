"""The set-based statements of the hot way, for PostgreSQL and SQLite. Nothing here decides anything.

Who calls it: `transitions` (rows in, rows moved) and the relay (claim, settle). One statement serves a whole batch:
COPY and `UPDATE … FROM unnest(…)` on PostgreSQL, `executemany` inside the one transaction on SQLite, where a
statement is a function call and not a round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection, models, transaction
from django.utils.dateparse import parse_datetime

from jobs.models import Job
from occurrences.models import Occurrence, OutboxMessage
from occurrences.states import LIVE

OUTBOX_CHANNEL = "tickwork_outbox"
JOBS_CHANNEL = "tickwork_jobs"


@dataclass(slots=True, kw_only=True)
class State:
    """The columns of an occurrence that a move may change. JSON columns are JSON text."""

    status: int
    attempt: int
    max_attempts: int
    instance: str
    queued_at: datetime
    next_attempt_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    heartbeat_at: datetime | None
    cancel_requested_at: datetime | None
    redispatch_count: int
    progress: float | None
    progress_message: str
    result: str | None
    error: str | None
    reason: str
    history: str


STATE_COLUMNS = tuple(field.name for field in fields(State))
_ARRAYS = {
    "status": "smallint", "attempt": "smallint", "max_attempts": "smallint", "instance": "text", "queued_at":
    "timestamptz",
    "next_attempt_at": "timestamptz", "started_at": "timestamptz", "ended_at": "timestamptz", "heartbeat_at":
    "timestamptz",
    "cancel_requested_at": "timestamptz", "redispatch_count": "smallint", "progress": "float8", "progress_message":
    "text",
    "result": "jsonb", "error": "jsonb", "reason": "text", "history": "jsonb",
}  # fmt: skip
FIXED_COLUMNS = ("id", "job_id", "worker", "job_type", "timeout_seconds", "policy")
_JSON = frozenset({"data", "policy", "headers", *(name for name, kind in _ARRAYS.items() if kind == "jsonb")})
_TABLE = Occurrence._meta.db_table
_OUTBOX = OutboxMessage._meta.db_table


def on_postgresql() -> bool:
    """Whether the database is PostgreSQL."""
    return connection.vendor == "postgresql"


# ── values as each database stores them ────────────────────────────────────────────────────────────


def _stored(value: Any) -> Any:
    """A Python value as SQLite's driver wants it; PostgreSQL's takes it as it is."""
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return value


def _instant(value: Any) -> Any:
    """An instant as read: SQLite keeps UTC without saying so."""
    read = parse_datetime(value) if isinstance(value, str) else value
    return read.replace(tzinfo=UTC) if isinstance(read, datetime) and read.tzinfo is None else read


_INSTANTS = frozenset(name for name, kind in _ARRAYS.items() if kind == "timestamptz")


def _read(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    values = dict(zip(columns, row, strict=True))
    if not on_postgresql():
        for name, value in values.items():
            if value is None:
                continue
            if name in _INSTANTS:
                values[name] = _instant(value)
            elif name in ("id", "job_id", "occurrence_id") and isinstance(value, str):
                values[name] = UUID(value)
    return values


def _among(ids: Sequence[UUID]) -> tuple[str, list[Any]]:
    """An SQL condition `= ANY(…)` or `IN (…)` with its parameters."""
    if on_postgresql():
        return "= ANY(%s)", [list(ids)]
    return f"IN ({','.join(['%s'] * len(ids))})", [identifier.hex for identifier in ids]


def _array(kind: str, values: Sequence[Any]) -> str:
    """An array literal of PostgreSQL (manual, section 8.15.6): three times cheaper than the driver's own, which looks
    at
    every character in Python.
    """
    if kind == "text":
        words = ["NULL" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values]
    elif kind == "timestamptz":
        words = ["NULL" if v is None else f'"{v.isoformat()}"' for v in values]
    else:
        words = ["NULL" if v is None else str(v) for v in values]
    return "{" + ",".join(words) + "}"


# ── reading and writing occurrences ────────────────────────────────────────────────────────────────


def read_states(ids: Iterable[UUID]) -> list[tuple[dict[str, Any], State]]:
    """For each known id, its fixed columns (and the row's `version`) and its State. No lock: the write is guarded."""
    found = []
    columns = FIXED_COLUMNS + STATE_COLUMNS
    version = "xmin::text" if on_postgresql() else "''"
    unique = list(dict.fromkeys(ids))
    with connection.cursor() as cursor:
        for start in range(0, len(unique), 10_000):
            condition, parameters = _among(unique[start : start + 10_000])
            cursor.execute(f"SELECT {version}, {', '.join(columns)} FROM {_TABLE} WHERE id {condition}", parameters)
            for row in cursor.fetchall():
                values = _read(columns, row[1:])
                fixed = {name: values.pop(name) for name in FIXED_COLUMNS} | {"version": row[0]}
                found.append((fixed, State(**values)))
    return found


Guard = tuple[int, int, str, str]
"""(status, attempt, instance, version): what a row must still be for a move to apply.

The version (PostgreSQL's `xmin`) keeps what moves nothing from being lost: a cancel request, a heartbeat, a note.
On SQLite a transaction has the database for itself, so what it read is still true when it writes.
"""


def guarded_update(rows: Sequence[tuple[UUID, Guard, State]]) -> set[UUID]:
    """Write each State whose row still matches its guard; returns the ids that were written."""
    if not rows:
        return set()
    assignments = ", ".join(f"{name} = {{}}" for name in STATE_COLUMNS)
    with connection.cursor() as cursor:
        if on_postgresql():
            arrays: list[Any] = [[row[0] for row in rows], *([row[1][k] for row in rows] for k in range(4))]
            arrays += [[getattr(row[2], name) for row in rows] for name in STATE_COLUMNS]
            # JSON travels as text and is cast once per row: an array of jsonb would be parsed as a literal first.
            kinds = ["uuid", "smallint", "smallint", "text", "xid"] + [
                "text" if _ARRAYS[n] == "jsonb" else _ARRAYS[n] for n in STATE_COLUMNS
            ]
            sources = [f"v.{name}::jsonb" if _ARRAYS[name] == "jsonb" else f"v.{name}" for name in STATE_COLUMNS]
            cursor.execute(
                f"UPDATE {_TABLE} AS o SET {assignments.format(*sources)} "
                f"FROM unnest({', '.join(f'%s::{kind}[]' for kind in kinds)}) "
                f"AS v(id, was_status, was_attempt, was_instance, was_version, {', '.join(STATE_COLUMNS)}) "
                "WHERE o.id = v.id AND o.status = v.was_status AND o.attempt = v.was_attempt "
                "AND o.instance = v.was_instance AND o.xmin = v.was_version "
                "RETURNING o.id",
                [_array(kind, column) for kind, column in zip(kinds, arrays, strict=True)],
            )
            return {row[0] for row in cursor.fetchall()}
        statement = (
            f"UPDATE {_TABLE} SET {assignments.format(*['%s'] * len(STATE_COLUMNS))} "
            "WHERE id = %s AND status = %s AND attempt = %s AND instance = %s"
        )
        written = set()
        for identifier, guard, state in rows:
            cursor.execute(
                statement, [*(_stored(getattr(state, name)) for name in STATE_COLUMNS), identifier.hex, *guard[:3]]
            )
            if cursor.rowcount:
                written.add(identifier)
        return written


def touch_heartbeats(running: Sequence[tuple[UUID, int, str]], *, at: datetime) -> None:
    """Note that each (occurrence, attempt, instance) is still being run, or waits in its worker for a free slot."""
    if not running:
        return
    with connection.cursor() as cursor:
        if on_postgresql():
            cursor.execute(
                f"UPDATE {_TABLE} AS o SET heartbeat_at = %s FROM unnest(%s::uuid[], %s::smallint[], %s::text[]) "
                "AS v(id, attempt, instance) "
                "WHERE o.id = v.id AND o.attempt = v.attempt "
                "AND (o.status = 1 AND o.instance = v.instance OR o.status = 0 AND o.instance = '')",
                [at, *(list(column) for column in zip(*running, strict=True))],
            )
        else:
            cursor.executemany(
                f"UPDATE {_TABLE} SET heartbeat_at = %s WHERE id = %s AND attempt = %s "
                "AND (status = 1 AND instance = %s OR status = 0 AND instance = '')",
                [(_stored(at), identifier.hex, attempt, instance) for identifier, attempt, instance in running],
            )


def insert_rows(
    model: type[models.Model], columns: Sequence[str], rows: Sequence[Sequence[Any]], *, once: bool = False
) -> None:
    """Insert rows of plain values (JSON as text). `once`: a row that violates a unique constraint is left out
    silently.
    """
    if not rows:
        return
    table, names = model._meta.db_table, ", ".join(columns)
    with connection.cursor() as cursor:
        if on_postgresql() and len(rows) > 3 and not once:
            # Django does not translate the errors of a COPY by itself.
            with connection.wrap_database_errors, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return
        conflict = "ON CONFLICT DO NOTHING" if once else ""
        if on_postgresql():
            marks = ", ".join([f"({', '.join(['%s'] * len(columns))})"] * len(rows))
            cursor.execute(
                f"INSERT INTO {table} ({names}) VALUES {marks} {conflict}", [value for row in rows for value in row]
            )
        else:
            cursor.executemany(
                f"INSERT INTO {table} ({names}) VALUES ({', '.join(['%s'] * len(columns))}) {conflict}",
                [tuple(_stored(value) for value in row) for row in rows],
            )


@lru_cache(maxsize=8)
def _pair_statement(columns: tuple[str, ...], outbox_columns: tuple[str, ...]) -> str:
    def marks(names: Sequence[str]) -> str:
        return ", ".join("%s::jsonb" if name in _JSON else "%s" for name in names)

    return (
        f"WITH born AS (INSERT INTO {_TABLE} ({', '.join(columns)}) VALUES ({marks(columns)})) "
        f"INSERT INTO {_OUTBOX} ({', '.join(outbox_columns)}) VALUES ({marks(outbox_columns)}) "
        f"RETURNING pg_notify('{OUTBOX_CHANNEL}', '')"
    )


def insert_with_message(
    columns: tuple[str, ...], row: Sequence[Any], outbox_columns: tuple[str, ...], message: Sequence[Any]
) -> None:
    """One occurrence and its message. On PostgreSQL one prepared statement, one round trip, that also wakes the
    relay.
    """
    if not on_postgresql():
        with transaction.atomic():
            insert_rows(Occurrence, columns, [row])
            insert_rows(OutboxMessage, outbox_columns, [message])
        return
    with connection.wrap_database_errors:
        connection.ensure_connection()
        cursor = psycopg.Cursor(connection.connection)
        cursor.execute(_pair_statement(columns, outbox_columns), [*row, *message], prepare=True)


def live_jobs(job_ids: Sequence[UUID]) -> set[UUID]:
    """Which of these jobs have an occurrence that is not at its end."""
    if not job_ids:
        return set()
    condition, parameters = _among(job_ids)
    statuses = ",".join(str(int(status)) for status in sorted(LIVE))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT DISTINCT job_id FROM {_TABLE} WHERE status IN ({statuses}) AND job_id {condition}", parameters
        )
        return {_read(("job_id",), row)["job_id"] for row in cursor.fetchall()}


def advance_jobs(rows: Sequence[tuple[UUID, datetime | None, datetime | None, datetime | None]]) -> None:
    """Set each (job, the tick that was read, next tick, last tick); a job edited meanwhile keeps its new tick."""
    if not rows:
        return
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        if on_postgresql():
            cursor.execute(
                f"UPDATE {table} AS j SET next_run_at = v.next, last_tick_at = v.last "
                "FROM unnest(%s::uuid[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[]) AS v(id, "
                "was, next, last) "
                "WHERE j.id = v.id AND j.next_run_at = v.was",
                [list(column) for column in zip(*rows, strict=True)],
            )
        else:
            cursor.executemany(
                f"UPDATE {table} SET next_run_at = %s, last_tick_at = %s WHERE id = %s AND next_run_at = %s",
                [(_stored(following), _stored(last), pk.hex, _stored(was)) for pk, was, following, last in rows],
            )


# ── the outbox ─────────────────────────────────────────────────────────────────────────────────────

CLAIMED = (
    "id",
    "event_type",
    "occurrence_id",
    "exchange",
    "routing_key",
    "headers",
    "body",
    "expiration_seconds",
    "attempt_count",
)


def claim_outbox(*, now: datetime, limit: int, until: datetime) -> list[dict[str, Any]]:
    """Take up to `limit` due messages for oneself until `until`, oldest first. `attempt_count` counts this claim."""
    lock = "FOR UPDATE SKIP LOCKED" if on_postgresql() else ""
    with connection.cursor() as cursor:
        cursor.execute(
            # A CTE, since PostgreSQL may run a subquery in the WHERE several times and claim more than the limit.
            f"WITH due AS (SELECT id FROM {_OUTBOX} WHERE next_attempt_at <= %s "
            f"ORDER BY next_attempt_at, id LIMIT %s {lock}) "
            f"UPDATE {_OUTBOX} SET next_attempt_at = %s, attempt_count = attempt_count + 1 "
            f"WHERE id IN (SELECT id FROM due) RETURNING {', '.join(CLAIMED)}",
            [_bound(now), limit, _bound(until)],
        )
        rows = [_read(CLAIMED, row) for row in cursor.fetchall()]
    return sorted(rows, key=lambda row: row["id"])


def settle_outbox(ids: Sequence[int]) -> None:
    """Forget messages that the broker confirmed."""
    if not ids:
        return
    with connection.cursor() as cursor:
        if on_postgresql():
            cursor.execute(f"DELETE FROM {_OUTBOX} WHERE id = ANY(%s)", [list(ids)])
        else:
            cursor.execute(f"DELETE FROM {_OUTBOX} WHERE id IN ({','.join(['%s'] * len(ids))})", list(ids))


def next_outbox_at() -> datetime | None:
    """When the next outbox message is due."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT next_attempt_at FROM {_OUTBOX} ORDER BY next_attempt_at, id LIMIT 1")
        row = cursor.fetchone()
    instant: datetime | None = _instant(row[0]) if row else None
    return instant


def _bound(value: Any) -> Any:
    return value if on_postgresql() else _stored(value)


def notify(channel: str) -> None:
    """Wake the loops that listen, at commit. On SQLite they watch the file instead."""
    if on_postgresql():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [channel])
