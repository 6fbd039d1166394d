"""The helper with which authors test their jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime

import pytest

from tickwork import JobContext, PermanentError, Worker, run_job

worker = Worker("reports")


@worker.job(timeout=300)
async def build_report(ctx: JobContext, month: date, fmt: str = "pdf") -> dict[str, object]:
    ctx.log.info("building", month=month)
    await ctx.progress(0.5, "half way")
    return {"month": month, "fmt": fmt, "attempt": ctx.attempt}


@worker.job(isolation="process", name="other_name")
def refuse() -> None:
    raise PermanentError("never")


def test_a_job_runs_with_its_data_and_tells_what_it_said() -> None:
    run = run_job(build_report, month="2026-11-01", attempt=2)
    assert run.outcome == "completed"
    assert run.result == {"month": "2026-11-01", "fmt": "pdf", "attempt": 2}
    assert [(line.message, line.fields) for line in run.logs] == [("building", {"month": "2026-11-01"})]
    assert [step.message for step in run.progress] == ["half way"]


def test_data_may_be_given_as_python_values() -> None:
    assert run_job(build_report, month=date(2026, 11, 1)).result["month"] == "2026-11-01"


def test_failures_are_values() -> None:
    for run, message in (
        (run_job(refuse), "never"),
        (run_job(build_report), "job data: missing required field 'month'"),
    ):
        assert run.error is not None
        assert (run.outcome, run.error.message, run.error.retryable) == ("failed", message, False)


async def for_ever(ctx: JobContext) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("options", "outcome"), [({"timeout": 0.05}, "timed_out"), ({"cancel_after": 0.05}, "cancelled")]
)
def test_timeouts_and_cancellation_can_be_tried(options: dict[str, float], outcome: str) -> None:
    assert run_job(for_ever, **options).outcome == outcome  # type: ignore[arg-type]


def test_the_due_time_can_be_given() -> None:
    def due(ctx: JobContext) -> datetime | None:
        return ctx.scheduled_for

    assert run_job(due, scheduled_for=datetime(2026, 11, 1, tzinfo=UTC)).result == "2026-11-01T00:00:00Z"
