"""Reports out: batched and confirmed when the broker answers, stored and replayed in order when it did not."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.unit.tickwork.parts import Outside
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork import contracts
from tickwork.contracts import Event, Finished, Heartbeat, Log, Progress, Started
from tickwork.worker import reporting
from tickwork.worker.reporting import Reporter
from tickwork.worker.store import FINAL, Key, Row
from tickwork.worker.store_folder import open_store

AT = datetime(2026, 11, 1, tzinfo=UTC)
LIMIT = 1024**2


class Stage:
    """A reporter between a store and a broker that can go away."""

    def __init__(self, folder: Path) -> None:
        self.outside = Outside()
        self.settled: list[Key] = []
        self.returns: list[bool] = []
        self.store = open_store(folder, "w", LIMIT)
        self.reporter = Reporter(
            self.outside,
            self.store,
            worker="w",
            instance="w-1",
            on_settled=self.settled.extend,
            on_return=lambda: self.returns.append(True),
        )

    def tell(self, *events: Event) -> None:
        for event in events:
            self.reporter.event(event)

    def go_away(self) -> None:
        """The broker goes away, and the reporter knows it."""
        self.outside.away = True
        self.tell(started("probe"))
        eventually(lambda: not self.reporter.online)

    def come_back(self) -> None:
        self.outside.away = False
        self.reporter.kick()

    def close(self) -> None:
        self.outside.may_confirm.set()
        self.reporter.close(PATIENCE_SECONDS)
        self.store.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A running reporter with an empty store."""
    stage = Stage(tmp_path)
    stage.reporter.start()
    yield stage
    stage.close()


def started(id: str) -> Started:
    return Started(id=id, attempt=1, at=AT)


def finished(id: str) -> Finished:
    return Finished(id=id, attempt=1, at=AT, outcome="completed")


def line(id: str, seq: int = 1, size: int = 1) -> Log:
    return Log(id=id, attempt=1, at=AT, seq=seq, level="info", message="m" * size)


def test_an_attempt_is_settled_only_when_the_broker_has_confirmed_its_end(stage: Stage) -> None:
    stage.outside.may_confirm.clear()
    stage.tell(finished("a"))
    eventually(lambda: stage.outside.attempts == 1)
    assert stage.settled == []
    assert stage.store.waiting() == {("a", 1)}, "durable before it leaves"
    stage.outside.may_confirm.set()
    eventually(lambda: stage.settled == [("a", 1)])
    eventually(lambda: stage.store.waiting() == set())
    assert stage.store.ends_of([("a", 1)]) == {("a", 1): contracts.encode(finished("a"))}


def test_a_confirmed_end_leaves_the_store_also_when_only_heartbeats_follow(stage: Stage) -> None:
    stage.tell(finished("a"))
    eventually(lambda: stage.settled == [("a", 1)])

    def forgotten_while_hearts_beat() -> bool:
        stage.tell(Heartbeat(at=AT))
        return stage.store.waiting() == set()

    eventually(forgotten_while_hearts_beat)


def test_events_gather_while_a_batch_waits_for_its_confirm(stage: Stage) -> None:
    stage.outside.may_confirm.clear()
    stage.tell(started("a"))
    eventually(lambda: stage.outside.attempts == 1)
    stage.tell(started("b"), finished("b"), finished("a"))
    stage.outside.may_confirm.set()
    eventually(lambda: len(stage.settled) == 2)
    assert [batch.events for batch in stage.outside.batches] == [[started("a")], [finished("b"), finished("a")]]


def test_what_follows_a_message_closely_leaves_together_and_at_once_when_the_worker_leaves(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "SPACING_SECONDS", 3600.0)
    stage.tell(started("a"))
    eventually(lambda: stage.outside.batches)
    stage.tell(finished("a"))
    stage.tell(finished("b"))
    assert stage.reporter.close(PATIENCE_SECONDS)
    assert [batch.events for batch in stage.outside.batches] == [[started("a")], [finished("a"), finished("b")]]


def test_large_batches_are_sent_in_pieces(stage: Stage) -> None:
    stage.outside.may_confirm.clear()
    stage.tell(started("a"))
    eventually(lambda: stage.outside.attempts == 1)
    stage.tell(*[line("a", seq, 8000) for seq in range(100)])
    stage.outside.may_confirm.set()
    eventually(lambda: len(stage.outside.events) == 101)
    assert len(stage.outside.batches) >= 4


