"""sql_query on real SQLite files."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from tests.unit.builtin.running import Context, run
from tickwork.builtin.sql import MAX_RESULT_BYTES, sql_query
from tickwork.builtin.sql_databases import parse_databases
from tickwork.errors import JobCancelled, JobError, PermanentError, RetryableError

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with three cities, named `main` in the worker's settings."""
    path = tmp_path / "cities #1.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE city (name TEXT PRIMARY KEY, people INTEGER, flag BLOB)")
        connection.executemany(
            "INSERT INTO city VALUES (?, ?, ?)", [("Bern", 140, b"\0\1"), ("Chur", 38, None), ("Zug", 30, b"")]
        )
        connection.commit()
    monkeypatch.setenv("TICKWORK_SQL_DATABASES", f"main=sqlite:///{path}")
    return path


@pytest.fixture
def writable(database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TICKWORK_SQL_WRITABLE", "other, Main")
    return database


def cities(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM city").fetchone()
    assert isinstance(count, int)
    return count


async def test_columns_and_rows_come_back_as_json_can_tell_them(database: Path) -> None:
    result = await run(sql_query, sql="SELECT name, people, flag FROM city ORDER BY name LIMIT 2")
    assert result == {
        "columns": ["name", "people", "flag"],
        "rows": [["Bern", 140, "AAE="], ["Chur", 38, None]],
        "row_count": 2,
        "truncated": False,
    }


async def test_parameters_are_given_by_position_or_by_name(database: Path) -> None:
    by_position = await run(sql_query, sql="SELECT name FROM city WHERE people < ?", parameters=[35])
    by_name = await run(sql_query, sql="SELECT name FROM city WHERE people < :most", parameters={"most": 35})
    assert by_position["rows"] == by_name["rows"] == [["Zug"]]


async def test_more_rows_than_wanted_are_left_out_and_it_says_so(database: Path) -> None:
    result = await run(sql_query, sql="SELECT name FROM city", max_rows=2)
    assert (result["row_count"], result["truncated"]) == (2, True)
    exact = await run(sql_query, sql="SELECT name FROM city", max_rows=3)
    assert (exact["row_count"], exact["truncated"]) == (3, False)


async def test_the_result_is_bounded_in_bytes_too(database: Path) -> None:
    endless = ENDLESS.replace("count(*)", "printf('%.*c', 10000, 'x')")
    result = await run(sql_query, sql=endless, max_rows=1000)
    assert result["truncated"] is True
    assert 10 < result["row_count"] < 30
    assert len(msgspec.json.encode(result)) < MAX_RESULT_BYTES + 1000
    long = await run(sql_query, sql="SELECT printf('%.*c', 1000000, 'x')")
    assert (long["row_count"], long["truncated"]) == (1, True)


async def test_text_that_databases_refuse_is_made_harmless(database: Path) -> None:
    result = await run(sql_query, sql="SELECT char(0), CAST(x'ff41' AS TEXT)")
    assert result["rows"] == [["\ufffd", "\ufffdA"]]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM city",
        "INSERT INTO city VALUES ('Biel', 1, NULL) RETURNING name",
        "DROP TABLE city",
        "CREATE TABLE other (id)",
        "PRAGMA user_version = 5",
    ],
)
async def test_a_change_is_refused_unless_asked_for_and_allowed(database: Path, sql: str) -> None:
    with pytest.raises(PermanentError, match="set write and list the database in TICKWORK_SQL_WRITABLE"):
        await run(sql_query, sql=sql)
    with pytest.raises(PermanentError, match="can list it in TICKWORK_SQL_WRITABLE"):
        await run(sql_query, sql=sql, write=True)
    assert cities(database) == 3


async def test_being_writable_is_not_enough_without_the_jobs_word(writable: Path) -> None:
    with pytest.raises(PermanentError, match="read-only"):
        await run(sql_query, sql="DELETE FROM city")
    assert cities(writable) == 3


async def test_an_allowed_change_is_committed_and_counted(writable: Path) -> None:
    result = await run(sql_query, sql="DELETE FROM city WHERE people < 100", write=True)
    assert result == {"columns": [], "rows": [], "row_count": 2, "truncated": False}
    assert cities(writable) == 1


async def test_a_change_that_returns_rows_is_made_whole_even_if_not_all_are_kept(writable: Path) -> None:
    result = await run(sql_query, sql="DELETE FROM city RETURNING name", write=True, max_rows=1)
    assert (result["row_count"], result["truncated"]) == (1, True)
    assert cities(writable) == 0


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("sql", ["ATTACH DATABASE '{other}' AS other", "VACUUM INTO '{other}'"])
async def test_no_statement_reaches_another_file(writable: Path, tmp_path: Path, sql: str, write: bool) -> None:
    other = tmp_path / "other.db"
    with pytest.raises(PermanentError, match=r"not authorized|authorization denied"):
        await run(sql_query, sql=sql.format(other=other), write=write)
    assert not other.exists()


