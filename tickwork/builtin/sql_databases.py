"""Asks SQLite and PostgreSQL one statement, read-only unless told otherwise.

Called by `sql.py` with a URL from the worker's settings. Translates each driver's errors into what they mean
for another attempt; no message repeats a URL. psycopg is loaded only when a PostgreSQL URL is used.
"""

import contextlib
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from tickwork import JobContext
from tickwork.builtin import settings
from tickwork.errors import JobError, PermanentError, RetryableError

# No single value may be larger: `SELECT randomblob(…)` must not take the worker's memory.
_SQLITE_MAX_VALUE_BYTES = 16 * 1024 * 1024
_CONNECT_TIMEOUT_SECONDS = 10
_LOOK_SECONDS = 0.1


class Query(NamedTuple):
    """What to ask, and within which bounds."""

    database: str
    sql: str
    parameters: list[Any] | dict[str, Any] | None
    max_rows: int
    timeout_seconds: float
    write: bool


class Rows(NamedTuple):
    """What came back: `columns` is empty for a statement without rows, whose `changed` counts the rows it changed."""

    columns: list[str]
    rows: list[Sequence[Any]]
    more: bool
    changed: int


def parse_databases(text: str) -> dict[str, str]:
    """Read `name=URL,name=URL`; names in lower case. Raises PermanentError that does not repeat any URL."""
    databases: dict[str, str] = {}
    for number, entry in enumerate(re.split(r",(?=\s*[A-Za-z0-9_-]+=\s*[a-z]+://)", text), start=1):
        name, _, url = entry.strip().partition("=")
        url = url.strip()
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or not url.startswith(
            ("sqlite:///", "postgresql://", "postgres://")
        ):
            raise PermanentError(
                f"the worker's setting {settings.SQL_DATABASES}, entry {number}: must look like"
                " name=sqlite:///file.db or name=postgresql://user@host/name"
            )
        if url.startswith("sqlite:") and not re.fullmatch(r"[^?]+(\?tables=[A-Za-z0-9_,]+)?", url):
            raise PermanentError(
                f"the worker's setting {settings.SQL_DATABASES}, entry {number}: after the file only ?tables=name,name"
                " may follow"
            )
        databases[name.lower()] = url
    return databases


class _Watch:
    """Interrupts a statement from a thread of its own when the job is cancelled or its time is over."""

    def __init__(self, ctx: JobContext, seconds: float, interrupt: Callable[[], object]) -> None:
        self._ctx = ctx
        self._interrupt = interrupt
        self._deadline = time.monotonic() + seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sql-watch", daemon=True)
        self.timed_out = False

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            self.timed_out = self.timed_out or time.monotonic() > self._deadline
            if self.timed_out or self._ctx.cancelled:
                # Again each turn: an interrupt between two steps of a statement would be lost.
                with contextlib.suppress(Exception):
                    self._interrupt()


def _stopped(query: Query, reason: object) -> JobError:
    return JobError(f"database {query.database!r}: stopped, the limit is {query.timeout_seconds:g} s: {reason}")


def _read_only(query: Query) -> PermanentError:
    remedy = "" if query.write else f"; set write and list the database in {settings.SQL_WRITABLE} to change it"
    return PermanentError(f"database {query.database!r}: the statement would change a read-only database{remedy}")


# ── SQLite ─────────────────────────────────────────────────────────────────────────────────────────


def run_on_sqlite(ctx: JobContext, url: str, query: Query) -> Rows:
    """Run the query on the file of a `sqlite:///` URL, which must exist."""
    file, _, tables = url.removeprefix("sqlite:///").partition("?tables=")
    readable = frozenset(tables.split(",")) if tables else None
    path = Path(unquote(file)).absolute()
    with _sqlite_errors(query), contextlib.closing(_open_sqlite(path, query.write, readable)) as connection:
        with _Watch(ctx, query.timeout_seconds, connection.interrupt) as watch:
            try:
                cursor = connection.execute(query.sql, query.parameters or ())
                columns = [column[0] for column in cursor.description or ()]
                rows = list(islice(cursor, query.max_rows))
                more = bool(columns) and cursor.fetchone() is not None
                if query.write and more:
                    # A change happens as its returned rows are fetched: to the end, then.
                    for _ in cursor:
                        pass
                connection.commit() if query.write else connection.rollback()
            except sqlite3.OperationalError as error:
                ctx.raise_if_cancelled()
                if watch.timed_out:
                    raise _stopped(query, error) from None
                raise
        return Rows(columns, rows, more, max(cursor.rowcount, 0))


