"""A worker process from start to end, on the embedded broker: what it runs, reports, asks, obeys and gives back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.processes.worker_stage import WorkerStage
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork import contracts
from tickwork.__main__ import main
from tickwork.broker import topology
from tickwork.contracts import Finished, Heartbeat, Log, Registered, Started, Stopped


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[WorkerStage]:
    """The scheduler's side on a broker file of this test."""
    stage = WorkerStage(tmp_path, f"sqlite:///{tmp_path}/broker.db")
    yield stage
    stage.close()


def test_a_worker_registers_runs_and_reports(stage: WorkerStage) -> None:
    stage.start()
    (registered,) = stage.heard(Registered)
    assert [info.name for info in registered.job_types] == ["add", "wait_for", "isolated"]
    assert registered.job_types[0].data_schema["required"] == ["a"]
    good, bad, isolated = stage.order("add", a=1), stage.order("add", a="x"), stage.order("isolated")
    assert bytes(stage.finished(good).result) == b"3"
    assert stage.finished(good).started_at is not None
    assert stage.finished(bad).outcome == "failed"
    assert int(bytes(stage.finished(isolated).result)) != stage.processes[0].pid
    assert all(batch.worker == "staged" for batch in stage.batches)
    assert len({batch.instance for batch in stage.batches}) == 1


def test_a_running_attempt_is_named_by_heartbeats_and_its_lines_arrive(stage: WorkerStage, tmp_path: Path) -> None:
    stage.start()
    order = stage.order("wait_for", path=str(tmp_path / "go"))
    eventually(lambda: any((order.id, 1) in beat.running for beat in stage.heard(Heartbeat)))
    eventually(lambda: [line.message for line in stage.heard(Log, order)] == ["waiting"])
    assert len(stage.heard(Started, order)) == 1
    (tmp_path / "go").touch()
    assert stage.finished(order).outcome == "completed"


def test_a_cancelled_attempt_stops(stage: WorkerStage, tmp_path: Path) -> None:
    stage.start()
    order = stage.order("wait_for", path=str(tmp_path / "never"))
    eventually(lambda: stage.heard(Started, order))
    stage.cancel(order, "asked by anna")
    ended = stage.finished(order)
    assert ended.error is not None
    assert (ended.outcome, ended.error.message) == ("cancelled", "asked by anna")


def test_an_attempt_that_waits_for_a_slot_can_be_cancelled(stage: WorkerStage, tmp_path: Path) -> None:
    stage.start("--concurrency", "1")
    first = stage.order("wait_for", path=str(tmp_path / "go"))
    eventually(lambda: stage.heard(Started, first))
    second = stage.order("wait_for", path=str(tmp_path / "go"))
    eventually(lambda: any((second.id, 1) in beat.running for beat in stage.heard(Heartbeat)))
    stage.cancel(second, "not needed")
    assert stage.finished(second).outcome == "cancelled"
    (tmp_path / "go").touch()
    assert stage.finished(first).outcome == "completed"
    assert stage.runs(f"wait_for {second.id}") == 0


def test_poison_is_set_aside_and_the_worker_goes_on(stage: WorkerStage) -> None:
    stage.start()
    unknown = contracts.encode(msgspec.structs.replace(stage.order("add", a=1), job_type="other"))
    stage.send("add", b"{not json", "one")
    stage.send("add", unknown, "two")
    eventually(lambda: stage.broker.depth(topology.dead_letter_queue()) == 2)
    assert stage.finished(stage.order("add", a=1)).outcome == "completed"


def test_a_message_that_may_be_a_duplicate_is_asked_about(stage: WorkerStage) -> None:
    stage.start()
    done = stage.order("add", a=1)
    stage.finished(done)
    fresh = msgspec.structs.replace(done, id="0198c0de-0000-7000-8000-000000000001")
    stage.send("add", contracts.encode(fresh), fresh.id, **{contracts.HEADER_MAYBE_DUPLICATE: True})
    instance = stage.asked(fresh, "redelivered")
    stage.answer(fresh, "wait", instance)
    assert stage.runs(f"add {fresh.id}") == 0
    eventually(lambda: len(stage.heard(contracts.Inquiry, fresh)) >= 2)
    stage.answer(fresh, "run", instance)
    assert stage.finished(fresh).outcome == "completed"
    # A second first delivery of what this instance finished needs no question.
    stage.send("add", contracts.encode(done), done.id)
    assert stage.finished(stage.order("add", a=5)).outcome == "completed"
    assert stage.heard(contracts.Inquiry, done) == []
    # A copy that the scheduler sent does: perhaps the report was lost.
    stage.send("add", contracts.encode(done), done.id, **{contracts.HEADER_MAYBE_DUPLICATE: True})
    stage.answer(done, "drop", stage.asked(done, "redelivered"))
    eventually(lambda: stage.depth("add") == 0)
    assert stage.finished(stage.order("add", a=6)).outcome == "completed"
    assert stage.runs(f"add {done.id}") == 1