@pytest.fixture
def narrow(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's owner has named the one table that jobs may read."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE token (key TEXT)")
        connection.execute("INSERT INTO token VALUES ('hush')")
        connection.execute("CREATE VIEW city_and_token AS SELECT name, key FROM city, token")
        connection.commit()
    monkeypatch.setenv("TICKWORK_SQL_DATABASES", f"main=sqlite:///{quote(str(database))}?tables=city,other")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT key FROM token",
        "SELECT (SELECT key FROM token) FROM city",
        "SELECT count(*) FROM token WHERE key LIKE 'h%'",
        "SELECT max(rowid) FROM token",
        "SELECT key FROM city_and_token",
        "WITH city AS (SELECT key FROM token) SELECT * FROM city",
        "SELECT sql FROM sqlite_master",
        "SELECT * FROM pragma_table_info('token')",
        "PRAGMA table_info(token)",
    ],
)
async def test_other_tables_than_the_named_ones_are_not_read(narrow: None, sql: str) -> None:
    with pytest.raises(PermanentError, match=r"prohibited|not authorized|authorization denied"):
        await run(sql_query, sql=sql)


async def test_the_named_tables_are_read_in_every_way(narrow: None) -> None:
    sql = "WITH few AS (SELECT name FROM city WHERE people < 100) SELECT count(*) FROM few"
    assert (await run(sql_query, sql=sql))["rows"] == [[2]]


@pytest.mark.parametrize("sql", ["SELECT 1; SELECT 2", "SELECT 1; DELETE FROM city"])
async def test_only_one_statement_is_run(writable: Path, sql: str) -> None:
    with pytest.raises(PermanentError, match="one statement"):
        await run(sql_query, sql=sql, write=True)
    assert cities(writable) == 3


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [("SELEC 1", None), ("SELECT * FROM nowhere", None), ("SELECT ?", []), ("SELECT ?", [{}]), ("SELECT ?", [2**70])],
)
async def test_a_statement_that_cannot_work_is_permanent(
    database: Path, sql: str, parameters: list[object] | None
) -> None:
    with pytest.raises(PermanentError, match="database 'main': "):
        await run(sql_query, sql=sql, parameters=parameters)


async def test_a_value_too_large_for_the_worker_is_refused(database: Path) -> None:
    with pytest.raises(PermanentError, match="too big"):
        await run(sql_query, sql="SELECT randomblob(100000000)")


async def test_a_statement_that_takes_too_long_is_stopped(database: Path) -> None:
    with pytest.raises(JobError, match=r"the limit is 0\.2 s") as caught:
        await run(sql_query, sql=ENDLESS, statement_timeout_seconds=0.2)
    assert caught.value.retryable is None


async def test_a_cancelled_statement_is_stopped(database: Path) -> None:
    ctx = Context()
    timer = threading.Timer(0.05, ctx.cancel, ["by a person"])
    timer.start()
    with pytest.raises(JobCancelled):
        await run(sql_query, ctx=ctx, sql=ENDLESS)
    timer.join()


async def test_a_locked_database_is_retryable(writable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickwork.builtin.sql_databases._CONNECT_TIMEOUT_SECONDS", 0.05)
    with contextlib.closing(sqlite3.connect(writable, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetryableError, match="locked"):
            await run(sql_query, sql="DELETE FROM city", write=True)


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKWORK_SQL_DATABASES", f"main=sqlite:///{tmp_path}/none.db")
    monkeypatch.setenv("TICKWORK_SQL_WRITABLE", "main")
    for write in (False, True):
        with pytest.raises(PermanentError, match="unable to open database file"):
            await run(sql_query, sql="SELECT 1", write=write)
    assert not (tmp_path / "none.db").exists()


async def test_an_unknown_database_names_the_known_ones(database: Path) -> None:
    with pytest.raises(PermanentError, match=r"'sales' is not one of the worker's TICKWORK_SQL_DATABASES \(main\)"):
        await run(sql_query, sql="SELECT 1", database="sales")


async def test_the_setting_is_named_when_it_is_missing() -> None:
    with pytest.raises(PermanentError, match="set TICKWORK_SQL_DATABASES on the worker"):
        await run(sql_query, sql="SELECT 1")


def test_several_databases_are_read_from_one_setting() -> None:
    text = "Main=sqlite:////a/b,c.db, reports=postgresql://u:p,w=1@h/db?x=1,y=2"
    assert parse_databases(text) == {"main": "sqlite:////a/b,c.db", "reports": "postgresql://u:p,w=1@h/db?x=1,y=2"}


@pytest.mark.parametrize("text", ["mysql://u:hidden@h/d", "a=mysql://u:hidden@h/d", "a b=sqlite:///x", "=sqlite:///x"])
def test_a_setting_that_is_wrong_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(PermanentError, match="TICKWORK_SQL_DATABASES, entry 1") as caught:
        parse_databases(text)
    assert "hidden" not in str(caught.value)
