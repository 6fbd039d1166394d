"""Servers of this test process for clusters, started on first use, and a cluster for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import own_name
from tests.left_out import leave_out
from tests.processes.cluster import Cluster, Servers
from tests.servers import ServerMissing
from tests.servers.environment import NO_SERVERS


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """PostgreSQL, RabbitMQ and Redis that a test may kill and wipe: they belong to this test process alone."""
    if os.environ.get(NO_SERVERS):
        leave_out("no servers in a fast run")
    try:
        made = Servers()
    except ServerMissing as error:
        leave_out(str(error))
    try:
        yield made.start()
    finally:
        made.close()


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(servers: Servers, tmp_path: Path) -> Iterator[MakeCluster]:
    """A function that makes this test's cluster; its arguments are settings."""
    made: list[Cluster] = []

    def make(settings: Mapping[str, str] | None = None) -> Cluster:
        for server in servers.all:
            server.start()
        made.append(Cluster(servers, tmp_path, name=own_name(), settings=settings))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    """A cluster with brisk settings; nothing runs in it yet."""
    return make_cluster()
