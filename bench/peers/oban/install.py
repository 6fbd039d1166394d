"""Make the Oban peer's tables."""

import asyncio

from bench_jobs import open_pool
from oban.schema import install


async def main() -> None:
    """Install the schema and leave."""
    pool = await open_pool(1)
    await install(pool)
    await pool.close()


asyncio.run(main())