def test_while_the_broker_is_away_events_are_stored_and_come_in_order_afterwards(stage: Stage) -> None:
    stage.go_away()
    events: list[Event] = [started("a"), line("a"), finished("a"), started("b"), line("b"), finished("b")]
    for event in events:
        stage.tell(event)
        eventually(lambda: not len(stage.reporter._gathering))
    assert stage.settled == []
    stage.come_back()
    eventually(lambda: stage.settled == [("a", 1), ("b", 1)])
    assert stage.outside.events == [started("probe"), *events]
    assert stage.returns == [True]
    eventually(lambda: stage.reporter.pending_count == 0)


def test_new_events_queue_behind_stored_ones(stage: Stage) -> None:
    stage.go_away()
    stage.tell(*[finished(str(number)) for number in range(1200)])
    eventually(lambda: stage.store.pending_count == 1201)
    before = stage.outside.attempts
    stage.outside.may_confirm.clear()
    stage.come_back()
    eventually(lambda: stage.outside.attempts > before)
    stage.tell(finished("late"))
    stage.outside.may_confirm.set()
    eventually(lambda: ("late", 1) in stage.settled)
    assert stage.settled[:-1] == [(str(number), 1) for number in range(1200)]


def test_heartbeats_are_not_stored(stage: Stage) -> None:
    stage.go_away()
    stage.tell(Heartbeat(at=AT), finished("a"))
    eventually(lambda: stage.store.pending_count == 2)
    stage.come_back()
    eventually(lambda: stage.settled == [("a", 1)])
    assert not any(isinstance(event, Heartbeat) for event in stage.outside.events)


def test_a_heartbeat_leaves_beside_a_replay(stage: Stage) -> None:
    stage.go_away()
    stage.tell(finished("a"))
    eventually(lambda: stage.store.pending_count == 2)
    stage.outside.away = False
    stage.reporter._uplink.retry_at = 0.0
    stage.tell(Heartbeat(at=AT))
    eventually(lambda: Heartbeat(at=AT) in stage.outside.events and stage.settled == [("a", 1)])


def test_what_an_earlier_process_left_is_sent_first_and_under_its_name(tmp_path: Path) -> None:
    left = open_store(tmp_path, "w", LIMIT)
    body = b'{"type":"finished","id":"old","attempt":1,"at":"2026-11-01T00:00:00Z","outcome":"completed"}'
    left.add([Row(1, FINAL, "w-0", "old", 1, body, True)])
    left.close()
    stage = Stage(tmp_path)
    stage.tell(finished("new"))
    stage.reporter.start()
    eventually(lambda: stage.settled == [("old", 1), ("new", 1)])
    assert [batch.instance for batch in stage.outside.batches] == ["w-0", "w-1"]
    stage.close()


def test_what_a_dead_neighbour_left_is_sent_too(tmp_path: Path) -> None:
    first, dead = (open_store(tmp_path, "w", LIMIT) for _ in range(2))
    body = b'{"type":"finished","id":"old","attempt":1,"at":"2026-11-01T00:00:00Z","outcome":"completed"}'
    dead.add([Row(1, FINAL, "w-9", "old", 1, body, True)])
    first.close()
    dead.close()
    stage = Stage(tmp_path)
    stage.reporter.start()
    stage.reporter.kick()
    eventually(lambda: [batch.instance for batch in stage.outside.batches] == ["w-9"])
    stage.close()


