"""What every test may ask for: private servers (started on first use), addresses of fresh databases, vhosts.

A server comes from `TEST_DATABASE_URL`, `TEST_BROKER_URL`, `TEST_REDIS_URL` when set (`python -m tests` sets them,
so that all xdist workers share one set), else the run starts its own. A test whose server is not there is skipped and
named at the end of the run; with CI=true it fails.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import psycopg
import pytest

from tests.left_out import leave_out, summarise
from tests.servers import Postgres, RabbitMQ, Redis, Server, ServerMissing, packages
from tests.servers.environment import BROKER, BROKER_HOME, DATABASE, NO_SERVERS, REDIS
from tests.servers.rabbitmq import create_vhosts

S = TypeVar("S", bound=Server)

# The same examples in every run, however long one takes: what failed fails again when it is repeated.
hypothesis.settings.register_profile(
    "tests",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("tests")


def start(kind: type[S]) -> Iterator[S]:
    """A running server of this kind for as long as the caller's fixture lives."""
    if os.environ.get(NO_SERVERS):
        leave_out("no servers in a fast run")
    try:
        server = kind()
    except ServerMissing as error:
        leave_out(str(error))
    with server:
        yield server


def own_name(prefix: str = "t") -> str:
    """A name that no other run, worker or test uses."""
    return f"{prefix}_{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}_{uuid.uuid4().hex[:10]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, file by file at the head of each half, since xdist begins with a half for each of two workers:
    at the end there are only short tests left to share.
    """
    slow = [item for item in items if item.get_closest_marker("slow") or item.get_closest_marker("timeout")]
    quick = [item for item in items if item not in slow]
    files = [list(tests) for _, tests in groupby(slow, key=lambda item: item.path)]
    middle = len(items) // 2
    items[:] = [*chain(*files[::2]), *quick]
    items[middle:middle] = chain(*files[1::2])


# ── Django's database ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On SQLite a file, as in real life: an in-memory database knows no WAL and locks whole tables between threads."""
    from django.conf import settings

    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        database.setdefault("TEST", {})["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")


# ── PostgreSQL ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    """A PostgreSQL server where databases may be made; the URL names one that exists."""
    if url := os.environ.get(DATABASE):
        yield url
    else:
        for server in start(Postgres):
            yield server.url


def _database(server_url: str) -> Iterator[str]:
    name = own_name()
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload, unused-ignore]
    yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[call-overload, unused-ignore]


@pytest.fixture(scope="session")
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """An empty PostgreSQL database of this run (of this xdist worker)."""
    yield from _database(postgres_server_url)


@pytest.fixture
def fresh_postgres_url(postgres_server_url: str) -> Iterator[str]:
    """An empty PostgreSQL database of this test, for tests that start whole programs."""
    yield from _database(postgres_server_url)


# ── RabbitMQ ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[tuple[str, Path | None]]:
    """A RabbitMQ server: its URL, and its folder when it is one of ours (which is what making vhosts needs)."""
    if url := os.environ.get(BROKER):
        home = os.environ.get(BROKER_HOME)
        yield url, Path(home) if home else None
    else:
        for server in start(RabbitMQ):
            yield server.url, server.home


def _vhost(server: tuple[str, Path | None]) -> Iterator[str]:
    url, home = server
    if home is None:
        leave_out(f"a virtual host of its own needs a private RabbitMQ: unset {BROKER}")
    name = own_name()
    create_vhosts(home, name)
    yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@pytest.fixture(scope="session")
def rabbitmq_url(rabbitmq_server: tuple[str, Path | None]) -> Iterator[str]:
    """A RabbitMQ virtual host of this run (of this xdist worker); of an outside server, what its URL names."""
    if rabbitmq_server[1] is None:
        yield rabbitmq_server[0]
    else:
        yield from _vhost(rabbitmq_server)


@pytest.fixture
def fresh_rabbitmq_url(rabbitmq_server: tuple[str, Path | None]) -> Iterator[str]:
    """An empty virtual host of this test, for tests that start whole programs."""
    yield from _vhost(rabbitmq_server)


# ── Redis, Chromium ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis database of this run (of this xdist worker: its number is the database's)."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if url := os.environ.get(REDIS):
        yield urlunsplit(urlsplit(url)._replace(path=f"/{number}"))
    else:
        for server in start(Redis):
            yield server.url


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser that browser tests drive."""
    path = packages.find("chromium")
    if path is None:
        leave_out("chromium is not installed")
    return path


# ── the loud end ───────────────────────────────────────────────────────────────────────────────────


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    summarise(terminalreporter)
