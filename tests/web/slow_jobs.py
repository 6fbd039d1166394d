"""A worker for browser tests, whose jobs wait for the test: a job goes on when its gate (a file) is there."""

from __future__ import annotations

from pathlib import Path

from tickwork import JobContext, PermanentError, Worker

worker = Worker("gate-worker")


@worker.job
def gated(ctx: JobContext, gate: str) -> dict[str, int]:
    """Waits for its gate, telling how far it is."""
    ctx.log.info("waiting at the gate")
    ctx.progress(0.4, "at the gate")
    while not Path(gate).exists():
        ctx.raise_if_cancelled()
        ctx.sleep(0.05)
    ctx.log.info("went through")
    return {"rows": 42}


@worker.job
def broken(ctx: JobContext, reason: str = "no such month") -> None:
    """Fails for good."""
    raise PermanentError(reason)