def test_a_full_store_stops_new_work_drops_lines_but_no_end_and_recovers(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.go_away()
    result = msgspec.Raw(b'"%b"' % (b"x" * 900_000))
    large = Finished(id="large", attempt=1, at=AT, outcome="completed", result=result)
    stage.tell(large)
    eventually(lambda: stage.store.pending_count == 2)
    with caplog.at_level(logging.ERROR):
        stage.tell(msgspec.structs.replace(large, id="second"), line("second"))
        eventually(lambda: stage.reporter.full)
    assert "store.full" in caplog.text
    stage.tell(line("second", 2), finished("third"))
    eventually(lambda: not len(stage.reporter._gathering))
    stage.come_back()
    eventually(lambda: stage.settled == [("large", 1), ("second", 1), ("third", 1)])
    assert not stage.reporter.full
    notice = eventually(
        lambda: [event for event in stage.outside.events if isinstance(event, Log) and "were left out" in event.message]
    )
    assert notice[0].id == "second"


def test_closing_sends_what_is_there(stage: Stage) -> None:
    stage.reporter.progress(Progress(id="a", attempt=1, at=AT, fraction=0.5))
    stage.tell(finished("a"))
    assert stage.reporter.close(PATIENCE_SECONDS)
    assert stage.outside.events[-1] == finished("a")


def test_closing_while_the_broker_is_away_keeps_everything_in_the_store(stage: Stage, tmp_path: Path) -> None:
    stage.go_away()
    stage.tell(finished("a"))
    assert not stage.reporter.close(PATIENCE_SECONDS)
    stage.store.close()
    again = open_store(tmp_path, "w", LIMIT)
    assert again.waiting() == {("a", 1)}
    again.close()


def test_the_latest_ends_are_told_again_when_the_broker_may_have_lost_them(stage: Stage) -> None:
    stage.tell(started("a"), line("a"), finished("a"), finished("b"))
    eventually(lambda: len(stage.settled) == 2)
    stage.reporter.repeat()
    eventually(lambda: stage.outside.events.count(finished("a")) == 2)
    assert stage.outside.events[-2:] == [finished("a"), finished("b")]
    assert stage.settled == [("a", 1), ("b", 1)]


def test_what_is_told_again_waits_until_the_broker_is_back_and_comes_after_what_waited(stage: Stage) -> None:
    stage.tell(finished("a"))
    eventually(lambda: stage.settled == [("a", 1)])
    stage.go_away()
    stage.tell(finished("b"))
    eventually(lambda: stage.store.pending_count == 2)
    stage.reporter.repeat()
    stage.come_back()
    eventually(lambda: stage.outside.events[-2:] == [finished("a"), finished("b")])
    assert stage.outside.events == [finished("a"), started("probe"), finished("b"), finished("a"), finished("b")]


def test_what_an_earlier_process_told_is_told_again_under_its_name(tmp_path: Path) -> None:
    left = open_store(tmp_path, "w", LIMIT)
    rows = [Row(1, FINAL, "w-0", "old", 1, contracts.encode(finished("old")), True)]
    left.add(rows)
    left.confirmed(rows)
    left.close()
    stage = Stage(tmp_path)
    stage.reporter.repeat()
    stage.reporter.start()
    eventually(
        lambda: [(batch.instance, batch.events) for batch in stage.outside.batches] == [("w-0", [finished("old")])]
    )
    assert stage.settled == []
    stage.close()


def test_a_store_that_cannot_be_used_any_more_keeps_no_report_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.tell(finished("a"))
    eventually(lambda: stage.settled == [("a", 1)])
    with sqlite3.connect(stage.store.path) as other:
        other.execute("DROP TABLE reports")
    other.close()
    stage.tell(finished("b"))
    eventually(lambda: stage.settled == [("a", 1), ("b", 1)])
    stage.outside.away = True
    stage.tell(finished("c"))
    eventually(lambda: stage.reporter.full)
    stage.tell(finished("d"))
    stage.come_back()
    eventually(lambda: stage.settled == [(name, 1) for name in "abcd"])
    eventually(lambda: not stage.reporter.full)
    assert "reporter.failed" not in caplog.text


def test_a_backlog_leaves_once_also_when_the_store_cannot_be_written_any_more(stage: Stage) -> None:
    stage.go_away()
    stage.tell(*[finished(str(number)) for number in range(600)])
    eventually(lambda: stage.store.pending_count == 601)
    with sqlite3.connect(stage.store.path) as other:
        other.execute("CREATE TRIGGER no BEFORE UPDATE ON confirmed BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    other.close()
    stage.come_back()
    eventually(lambda: stage.reporter.pending_count == 0)
    assert stage.outside.events == [started("probe"), *[finished(str(number)) for number in range(600)]]
    assert stage.store.waiting() == set()
