"""One worker process of the Oban peer: what `oban start` does, without the log line of each job."""

import asyncio
import os
import signal

import uvloop
from bench_jobs import open_pool
from oban import Oban


async def main() -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    pool = await open_pool(2)
    async with Oban(pool=pool, queues={"bench": int(os.environ.get("BENCH_LIMIT", "100"))}):
        await stop.wait()
    await pool.close()


uvloop.run(main())
