"""The Oban peer's producer: `enqueue` per run, or `enqueue_many` per batch."""

import asyncio

import uvloop
from bench_jobs import Nothing, open_pool
from oban import Oban

from bench.protocol import serve


async def enqueue(oban: Oban, runs: int, batch: int) -> None:
    """Enqueue `runs` jobs in calls of `batch`."""
    for start in range(0, runs, batch):
        if batch == 1:
            await oban.enqueue(Nothing.new({"number": start}))
        else:
            await oban.enqueue_many([Nothing.new({"number": n}) for n in range(start, min(start + batch, runs))])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        client = Oban(pool=runner.run(open_pool(2)))
        serve(lambda runs, batch: runner.run(enqueue(client, runs, batch)))
