"""Runs a shipped job type with a worker's own context and data binding, but without a broker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tickwork import JobContext
from tickwork.builtin import worker
from tickwork.contracts import Dispatch, Log, Progress

OCCURRENCE = "0199c0de-0000-7000-8000-000000000001"


class Said:
    """Keeps what a job says."""

    def __init__(self) -> None:
        self.lines: list[Log] = []

    def log(self, event: Log) -> None:
        self.lines.append(event)

    def progress(self, event: Progress) -> None:
        pass

    @property
    def messages(self) -> list[str]:
        return [line.message for line in self.lines]


class Context(JobContext):
    """The context of the first attempt of OCCURRENCE; `said` is what the job has said so far."""

    def __init__(self) -> None:
        self.said = Said()
        super().__init__(
            Dispatch(
                id=OCCURRENCE, job_id="j", job_name="test", worker="builtin", job_type="any", attempt=1, max_attempts=3
            ),
            self.said,
        )


async def run(function: Callable[..., Any], *, ctx: JobContext | None = None, **data: Any) -> dict[str, Any]:
    """The result of one attempt of the job type `function` with these data."""
    job = worker.jobs[function.__name__]
    assert job.function is function
    result = job.call(ctx or Context(), data)
    if inspect.isawaitable(result):
        result = await result
    assert isinstance(result, dict)
    return result
