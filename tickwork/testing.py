"""Run a job function in a test: same data check, same context, same judgement as a worker, and no broker.

run = run_job(build_report, month="2026-01")
assert run.outcome == "completed"
assert run.result == {"rows": 42}
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from tickwork.contracts import Dispatch, ErrorInfo, Log, Outcome, Progress
from tickwork.ids import uuid7
from tickwork.worker.attempt import Attempt
from tickwork.worker.context import JobContext
from tickwork.worker.execution import Executor
from tickwork.worker.jobs import JOB_ATTRIBUTE, Job, make_job
from tickwork.worker.outcome import Ended, StopKind


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """How it went: `result` as JSON would give it back, `logs` and `progress` in order, `error` unless completed."""

    outcome: Outcome
    result: Any = None
    error: ErrorInfo | None = None
    logs: list[Log] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)


class _Notes:
    def __init__(self) -> None:
        self.logs: list[Log] = []
        self.steps: list[Progress] = []

    def log(self, event: Log) -> None:
        self.logs.append(event)

    def progress(self, event: Progress) -> None:
        self.steps.append(event)


def run_job(
    function: Callable[..., Any],
    /,
    *,
    attempt: int = 1,
    max_attempts: int = 3,
    scheduled_for: datetime | None = None,
    timeout: float | None = None,
    cancel_after: float | None = None,
    **data: Any,
) -> JobRun:
    """Run one attempt of a job function, decorated or not, with these job data, and wait for its end.

    timeout: seconds; by default what the job declares. cancel_after: cancel it after so many seconds. An isolated job
    runs in this process. Never raises what the job raises: look at `outcome` and `error`.
    """
    declared: Job = getattr(function, JOB_ATTRIBUTE, None) or make_job(function)
    job = make_job(function, name=declared.name, timeout=declared.timeout_seconds)
    dispatch = Dispatch(
        id=str(uuid7()),
        job_id=str(uuid7()),
        job_name=job.name,
        worker="test",
        job_type=job.name,
        attempt=attempt,
        max_attempts=max_attempts,
        data=msgspec.to_builtins(data),
        scheduled_for=scheduled_for,
    )
    notes = _Notes()
    ends: list[Ended] = []
    over = threading.Event()

    def on_end(_: Attempt, ended: Ended) -> None:
        ends.append(ended)
        over.set()

    seconds = timeout if timeout is not None else job.timeout_seconds
    context = JobContext(dispatch, notes, timeout_seconds=seconds)
    running = Attempt(job, context, dispatch.data, timeout_seconds=seconds, on_start=lambda _: None, on_end=on_end)
    executor = Executor(threads=1)
    try:
        executor.start([running])
        if cancel_after is not None and not over.wait(cancel_after):
            executor.stop(running, StopKind.CANCEL, "cancelled by the test")
        over.wait()
    finally:
        executor.close()
    ended = ends[0]
    return JobRun(
        outcome=ended.outcome,
        result=msgspec.json.decode(ended.result),
        error=ended.error,
        logs=notes.logs,
        progress=notes.steps,
    )
