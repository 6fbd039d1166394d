"""Jobs in child processes: results and lines come back, and everything can be ended, grandchildren too."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.servers.base import is_running
from tests.unit.tickwork.parts import Notes, dispatch
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork import JobContext
from tickwork.worker.attempt import Attempt
from tickwork.worker.execution import Executor
from tickwork.worker.jobs import load_worker
from tickwork.worker.outcome import Ended, StopKind

JOBS = """
import asyncio, logging, os, subprocess, sys, time
from pathlib import Path
from tickwork import JobContext, PermanentError, Worker

worker = Worker("isolated")
job = worker.job(isolation="process")

@job
def add(ctx: JobContext, a: int, b: int = 2) -> int:
    print("print does no harm")
    ctx.log.info("adding", a=a)
    logging.getLogger("library").info("helped")
    ctx.progress(0.5, "half way")
    return a + b

@job
async def later(ctx: JobContext) -> int:
    await asyncio.sleep(0)
    return ctx.attempt

@job
def refuse(ctx: JobContext) -> None:
    raise PermanentError("never")

@job
def leave(ctx: JobContext, status: int) -> None:
    os._exit(status)

@job
def killed(ctx: JobContext) -> None:
    os.kill(os.getpid(), 9)

@job
def killed_as_a_parent(ctx: JobContext, note: str) -> None:
    Path(note).write_text(str(subprocess.Popen(["sleep", "3600"]).pid))
    os.kill(os.getpid(), 9)

@job
def sleeps(ctx: JobContext, note: str) -> None:
    try:
        Path(note).write_text(str(os.getpid()))
        time.sleep(3600)
    finally:
        Path(note).write_text("cleaned up")

@job
async def sleeps_async(ctx: JobContext, note: str) -> None:
    try:
        Path(note).write_text(str(os.getpid()))
        await asyncio.sleep(3600)
    finally:
        Path(note).write_text("cleaned up")

@job
def stubborn(ctx: JobContext, note: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(note).write_text(f"{os.getpid()} {child.pid}")
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            continue

@job
def large(ctx: JobContext) -> str:
    return "x" * 500_000
"""


class Stage:
    """An executor of the worker in JOBS."""

    def __init__(self) -> None:
        worker = load_worker("isolated_jobs_of_a_test:worker")
        self.jobs = worker.jobs
        self.executor = Executor(threads=2, target=worker.find_target())
        self.notes = Notes()
        self.over = threading.Event()
        self.ends: list[Ended] = []

    def begin(self, name: str, timeout: float | None = None, **data: Any) -> Attempt:
        def on_end(_: Attempt, ended: Ended) -> None:
            self.ends.append(ended)
            self.over.set()

        context = JobContext(dispatch(name, data=data, attempt=2), self.notes, timeout_seconds=timeout)
        attempt = Attempt(
            self.jobs[name], context, data, timeout_seconds=timeout, on_start=lambda _: None, on_end=on_end
        )
        self.executor.start([attempt])
        return attempt

    def end(self) -> Ended:
        assert self.over.wait(PATIENCE_SECONDS)
        return self.ends[0]

    def run(self, name: str, timeout: float | None = None, **data: Any) -> Ended:
        self.begin(name, timeout, **data)
        return self.end()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The stage, with its module on the path of this process and so of its children."""
    (tmp_path / "isolated_jobs_of_a_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "isolated_jobs_of_a_test", raising=False)
    stage = Stage()
    yield stage
    stage.executor.close()


def test_a_child_returns_its_result_and_what_it_said(stage: Stage) -> None:
    assert msgspec.json.decode(stage.run("add", a=1).result) == 3
    assert [(line.seq, line.message, line.fields) for line in stage.notes.logs] == [
        (1, "adding", {"a": 1}),
        (2, "helped", {"logger": "library"}),
    ]
    assert [step.fraction for step in stage.notes.steps] == [0.5]


def test_async_jobs_run_in_a_child_too(stage: Stage) -> None:
    assert bytes(stage.run("later").result) == b"2"


@pytest.mark.parametrize(
    ("name", "data", "kind", "message"),
    [
        ("refuse", {}, "tickwork.errors.PermanentError", "never"),
        ("add", {"a": "x"}, "tickwork.worker.schema.InvalidData", "job data: field 'a': Expected 'int', got 'str'"),
        ("leave", {"status": 3}, "ChildProcessDied", "the child process left with status 3 before the job ended"),
        ("killed", {}, "ChildProcessDied", "the child process was ended by SIGKILL (out of memory?)"),
        ("large", {}, "ResultTooLarge", "the result has 500002 bytes, the limit is 262144"),
    ],
)
def test_a_child_that_fails_is_told_apart(
    stage: Stage, name: str, data: dict[str, Any], kind: str, message: str
) -> None:
    ended = stage.run(name, **data)
    assert ended.error is not None
    assert (ended.outcome, ended.error.type) == ("failed", kind)
    assert ended.error.message.startswith(message)


@pytest.mark.parametrize("name", ["sleeps", "sleeps_async"])
def test_a_cancelled_child_can_clean_up(stage: Stage, tmp_path: Path, name: str) -> None:
    note = tmp_path / "note"
    attempt = stage.begin(name, note=str(note))
    eventually(lambda: note.exists() and note.read_text())
    stage.executor.stop(attempt, StopKind.CANCEL, "enough", grace_seconds=PATIENCE_SECONDS)
    assert stage.end().outcome == "cancelled"
    assert note.read_text() == "cleaned up"


def test_a_child_out_of_time_that_does_not_listen_is_killed_with_its_own_children(stage: Stage, tmp_path: Path) -> None:
    note = tmp_path / "note"
    attempt = stage.begin("stubborn", note=str(note))
    eventually(lambda: note.exists() and " " in note.read_text())
    stage.executor.stop(attempt, StopKind.TIMEOUT, "out of time", grace_seconds=0.1)
    assert stage.end().outcome == "timed_out"
    for pid in map(int, note.read_text().split()):
        eventually(lambda pid=pid: not is_running(pid), what=f"process {pid} is gone")  # type: ignore[misc]


def test_what_a_killed_child_had_started_is_ended_before_its_end_is_told(stage: Stage, tmp_path: Path) -> None:
    note = tmp_path / "note"
    assert stage.run("killed_as_a_parent", note=str(note)).outcome == "failed"
    eventually(lambda: not is_running(int(note.read_text())))


def test_a_child_ends_when_its_worker_is_gone(stage: Stage, tmp_path: Path) -> None:
    note = tmp_path / "note"
    attempt = stage.begin("sleeps", note=str(note))
    pid = int(eventually(lambda: note.exists() and note.read_text()))
    process = attempt.child._process  # type: ignore[union-attr]
    process.stdin.close()  # what the kernel does when the worker dies
    ended = stage.end()
    assert ended.error is not None
    assert ended.error.type == "ChildProcessDied"
    assert not is_running(pid)
