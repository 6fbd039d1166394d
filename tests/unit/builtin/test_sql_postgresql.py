"""sql_query on a real PostgreSQL server."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.unit.builtin.running import Context, run
from tickwork.builtin.sql import sql_query
from tickwork.errors import JobCancelled, JobError, PermanentError, RetryableError


@pytest.fixture(autouse=True)
def _database(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cities in a database named `reports` in the worker's settings, which jobs may change."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP TABLE IF EXISTS city")
        connection.execute("CREATE TABLE city (name text PRIMARY KEY, people int)")
        connection.execute("INSERT INTO city VALUES ('Bern', 140), ('Chur', 38), ('Zug', 30)")
    monkeypatch.setenv("TICKWORK_SQL_DATABASES", f"reports={postgres_url}")
    monkeypatch.setenv("TICKWORK_SQL_WRITABLE", "reports")


def cities(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM city").fetchone()
    assert row is not None
    return int(row[0])


async def test_values_of_every_kind_come_back_as_json_can_tell_them() -> None:
    result = await run(
        sql_query,
        database="reports",
        sql="""SELECT 1.50::numeric AS price, DATE '2026-03-01' AS day, TIMESTAMPTZ '2026-03-01 12:00+00' AS at,
               'ab'::bytea AS data, '{"a": [1]}'::jsonb AS doc, ARRAY[1, 2] AS list, NULL AS nothing,
               '10.0.0.1'::inet AS address, int4range(1, 3) AS span, true AS yes""",
    )
    (row,) = result["rows"]
    values = dict(zip(result["columns"], row, strict=True))
    assert values["price"] == "1.50"
    assert values["day"] == "2026-03-01"
    assert str(values["at"]).startswith("2026-03-01T")
    assert (values["data"], values["doc"], values["list"]) == ("YWI=", {"a": [1]}, [1, 2])
    assert (values["nothing"], values["address"], values["span"], values["yes"]) == (None, "10.0.0.1", "[1, 3)", True)


async def test_parameters_are_given_by_position_or_by_name() -> None:
    sql = "SELECT name FROM city WHERE people < {} ORDER BY name"
    by_position = await run(sql_query, database="reports", sql=sql.format("%s"), parameters=[35])
    by_name = await run(sql_query, database="reports", sql=sql.format("%(most)s"), parameters={"most": 35})
    assert by_position["rows"] == by_name["rows"] == [["Zug"]]
    objects = await run(sql_query, database="reports", sql="SELECT %s::jsonb -> 'a'", parameters=[{"a": 5}])
    assert objects["rows"] == [[5]]


async def test_a_percent_sign_means_itself_without_parameters() -> None:
    result = await run(sql_query, database="reports", sql="SELECT name FROM city WHERE name LIKE 'B%'")
    assert result["rows"] == [["Bern"]]


async def test_only_the_rows_that_are_kept_are_fetched() -> None:
    sql = "SELECT n, repeat('x', 100) FROM generate_series(1, 5000000) n"
    result = await run(sql_query, database="reports", sql=sql, max_rows=2)
    assert [row[0] for row in result["rows"]] == [1, 2]
    assert result["truncated"] is True


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM city",
        "DELETE FROM city RETURNING name",
        "WITH gone AS (DELETE FROM city RETURNING *) SELECT * FROM gone",
        "DROP TABLE city",
        "DO $$ BEGIN DELETE FROM city; END $$",
        "DO $$ BEGIN SET TRANSACTION READ WRITE; DELETE FROM city; END $$",
        "DO $$ BEGIN COMMIT; DELETE FROM city; COMMIT; END $$",
        "SELECT set_config('transaction_read_only', 'off', false), nextval('s')",
    ],
)
async def test_a_change_is_refused_unless_the_job_asks_for_it(postgres_url: str, sql: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SEQUENCE IF NOT EXISTS s")
    with pytest.raises(PermanentError):
        await run(sql_query, database="reports", sql=sql)
    assert cities(postgres_url) == 3


async def test_a_refused_change_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermanentError, match="TICKWORK_SQL_WRITABLE"):
        await run(sql_query, database="reports", sql="DELETE FROM city")
    monkeypatch.delenv("TICKWORK_SQL_WRITABLE")
    with pytest.raises(PermanentError, match="TICKWORK_SQL_WRITABLE"):
        await run(sql_query, database="reports", sql="DELETE FROM city", write=True)


@pytest.mark.parametrize("write", [False, True])
async def test_only_one_statement_is_run(postgres_url: str, write: bool) -> None:
    for sql in ("SELECT 1; SELECT 2", "COMMIT; DELETE FROM city"):
        with pytest.raises(PermanentError, match="multiple commands"):
            await run(sql_query, database="reports", sql=sql, write=write)
    assert cities(postgres_url) == 3


async def test_an_allowed_change_is_committed_and_counted(postgres_url: str) -> None:
    changed = await run(sql_query, database="reports", sql="UPDATE city SET people = 1 WHERE people > 35", write=True)
    assert (changed["columns"], changed["row_count"]) == ([], 2)
    returned = await run(sql_query, database="reports", sql="DELETE FROM city RETURNING name", write=True, max_rows=1)
    assert (returned["row_count"], returned["truncated"]) == (1, True)
    assert cities(postgres_url) == 0


@pytest.mark.parametrize(
    ("sql", "write"),
    [
        ("SELEC 1", False),
        ("SELECT * FROM nowhere", False),
        ("SELECT 1/0", False),
        ("INSERT INTO city VALUES ('Zug')", True),
    ],
)
async def test_a_statement_that_cannot_work_is_permanent(sql: str, write: bool) -> None:
    with pytest.raises(PermanentError, match="database 'reports': "):
        await run(sql_query, database="reports", sql=sql, write=write)


async def test_a_statement_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(JobError, match=r"the limit is 0\.2 s") as caught:
        await run(sql_query, database="reports", sql="SELECT pg_sleep(60)", statement_timeout_seconds=0.2)
    assert caught.value.retryable is None


async def test_a_cancelled_statement_is_stopped() -> None:
    ctx = Context()
    timer = threading.Timer(0.05, ctx.cancel, ["by a person"])
    timer.start()
    with pytest.raises(JobCancelled):
        await run(sql_query, ctx=ctx, database="reports", sql="SELECT pg_sleep(60)")
    timer.join()


async def test_a_connection_that_the_server_ends_is_retryable(postgres_url: str) -> None:
    with pytest.raises(RetryableError):
        await run(sql_query, database="reports", sql="SELECT pg_terminate_backend(pg_backend_pid())")


async def test_a_server_that_is_away_is_retryable_and_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKWORK_SQL_DATABASES", "away=postgresql://ann:hidden@127.0.0.1:1/x")
    with pytest.raises(RetryableError, match="database 'away'") as caught:
        await run(sql_query, database="away", sql="SELECT 1")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://ann:hidden@[h/x", "postgresql://ann:hidden@h/x?no_such=1"])
async def test_a_url_that_is_wrong_is_permanent_and_not_repeated(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TICKWORK_SQL_DATABASES", f"wrong={url}")
    with pytest.raises(PermanentError, match="URL of 'wrong' in TICKWORK_SQL_DATABASES") as caught:
        await run(sql_query, database="wrong", sql="SELECT 1")
    assert "hidden" not in str(caught.value)
