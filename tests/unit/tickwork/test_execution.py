"""Running attempts on the loop and in threads: every kind of end, timeouts, cancellation, what does not stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.unit.tickwork.parts import Notes, dispatch
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork import JobContext, PermanentError
from tickwork.worker.attempt import Attempt
from tickwork.worker.execution import Executor
from tickwork.worker.jobs import make_job
from tickwork.worker.outcome import Ended, StopKind


class Stage:
    """An executor, and one attempt at a time on it."""

    def __init__(self) -> None:
        self.executor = Executor(threads=2, max_result_bytes=1000)
        self.begun = threading.Event()
        self.over = threading.Event()
        self.ends: list[Ended] = []

    def begin(self, function: Callable[..., Any], timeout: float | None = None, **data: Any) -> Attempt:
        """Start an attempt of this function."""
        self.begun, self.over, self.ends = threading.Event(), threading.Event(), []
        ends, over, begun = self.ends, self.over, self.begun

        def on_end(_: Attempt, ended: Ended) -> None:
            ends.append(ended)
            over.set()

        attempt = Attempt(
            make_job(function),
            JobContext(dispatch(data=data), Notes(), timeout_seconds=timeout),
            data,
            timeout_seconds=timeout,
            on_start=lambda _: begun.set(),
            on_end=on_end,
        )
        self.executor.start([attempt])
        return attempt

    def end(self) -> Ended:
        """How it ended."""
        assert self.over.wait(PATIENCE_SECONDS)
        return self.ends[0]

    def run(self, function: Callable[..., Any], timeout: float | None = None, **data: Any) -> Ended:
        self.begin(function, timeout, **data)
        return self.end()


@pytest.fixture
def stage() -> Iterator[Stage]:
    """An executor of this test."""
    stage = Stage()
    yield stage
    stage.executor.close()


async def double(ctx: JobContext, n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def triple(n: int) -> int:
    return 3 * n


def test_async_and_sync_jobs_return_their_results(stage: Stage) -> None:
    assert msgspec.json.decode(stage.run(double, n=2).result) == 4
    assert msgspec.json.decode(stage.run(triple, n=2).result) == 6


def test_jobs_know_which_attempt_they_run_in(stage: Stage) -> None:
    def ask(ctx: JobContext) -> bool:
        return ctx.started_at is not None and threading.current_thread().name.startswith("tickwork-job")

    assert bytes(stage.run(ask).result) == b"true"


def test_data_that_do_not_fit_fail_for_good_without_calling_the_job(stage: Stage) -> None:
    for function in (double, triple):
        error = stage.run(function, n="x").error
        assert error is not None
        assert (error.message, error.retryable, error.traceback) == (
            "job data: field 'n': Expected 'int', got 'str'",
            False,
            "",
        )


@pytest.mark.parametrize("error", [PermanentError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_whatever_a_job_raises_fails_its_attempt_and_nothing_else(stage: Stage, error: BaseException) -> None:
    async def on_loop() -> None:
        raise error

    def in_thread() -> None:
        raise error

    for function in (on_loop, in_thread):
        ended = stage.run(function)
        assert ended.error is not None
        assert (ended.outcome, ended.error.type.rpartition(".")[2]) == ("failed", type(error).__name__)
    assert stage.run(double, n=1).outcome == "completed"
    assert stage.run(triple, n=1).outcome == "completed"


def test_a_result_over_the_limit_fails(stage: Stage) -> None:
    def large() -> str:
        return "x" * 2000

    error = stage.run(large).error
    assert error is not None
    assert error.type == "ResultTooLarge"


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def sleep_long(ctx: JobContext) -> None:
    ctx.sleep(3600)


@pytest.mark.parametrize("function", [wait_for_ever, sleep_long])
def test_an_attempt_out_of_time_is_stopped(stage: Stage, function: Callable[..., Any]) -> None:
    ended = stage.run(function, timeout=0.1)
    assert ended.error is not None
    assert (ended.outcome, ended.error.message) == ("timed_out", "ran longer than its timeout of 0.1 s")


@pytest.mark.parametrize("function", [wait_for_ever, sleep_long])
@pytest.mark.parametrize("kind", [StopKind.CANCEL, StopKind.SHUTDOWN])
def test_an_attempt_that_is_told_to_stop_stops(stage: Stage, function: Callable[..., Any], kind: StopKind) -> None:
    attempt = stage.begin(function)
    assert stage.begun.wait(PATIENCE_SECONDS)
    stage.executor.stop(attempt, kind, "enough")
    ended = stage.end()
    assert ended.error is not None
    assert (ended.outcome, ended.error.message) == (kind.value, "enough")


def test_an_async_job_can_clean_up_when_it_is_stopped(stage: Stage) -> None:
    cleaned: list[str] = []

    async def careful(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(ctx.cancel_reason)

    attempt = stage.begin(careful)
    assert stage.begun.wait(PATIENCE_SECONDS)
    stage.executor.stop(attempt, StopKind.CANCEL, "enough")
    assert stage.end().outcome == "cancelled"
    assert cleaned == ["enough"]


def test_a_job_that_finished_without_noticing_that_it_was_cancelled_is_completed(stage: Stage) -> None:
    go_on = threading.Event()

    def busy() -> str:
        go_on.wait(PATIENCE_SECONDS)
        return "done"

    attempt = stage.begin(busy)
    assert stage.begun.wait(PATIENCE_SECONDS)
    stage.executor.stop(attempt, StopKind.CANCEL, "too late")
    go_on.set()
    assert stage.end().outcome == "completed"


def test_what_does_not_stop_is_reported_and_left_behind_and_others_run_on(stage: Stage) -> None:
    let_go = threading.Event()

    def stubborn() -> None:
        let_go.wait(2 * PATIENCE_SECONDS)

    for _ in range(3):  # more than there are threads
        attempt = stage.begin(stubborn)
        assert stage.begun.wait(PATIENCE_SECONDS)
        stage.executor.stop(attempt, StopKind.TIMEOUT, "out of time", grace_seconds=0.05)
        assert stage.end().outcome == "timed_out"
    eventually(lambda: stage.executor.abandoned == 3)
    assert stage.run(triple, n=1).outcome == "completed"
    let_go.set()


def test_an_async_job_that_ignores_its_cancellation_is_left_behind(stage: Stage) -> None:
    let_go = threading.Event()

    async def stubborn() -> None:
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    attempt = stage.begin(stubborn)
    assert stage.begun.wait(PATIENCE_SECONDS)
    stage.executor.stop(attempt, StopKind.CANCEL, "enough", grace_seconds=0.05)
    assert stage.end().outcome == "cancelled"
    assert stage.run(double, n=1).outcome == "completed"
    let_go.set()


def test_an_attempt_that_is_stopped_before_it_begins_never_runs(stage: Stage) -> None:
    ran: list[int] = []
    gate = threading.Event()

    async def blocking() -> None:
        gate.wait(PATIENCE_SECONDS)

    async def late() -> None:
        ran.append(1)

    stage.begin(blocking)
    assert stage.begun.wait(PATIENCE_SECONDS)
    attempt = stage.begin(late)
    stage.executor.stop(attempt, StopKind.CANCEL, "enough")
    gate.set()
    assert stage.end().outcome == "cancelled"
    assert ran == []


def test_an_async_attempt_that_is_stopped_before_its_first_step_ends_at_once(stage: Stage) -> None:
    gate = threading.Event()

    async def blocking() -> None:
        gate.wait(PATIENCE_SECONDS)

    async def never_begun() -> None:
        raise AssertionError("it was told to stop before")

    stage.begin(blocking)
    assert stage.begun.wait(PATIENCE_SECONDS)
    attempt = stage.begin(never_begun)  # its task is made and cancelled in the same turn of the loop
    stage.executor.stop(attempt, StopKind.CANCEL, "enough", grace_seconds=PATIENCE_SECONDS)
    gate.set()
    assert stage.end().outcome == "cancelled"
    assert stage.executor.abandoned == 0


def test_a_timeout_of_centuries_does_not_disturb_the_others(stage: Stage) -> None:
    stage.begin(wait_for_ever, timeout=1e11)
    assert stage.begun.wait(PATIENCE_SECONDS)
    assert stage.run(sleep_long, timeout=0.1).outcome == "timed_out"


def test_a_blocked_loop_is_noticed(stage: Stage) -> None:
    gate = threading.Event()

    async def blocking() -> None:
        gate.wait(PATIENCE_SECONDS)

    stage.begin(blocking)
    assert stage.begun.wait(PATIENCE_SECONDS)
    assert eventually(lambda: stage.executor.loop_blocked_seconds() > 0)
    gate.set()
    stage.end()
    assert eventually(lambda: stage.executor.loop_blocked_seconds() == 0)


def test_many_attempts_all_end(stage: Stage) -> None:
    ends: list[Ended] = []
    jobs = [make_job(double), make_job(triple)]

    def attempt(number: int) -> Attempt:
        context = JobContext(dispatch(data={"n": number}), Notes(), timeout_seconds=60)
        return Attempt(
            jobs[number % 2],
            context,
            {"n": number},
            timeout_seconds=60,
            on_start=lambda _: None,
            on_end=lambda _, ended: ends.append(ended),
        )

    stage.executor.start([attempt(number) for number in range(1000)])
    eventually(lambda: len(ends) == 1000)
    assert {ended.outcome for ended in ends} == {"completed"}


def test_abandoning_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    let_go = threading.Event()

    def stubborn() -> None:
        let_go.wait(2 * PATIENCE_SECONDS)

    attempt = stage.begin(stubborn)
    assert stage.begun.wait(PATIENCE_SECONDS)
    with caplog.at_level(logging.ERROR):
        stage.executor.stop(attempt, StopKind.CANCEL, "enough", grace_seconds=0.05)
        eventually(lambda: "attempt.abandoned" in caplog.text)
    let_go.set()
