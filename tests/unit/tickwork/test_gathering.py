"""Folding events before they leave, and turning them into rows."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from tickwork import contracts
from tickwork.contracts import Event, EventBatch, Finished, Heartbeat, Log, Progress, Started
from tickwork.worker.gathering import PASSING, Gathering, envelope, to_rows
from tickwork.worker.store import DROPPABLE, FINAL, KEPT

AT = datetime(2026, 11, 1, tzinfo=UTC)


def started(id: str) -> Started:
    return Started(id=id, attempt=1, at=AT)


def finished(id: str, outcome: contracts.Outcome = "completed") -> Finished:
    return Finished(id=id, attempt=1, at=AT, outcome=outcome, started_at=AT)


def progress(id: str, fraction: float) -> Progress:
    return Progress(id=id, attempt=1, at=AT, fraction=fraction)


def line(id: str) -> Log:
    return Log(id=id, attempt=1, at=AT, seq=1, level="info", message="m")


def test_a_quick_attempt_is_told_by_its_end_alone() -> None:
    gathering = Gathering()
    for event in (started("a"), started("b"), line("a"), finished("a")):
        gathering.put(event)
    assert gathering.take(10) == [started("b"), line("a"), finished("a")]


def test_only_the_latest_progress_leaves_and_not_too_often() -> None:
    gathering = Gathering()
    gathering.progress(progress("a", 0.1))
    gathering.progress(progress("a", 0.2))
    assert gathering.take(10, now=100.0) == [progress("a", 0.2)]
    gathering.progress(progress("a", 0.3))
    assert gathering.take(10, now=100.1) == []
    assert gathering.progress_due_in(100.1) == 100.0 + 0.25 - 100.1
    assert gathering.take(10, now=100.3) == [progress("a", 0.3)]
    assert gathering.progress_due_in(100.3) is None


def test_the_last_progress_leaves_before_the_end() -> None:
    gathering = Gathering()
    gathering.progress(progress("a", 0.1))
    gathering.take(10, now=100.0)
    gathering.progress(progress("a", 0.9))
    gathering.put(finished("a"))
    assert gathering.take(10, now=100.1) == [progress("a", 0.9), finished("a")]
    assert len(gathering) == 0


def test_a_batch_is_limited_and_the_rest_stays_in_order() -> None:
    gathering = Gathering()
    for number in range(5):
        gathering.put(line(str(number)))
    assert [event.id for event in gathering.take(3) if isinstance(event, Log)] == ["0", "1", "2"]
    assert gathering.has_events
    assert [event.id for event in gathering.take(3) if isinstance(event, Log)] == ["3", "4"]


def test_rows_say_what_may_be_left_out_and_what_ends_an_attempt() -> None:
    ends = [finished("a"), finished("b", "interrupted"), finished("c", "cancelled")]
    events: list[Event] = [Heartbeat(at=AT), started("a"), line("a"), *ends]
    rows = to_rows(events, first_seq=7, instance="w-1")
    assert [row.seq for row in rows] == [7, 8, 9, 10, 11, 12]
    assert [row.kind for row in rows] == [PASSING, KEPT, DROPPABLE, FINAL, FINAL, FINAL]
    assert [row.ends for row in rows] == [False, False, False, True, False, False]


def test_the_body_of_a_batch_is_a_message_of_the_contract() -> None:
    events: list[Event] = [started("a"), finished("a")]
    body = envelope('w"1')(to_rows(events, first_seq=1, instance="w-1"))
    batch = contracts.decode(EventBatch, body)
    assert (batch.worker, batch.instance, batch.events) == ('w"1', "w-1", events)


def test_an_event_that_json_cannot_hold_is_replaced_or_left_out() -> None:
    broken = msgspec.structs.replace(finished("a"), error=contracts.ErrorInfo(type="x", message="\ud800"))
    rows = to_rows([msgspec.structs.replace(line("a"), message="\ud800"), broken], first_seq=1, instance="w-1")
    end = msgspec.json.decode(rows[0].body)
    assert len(rows) == 1
    assert (end["outcome"], end["error"]["type"]) == ("failed", "ResultNotJson")