def _open_sqlite(path: Path, write: bool, readable: frozenset[str] | None) -> sqlite3.Connection:
    mode = "rw" if write else "ro"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=_CONNECT_TIMEOUT_SECONDS, check_same_thread=False
    )
    connection.text_factory = lambda data: data.decode(errors="replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SQLITE_MAX_VALUE_BYTES)
    if not write:
        connection.execute("PRAGMA query_only = ON")

    def judge(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        # No way to other files: neither ATTACH nor VACUUM INTO, which attaches too.
        denied = action == sqlite3.SQLITE_ATTACH
        if readable is not None:
            # Without a column only rows are counted, also those of a WITH table.
            denied |= action == sqlite3.SQLITE_READ and bool(second) and first not in readable
            denied |= action == sqlite3.SQLITE_PRAGMA
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    connection.set_authorizer(judge)
    return connection


@contextlib.contextmanager
def _sqlite_errors(query: Query) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_READONLY:
            raise _read_only(query) from None
        busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
        raise (RetryableError if busy else PermanentError)(f"database {query.database!r}: {error}") from None
    except OverflowError as error:
        raise PermanentError(f"database {query.database!r}: {error}") from None


# ── PostgreSQL ─────────────────────────────────────────────────────────────────────────────────────


def run_on_postgresql(ctx: JobContext, url: str, query: Query) -> Rows:
    """Run the query on the server of a `postgresql://` URL."""
    psycopg = _psycopg()
    parameters = _adapted(query.parameters)
    with (
        _postgresql_errors(psycopg, ctx, query),
        _open_postgresql(psycopg, url, query) as connection,
        _Watch(ctx, query.timeout_seconds, connection.cancel_safe),
        connection.cursor() as cursor,
    ):
        if query.write:
            # Prepared, because only then does the server refuse more than one statement.
            cursor.execute(query.sql, parameters, prepare=True)
            columns = [column.name for column in cursor.description or ()]
            rows = cursor.fetchmany(query.max_rows) if columns else []
            outcome = Rows(columns, rows, bool(columns) and cursor.rowcount > len(rows), max(cursor.rowcount, 0))
            connection.commit()
            return outcome
        # Row by row: a large table must not be loaded for its first hundred rows.
        stream = cursor.stream(query.sql, parameters)
        rows = list(islice(stream, query.max_rows))
        more = next(stream, None) is not None
        stream.close()
        return Rows([column.name for column in cursor.description or ()], rows, more, 0)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise PermanentError("install psycopg on the worker (pip install 'psycopg[binary]') for PostgreSQL") from None
    return psycopg


def _adapted(parameters: list[Any] | dict[str, Any] | None) -> list[Any] | dict[str, Any] | None:
    """Objects become jsonb; lists stay arrays."""
    from psycopg.types.json import Jsonb

    def adapt(value: Any) -> Any:
        return Jsonb(value) if isinstance(value, dict) else value

    if isinstance(parameters, dict):
        return {name: adapt(value) for name, value in parameters.items()}
    return parameters and [adapt(value) for value in parameters]


@contextlib.contextmanager
def _open_postgresql(psycopg: Any, url: str, query: Query) -> Iterator[Any]:
    try:
        connection = psycopg.connect(
            url,
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            application_name="tickwork sql_query",
        )
    except psycopg.ProgrammingError:
        # The driver's text would repeat the URL.
        raise PermanentError(f"the URL of {query.database!r} in {settings.SQL_DATABASES} is not valid") from None
    try:
        connection.read_only = not query.write
        connection.execute(f"SET LOCAL statement_timeout = {max(1, round(query.timeout_seconds * 1000))}")
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def _postgresql_errors(psycopg: Any, ctx: JobContext, query: Query) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        ctx.raise_if_cancelled()
        state = error.sqlstate or ""
        if state == "57014":
            raise _stopped(query, str(error).strip()) from None
        if state == "25006":
            raise _read_only(query) from None
        # Connection, transaction rollback (deadlock), resources, lock not available, operator intervention, system.
        passing = isinstance(error, psycopg.OperationalError) and (
            not state or state[:2] in ("08", "40", "53", "55", "57", "58")
        )
        text = f"database {query.database!r}: {str(error).strip()}"
        raise (RetryableError if passing else PermanentError)(text) from None
