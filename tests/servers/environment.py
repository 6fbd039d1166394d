"""All private servers at once, described by environment variables that tests and programs read.

Called by `python -m tests` and `python -m tests.servers`. A server whose variable is already set is not started:
that one is used.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.servers.base import Server, ServerMissing
from tests.servers.postgres import Postgres
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis

DATABASE = "TEST_DATABASE_URL"
BROKER = "TEST_BROKER_URL"
BROKER_HOME = "TEST_BROKER_HOME"
REDIS = "TEST_REDIS_URL"
# Set by a fast run: fixtures then start nothing, and tests that need a server are left out.
NO_SERVERS = "TEST_NO_SERVERS"

_SERVERS: dict[str, type[Server]] = {DATABASE: Postgres, BROKER: RabbitMQ, REDIS: Redis}


@dataclass
class Started:
    """`variables`: what was started, as environment; `missing`: a sentence for each server that could not be."""

    variables: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


@contextmanager
def started() -> Iterator[Started]:
    """Start every server that the environment does not name yet, side by side; close them at the end."""
    result = Started()
    with ExitStack() as stack:
        # A terminated run takes the ordinary way out, past the callbacks below.
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)))
        servers: dict[str, Server] = {}
        for variable, kind in _SERVERS.items():
            if os.environ.get(variable):
                continue
            try:
                servers[variable] = kind()
            except ServerMissing as error:
                result.missing.append(str(error))
                continue
            stack.callback(servers[variable].close)
            servers[variable].launch()
        for variable, server in servers.items():
            server.wait_until_ready()
            result.variables[variable] = server.url
            if isinstance(server, RabbitMQ):
                result.variables[BROKER_HOME] = str(server.home)
        yield result