def test_what_ended_here_and_may_run_again_is_told_again_and_does_not_run(stage: WorkerStage) -> None:
    first = stage.start()
    order = stage.order("add", a=1)
    assert stage.finished(order).outcome == "completed"
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_SECONDS) == 0
    stage.start()
    told = len(stage.heard(Finished, order))
    stage.send("add", contracts.encode(order), order.id, **{contracts.HEADER_MAYBE_DUPLICATE: True})
    instance = stage.asked(order, "redelivered")
    stage.answer(order, "run", instance)
    eventually(lambda: len(stage.heard(Finished, order)) > told)
    last = [batch for batch in stage.batches if any(isinstance(event, Finished) for event in batch.events)][-1]
    assert last.instance == instance, "in the name of the one that may run it"
    assert {bytes(ended.result) for ended in stage.heard(Finished, order)} == {b"3"}
    eventually(lambda: [beat.running for beat in stage.heard(Heartbeat)][-1:] == [[]], what="it is let go of")
    assert (stage.depth("add"), stage.runs(f"add {order.id}")) == (0, 1)


def test_a_worker_that_has_said_goodbye_says_nothing_more(stage: WorkerStage) -> None:
    worker = stage.start(TICKWORK_WORKER_HEARTBEAT_SECONDS="0.1")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 0
    eventually(lambda: stage.heard(Stopped))
    assert isinstance(stage.batches[-1].events[-1], Stopped)


def test_after_a_kill_the_next_worker_asks_and_does_what_it_is_told(stage: WorkerStage, tmp_path: Path) -> None:
    stage.start().kill()
    first = stage.start("--concurrency", "2")
    orders = [stage.order("wait_for", path=str(tmp_path / "go")) for _ in range(2)]
    eventually(lambda: all(stage.heard(Started, order) for order in orders))
    first.kill()
    (tmp_path / "go").touch()
    stage.start()
    again, not_again = orders
    stage.answer(again, "run", stage.asked(again, "redelivered"))
    stage.answer(not_again, "drop", stage.asked(not_again, "redelivered"))
    assert stage.finished(again).outcome == "completed"
    eventually(lambda: stage.depth("wait_for") == 0)
    assert (stage.runs(f"wait_for {again.id}"), stage.runs(f"wait_for {not_again.id}")) == (2, 1)


def test_an_old_delivery_becomes_a_lease_and_a_lost_one_stops_the_job(stage: WorkerStage, tmp_path: Path) -> None:
    stage.start(TICKWORK_WORKER_LEASE_AFTER_SECONDS="0.3")
    kept, lost = (stage.order("wait_for", path=str(tmp_path / "go")) for _ in range(2))
    stage.answer(kept, "run", stage.asked(kept, "lease"))
    stage.answer(lost, "drop", stage.asked(lost, "lease"))
    ended = stage.finished(lost)
    assert ended.error is not None
    assert ended.outcome == "cancelled"
    assert ended.error.message.startswith("no longer held")
    (tmp_path / "go").touch()
    assert stage.finished(kept).outcome == "completed"


def test_a_stopping_worker_finishes_what_runs_and_gives_the_rest_back(stage: WorkerStage, tmp_path: Path) -> None:
    worker = stage.start("--concurrency", "1")
    running = stage.order("wait_for", path=str(tmp_path / "go"))
    eventually(lambda: stage.heard(Started, running))
    waiting = stage.order("add", a=1)
    worker.send_signal(signal.SIGTERM)
    eventually(lambda: stage.depth("add") == 1, what="the waiting one is given back")
    (tmp_path / "go").touch()
    assert stage.finished(running).outcome == "completed"
    assert worker.wait(PATIENCE_SECONDS) == 0
    eventually(lambda: stage.heard(Stopped))
    assert stage.depth("wait_for") == 0
    assert stage.heard(Finished, waiting) == []


def test_what_does_not_finish_in_time_is_interrupted(stage: WorkerStage, tmp_path: Path) -> None:
    worker = stage.start(TICKWORK_WORKER_SHUTDOWN_SECONDS="0.2")
    order = stage.order("wait_for", path=str(tmp_path / "never"))
    eventually(lambda: stage.heard(Started, order))
    worker.send_signal(signal.SIGINT)
    assert stage.finished(order).outcome == "interrupted"
    assert worker.wait(PATIENCE_SECONDS) == 0
    assert stage.depth("wait_for") == 0


def test_a_second_signal_ends_the_worker_at_once(stage: WorkerStage, tmp_path: Path) -> None:
    worker = stage.start("--concurrency", "1")
    stage.order("wait_for", path=str(tmp_path / "never"))
    eventually(lambda: stage.heard(Started))
    order = stage.order("add", a=1)
    eventually(lambda: stage.depth("add") == 0)  # at hand there
    worker.send_signal(signal.SIGTERM)
    eventually(lambda: stage.depth("add") == 1)  # given back: the first signal was heard
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 1
    assert stage.heard(Finished, order) == []


def test_a_worker_leaves_with_the_process_that_started_it(stage: WorkerStage) -> None:
    worker = stage.start("--exit-with-parent")
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(PATIENCE_SECONDS) == 0
    eventually(lambda: stage.heard(Stopped))


def test_the_health_command_tells_a_living_worker_from_a_dead_one(stage: WorkerStage, tmp_path: Path) -> None:
    path = str(tmp_path / "health.json")
    worker = stage.start("--health-file", path)
    eventually(lambda: os.path.exists(path) and main(["health", path]) == 0)
    worker.kill()
    worker.wait(PATIENCE_SECONDS)
    eventually(lambda: main(["health", path, "--max-age", "0.5"]) == 1)
