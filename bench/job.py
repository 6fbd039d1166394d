"""Tickwork's side: the job that does nothing. Loaded by the worker as `bench.job:worker`; imports no Django."""

from tickwork import Worker

worker = Worker("bench")


@worker.job
async def nothing(number: int) -> None:
    """Do nothing."""
