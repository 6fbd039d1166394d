"""What a job sees: log lines with limits, progress, cancellation, forwarded standard logging."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.tickwork.parts import Notes, dispatch
from tests.waiting import PATIENCE_SECONDS
from tickwork.errors import JobCancelled
from tickwork.worker.context import ForwardingHandler, JobContext, current_job


def test_identity_comes_from_the_message() -> None:
    due = datetime(2026, 11, 1, tzinfo=UTC)
    context = JobContext(dispatch(attempt=2, scheduled_for=due), Notes(), timeout_seconds=60)
    context.started_at = due
    assert (context.id, context.idempotency_key) == (context.dispatch.id, context.dispatch.id)
    assert (context.attempt, context.max_attempts, context.job_name) == (2, 3, "a job")
    assert (context.scheduled_for, context.deadline) == (due, due + timedelta(seconds=60))


def test_log_lines_are_numbered_and_carry_fields() -> None:
    notes = Notes()
    context = JobContext(dispatch(), notes)
    context.log.info("first", event="x", level=3)
    context.log.error("second")
    assert [(line.seq, line.level, line.message, line.fields) for line in notes.logs] == [
        (1, "info", "first", {"event": "x", "level": 3}),
        (2, "error", "second", {}),
    ]


def test_too_many_lines_end_with_one_that_says_so() -> None:
    notes = Notes()
    context = JobContext(dispatch(), notes, max_log_lines=2)
    for number in range(5):
        context.log.info(str(number))
    assert [line.message for line in notes.logs] == ["0", "1", "log cut: more than 2 lines"]


def test_long_lines_and_large_fields_are_cut() -> None:
    notes = Notes()
    context = JobContext(dispatch(), notes)
    context.log.info("é" * 20_000, big="x" * 9000)
    (line,) = notes.logs
    assert 8000 <= len(line.message.encode()) <= 8200
    assert line.fields == {"cut": "fields of 9010 bytes left out, the limit is 8192"}


def test_fields_that_json_cannot_hold_are_written_as_text() -> None:
    notes = Notes()
    context = JobContext(dispatch(), notes)
    context.log.info("a\ud800", thing=object, bad="\udfff", when=datetime(2026, 1, 1, tzinfo=UTC))
    (line,) = notes.logs
    assert line.message == "a?"
    assert "class 'object'" in line.fields["thing"]


def test_progress_may_be_called_or_awaited_and_stays_between_0_and_1() -> None:
    notes = Notes()
    context = JobContext(dispatch(), notes)

    async def job() -> None:
        await context.progress(0.5, "half way")

    context.progress(7)
    asyncio.run(job())
    assert [(step.fraction, step.message) for step in notes.steps] == [(1.0, ""), (0.5, "half way")]


def test_cancellation_is_seen_and_raised_with_its_reason() -> None:
    context = JobContext(dispatch(), Notes())
    context.raise_if_cancelled()
    assert not context.cancelled
    assert not context.observed_stop
    context.cancel("asked by anna")
    context.cancel("later")
    assert context.cancel_reason == "asked by anna"
    with pytest.raises(JobCancelled, match="asked by anna"):
        context.raise_if_cancelled()
    assert context.observed_stop


def test_a_sleeping_job_wakes_when_it_is_cancelled() -> None:
    context = JobContext(dispatch(), Notes())
    ended: list[str] = []

    def job() -> None:
        try:
            context.sleep(3600)
        except JobCancelled as error:
            ended.append(str(error))

    thread = threading.Thread(target=job)
    thread.start()
    context.cancel("enough")
    thread.join(PATIENCE_SECONDS)
    assert ended == ["enough"]


async def test_sleeping_in_an_async_job_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"await asyncio\.sleep"):
        JobContext(dispatch(), Notes()).sleep(0)


def test_a_job_that_is_over_says_nothing_more() -> None:
    notes = Notes()
    context = JobContext(dispatch(), notes)
    context.closed = True
    context.log.info("late")
    context.progress(1)
    assert (notes.logs, notes.steps) == ([], [])


@pytest.fixture
def forwarding() -> Iterator[None]:
    """Standard logging is forwarded, as in a running worker."""
    root, handler = logging.getLogger(), ForwardingHandler()
    level = root.level
    root.addHandler(handler)
    root.setLevel("DEBUG")
    yield
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.usefixtures("forwarding")
def test_standard_logging_of_job_code_becomes_lines_of_its_attempt() -> None:
    notes = Notes()
    token = current_job.set(JobContext(dispatch(), notes))
    logging.getLogger("library").debug("not this")
    logging.getLogger("tickwork.worker").info("nor this")
    logging.getLogger("library").warning("value %d", 3)
    current_job.reset(token)
    logging.getLogger("library").warning("outside")
    assert [(line.level, line.message, line.fields) for line in notes.logs] == [
        ("warning", "value 3", {"logger": "library"})
    ]
