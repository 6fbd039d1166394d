"""The Oban peer's job that does nothing, and the pool that worker and producer share the settings of."""

import os

import orjson
from oban import Oban, worker
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool

# As `oban start` does.
set_json_dumps(orjson.dumps)
set_json_loads(orjson.loads)


@worker(queue="bench")
class Nothing:
    """Do nothing."""

    async def process(self, job: object) -> None:
        """Return at once."""


async def open_pool(size: int) -> AsyncConnectionPool:
    """A pool that is connected already."""
    return await Oban.create_pool(os.environ["DATABASE_URL"], min_size=size, max_size=10)
