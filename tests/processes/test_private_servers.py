"""The private servers do what fault tests count on: data survive a kill, nothing survives a wipe, a pause is silent."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import psycopg
import pytest

from tests.left_out import leave_out
from tests.servers import Postgres, RabbitMQ, Redis, Server, ServerMissing
from tests.servers.base import process_tree
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(params=[Postgres, RabbitMQ, Redis])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    try:
        made: Server = request.param()
    except ServerMissing as error:
        leave_out(str(error))
    with made:
        yield made


def remember(server: Server) -> None:
    """Leave a mark in the server that is on the disk when this returns."""
    if isinstance(server, Postgres):
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE mark AS SELECT 1 AS one")
    if isinstance(server, RabbitMQ):
        with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
            connection.channel().queue_declare("mark", durable=True, arguments={"x-queue-type": "quorum"})


def remembers(server: Server) -> bool:
    """Whether the mark is there."""
    if isinstance(server, Postgres):
        with psycopg.connect(server.url) as connection:
            found = connection.execute("SELECT to_regclass('mark')").fetchone()
            return found is not None and found[0] is not None
    if isinstance(server, RabbitMQ):
        try:
            with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
                connection.channel().queue_declare("mark", passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True
    return False


def test_a_server_is_silent_while_paused_keeps_its_data_over_a_kill_and_loses_them_when_wiped(server: Server) -> None:
    remember(server)
    server.pause()
    assert not server.answers()
    server.resume()
    eventually(server.answers)
    first = server.pid
    server.kill()
    assert not server.answers()
    server.start()
    assert server.pid != first
    assert remembers(server) is not isinstance(server, Redis)
    server.wipe()
    eventually(server.answers)
    assert not remembers(server)


def test_a_closed_server_leaves_no_process_and_no_folder(server: Server) -> None:
    members = process_tree(server.pid)
    assert members[0] == server.pid
    server.close()
    assert not server.running
    assert not server.answers()
    assert not server.home.exists()
