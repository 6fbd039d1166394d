"""The job type sql_query: one SQL statement on a database that the worker's owner has named.

Registered by `tickwork.builtin`. The job's data name the database, never its URL. Reads are read-only by the
database's own means; a change needs both the job's word (`write`) and the owner's (TICKWORK_SQL_WRITABLE).
How each database is asked is told in `sql_databases.py`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tickwork import JobContext
from tickwork.builtin import settings
from tickwork.builtin.sql_databases import Query, Rows, parse_databases, run_on_postgresql, run_on_sqlite
from tickwork.builtin.text import MULTILINE, clean, fit
from tickwork.errors import PermanentError

MAX_CELL_BYTES = 16 * 1024
MAX_RESULT_BYTES = 192 * 1024


def sql_query(
    ctx: JobContext,
    sql: Annotated[
        str,
        Meta(min_length=1, max_length=100_000, description="One SQL statement", extra_json_schema=MULTILINE),
    ],
    database: Annotated[str, Meta(description="Name of a database in the worker's TICKWORK_SQL_DATABASES")] = "main",
    parameters: Annotated[
        list[Any] | dict[str, Any] | None,
        Meta(description="Values for the placeholders: ? or :name on SQLite, %s or %(name)s on PostgreSQL"),
    ] = None,
    max_rows: Annotated[int, Meta(ge=0, le=10_000, description="Rows kept in the result")] = 100,
    statement_timeout_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="The database ends the statement after this time")
    ] = 60.0,
    write: Annotated[
        bool, Meta(description="Commit changes; the database must be listed in the worker's TICKWORK_SQL_WRITABLE")
    ] = False,
) -> dict[str, Any]:
    """Run one SQL statement on a named database and keep its rows."""
    url = _url(database)
    if write and database.lower() not in settings.names(settings.SQL_WRITABLE):
        raise PermanentError(
            f"database {database!r} is read-only for jobs; whoever runs the worker can list it in"
            f" {settings.SQL_WRITABLE}"
        )
    query = Query(database, sql, parameters, max_rows, statement_timeout_seconds, write)
    rows = (run_on_sqlite if url.startswith("sqlite:") else run_on_postgresql)(ctx, url, query)
    result = _result(rows)
    ctx.log.info("query done", database=database, row_count=result["row_count"], truncated=result["truncated"])
    return result


def _url(database: str) -> str:
    """The URL of a named database. Raises PermanentError that lists the names there are."""
    databases = parse_databases(settings.required(settings.SQL_DATABASES, "main=sqlite:////var/lib/app.db"))
    try:
        return databases[database.lower()]
    except KeyError:
        known = ", ".join(sorted(databases))
        raise PermanentError(
            f"database {database!r} is not one of the worker's {settings.SQL_DATABASES} ({known})"
        ) from None


def _result(rows: Rows) -> dict[str, Any]:
    """Rows as JSON knows them, bounded: long texts are cut, and rows beyond the size limit are left out."""
    kept: list[list[Any]] = []
    truncated = rows.more
    size = 0
    for row in rows.rows:
        values: list[Any] = []
        for cell in msgspec.to_builtins(list(row), str_keys=True, enc_hook=str):
            value, cut = fit(clean(cell), keep="head", limit=MAX_CELL_BYTES) if isinstance(cell, str) else (cell, False)
            truncated = truncated or cut
            values.append(value)
        size += len(msgspec.json.encode(values))
        if size > MAX_RESULT_BYTES:
            truncated = True
            break
        kept.append(values)
    return {
        "columns": rows.columns,
        "rows": kept,
        "row_count": len(kept) if rows.columns else rows.changed,
        "truncated": truncated,
    }
