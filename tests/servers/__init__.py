"""Private PostgreSQL, RabbitMQ and Redis servers for tests, fault injection and benchmarks.

Each lives in a temporary folder of its own on free loopback ports, and never meets a server that the machine
already runs. `with Postgres() as server: server.url` is the whole interface for most callers; fault tests also
`kill`, `pause`, `resume`, `start` and `wipe`. Run a command beside all three with
`python -m tests.servers run -- COMMAND`.
"""

from tests.servers.base import Server, ServerMissing
from tests.servers.postgres import Postgres
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis

__all__ = ["Postgres", "RabbitMQ", "Redis", "Server", "ServerMissing"]
