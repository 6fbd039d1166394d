"""Fixtures of the broker tests: a stage on each implementation, and RabbitMQ behind a network with bad days."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pika
import pytest

from tests.broker.proxy import Proxy
from tests.broker.stage import Stage
from tickwork.broker import topology


def wipe(url: str) -> None:
    """Remove the queues that all tests share."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for name in (topology.EVENTS, topology.DEAD_LETTER_QUEUE):
        channel.queue_delete(name)
    connection.close()


@pytest.fixture(params=["embedded", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address of each implementation, with nothing in the queues that tests share."""
    if request.param == "embedded":
        return f"sqlite:///{tmp_path}/broker.db"
    url: str = request.getfixturevalue("rabbitmq_url")
    wipe(url)
    return url


@pytest.fixture
def stage(broker_url: str) -> Iterator[Stage]:
    """The conformance suite's stage: each test runs once on each implementation."""
    stage = Stage(broker_url)
    yield stage
    stage.close()


@pytest.fixture
def rabbit_url(rabbitmq_url: str) -> str:
    """RabbitMQ with nothing in the queues that tests share."""
    wipe(rabbitmq_url)
    return rabbitmq_url


@pytest.fixture
def network(rabbit_url: str) -> Iterator[Proxy]:
    """A proxy in front of RabbitMQ, refusing connections until it is opened."""
    parts = urlsplit(rabbit_url)
    with Proxy(parts.hostname or "127.0.0.1", parts.port or 5672) as proxy:
        yield proxy


@pytest.fixture
def far(rabbit_url: str, network: Proxy) -> Iterator[Stage]:
    """A stage on RabbitMQ behind `network`."""
    parts = urlsplit(rabbit_url)
    login = parts.netloc.rpartition("@")[0]
    stage = Stage(urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{network.port}", query="heartbeat=10")))
    yield stage
    network.thaw()
    stage.close()


@pytest.fixture
def near(rabbit_url: str) -> Iterator[Stage]:
    """A stage on RabbitMQ itself."""
    stage = Stage(rabbit_url)
    yield stage
    stage.close()


@pytest.fixture
def file_stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage on a broker file."""
    stage = Stage(f"sqlite:///{tmp_path}/broker.db")
    yield stage
    stage.close()


@pytest.fixture
def child_environment() -> dict[str, str]:
    """Environment of a child process that imports this checkout."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
