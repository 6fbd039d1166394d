"""The local store: order, limits, what survives, who owns which file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import time_machine

from tickwork.errors import StoreFull
from tickwork.worker.store import DROPPABLE, FINAL, KEPT, REMEMBER_SECONDS, LocalStore, Row
from tickwork.worker.store_folder import open_store, others, try_open

LIMIT = 1024**2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """An empty store of a megabyte."""
    store = open_store(tmp_path, "w", LIMIT)
    yield store
    store.close()


def row(seq: int, kind: int = KEPT, *, size: int = 10, instance: str = "w-1", id: str = "") -> Row:
    return Row(seq, kind, instance, id or f"id-{seq}", 1, b"x" * size, kind == FINAL)


def test_events_come_back_in_order_until_they_are_confirmed(store: LocalStore) -> None:
    rows = [row(seq) for seq in range(1, 6)]
    store.add(rows[3:])
    store.add(rows[:3])
    first = store.read(2, LIMIT)
    assert [one.seq for one in first] == [1, 2]
    store.confirmed(first)
    assert [one.seq for one in store.read(10, LIMIT)] == [3, 4, 5]
    assert store.pending_count == 3


def test_one_reading_is_of_one_instance_and_within_the_size(store: LocalStore) -> None:
    store.add([row(1, size=300), row(2, size=300), row(3, size=300), row(4, instance="w-2")])
    assert [one.seq for one in store.read(10, 900)] == [1, 2]
    assert [one.seq for one in store.read(10, 1)] == [1]
    store.confirmed(store.read(3, LIMIT))
    assert [one.instance for one in store.read(10, LIMIT)] == ["w-2"]


def test_ends_are_remembered_after_they_were_confirmed(store: LocalStore) -> None:
    rows = [row(1, FINAL, id="a"), row(2, FINAL, id="b")]
    store.add(rows)
    assert store.waiting() == {("a", 1), ("b", 1)}
    store.add([row(3)], confirmed=rows)
    assert store.waiting() == set()
    assert store.ends_of([("a", 1), ("a", 2), ("b", 1), ("c", 1)]) == {("a", 1): b"x" * 10, ("b", 1): b"x" * 10}
    assert store.recent(10) == [("a", 1), ("b", 1)]


def test_everything_survives_a_process_that_dies(tmp_path: Path) -> None:
    store = open_store(tmp_path, "w", LIMIT)
    store.add([row(1), row(2, FINAL, id="a")])
    store.close()
    again = open_store(tmp_path, "w", LIMIT)
    assert again.path == store.path
    assert (again.next_seq, again.pending_count) == (3, 2)
    assert again.ends_of([("a", 1)]) == {("a", 1): b"x" * 10}
    again.close()


def test_each_process_has_a_file_of_its_own_and_finds_those_of_the_others(tmp_path: Path) -> None:
    first, second = (open_store(tmp_path, "w", LIMIT) for _ in range(2))
    other = open_store(tmp_path, "w-2", LIMIT)
    assert [first.path.name, second.path.name, other.path.name] == ["w-0.sqlite", "w-1.sqlite", "w-2-0.sqlite"]
    assert others(first) == [second.path]
    assert try_open(second.path, LIMIT) is None
    second.close()
    adopted = try_open(second.path, LIMIT)
    assert adopted is not None
    for store in (first, other, adopted):
        store.close()


def test_near_the_limit_log_lines_and_progress_are_left_out_first(store: LocalStore) -> None:
    store.add([row(1, size=850_000)])
    left_out = store.add([row(2, DROPPABLE, id="a"), row(3, FINAL, id="a"), row(4, DROPPABLE, id="a")])
    assert left_out == {("a", 1): 2}
    assert [one.seq for one in store.read(10, 2 * LIMIT)] == [1, 3]


def test_stored_log_lines_make_room_for_ends(store: LocalStore) -> None:
    store.add([row(seq, DROPPABLE, size=100_000, id="a") for seq in range(1, 8)])
    left_out = store.add([row(8, FINAL, size=400_000)])
    assert left_out == {("a", 1): 7}
    assert [one.seq for one in store.read(10, LIMIT)] == [8]


def test_a_store_that_cannot_take_an_end_says_so_and_keeps_what_it_has(store: LocalStore) -> None:
    store.add([row(1, FINAL, size=700_000)])
    with pytest.raises(StoreFull, match=r"w-0\.sqlite holds 700128 bytes .* the limit is 1048576 \(TICKWORK_WORKER_"):
        store.add([row(2, FINAL, size=700_000)])
    assert [one.seq for one in store.read(10, LIMIT)] == [1]
    store.confirmed(store.read(10, LIMIT))
    store.add([row(2, FINAL, size=700_000)])


def test_remembered_ends_are_forgotten_a_day_after_they_were_confirmed(tmp_path: Path) -> None:
    with time_machine.travel("2026-11-01T00:00:00Z", tick=False) as clock:
        store = open_store(tmp_path, "w", LIMIT)
        store.add([row(1, FINAL, id="a"), row(2, FINAL, id="b")])
        clock.shift(REMEMBER_SECONDS + 1)
        assert store.purge() == 0, "still waiting for the broker"
        store.confirmed(store.read(10, LIMIT), replayed=True)
        assert store.purge() == 0, "confirmed just now"
        clock.shift(REMEMBER_SECONDS + 1)
        assert store.purge() == 2
        assert store.ends_of([("a", 1)]) == {}
        store.close()


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "w-0.sqlite").write_bytes(b"this is no database" * 1000)
    store = open_store(tmp_path, "w", LIMIT)
    assert store.pending_count == 0
    store.close()
    assert len(list(tmp_path.glob("w-0.damaged-*"))) == 1


def test_what_sqlite_refuses_is_a_clear_error_and_leaves_the_store_usable(store: LocalStore) -> None:
    with sqlite3.connect(store.path) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON reports BEGIN SELECT RAISE(ABORT, 'disk is broken'); END")
    with pytest.raises(StoreFull, match="cannot be used: disk is broken"):
        store.add([row(1, FINAL)])
    with sqlite3.connect(store.path) as other:
        other.execute("DROP TRIGGER no")
    other.close()
    store.add([row(1, FINAL)])
    assert store.pending_count == 1


def test_no_more_ends_are_remembered_than_their_share_of_the_space_holds(store: LocalStore) -> None:
    rows = [row(seq, FINAL, size=100) for seq in range(1, 4001)]
    store.add(rows)
    store.confirmed(rows)
    excess = store.excess_bytes
    assert excess > 2000 * rows[0].size
    assert store.purge() == 2000
    assert store.excess_bytes == excess - 2000 * rows[0].size
    assert store.purge() > 0
    assert -rows[0].size < store.excess_bytes <= 0
    assert store.recent(1) == [("id-4000", 1)]
    assert store.purge() == 0


def test_the_latest_ends_are_those_shortly_before_the_newest_within_the_limits(store: LocalStore) -> None:
    def latest(count: int = 10, max_bytes: int = LIMIT) -> list[str]:
        return [one.id for one in store.latest_ends(seconds=30, count=count, max_bytes=max_bytes)]

    with time_machine.travel("2026-11-01T00:00:00Z", tick=False) as clock:
        for seq, seconds in enumerate((0, 100, 20, 10), 1):
            clock.shift(seconds)
            rows = [row(seq, FINAL, id=str(seq), size=1000)]
            store.add(rows)
            if seq < 4:
                store.confirmed(rows)
        assert latest() == ["2", "3"], "the first is too old, the last waits for the broker"
        store.confirmed(rows)
        clock.shift(3600)
        assert latest() == ["2", "3", "4"]
        assert latest(count=2) == ["3", "4"]
        assert latest(max_bytes=2500) == ["3", "4"]
        assert latest(max_bytes=1) == ["4"]


def test_an_attempt_that_ended_twice_is_remembered_by_its_last_report(store: LocalStore) -> None:
    store.add([Row(1, FINAL, "w-1", "a", 1, b"first", True), Row(2, FINAL, "w-1", "a", 1, b"second", True)])
    assert store.ends_of([("a", 1)]) == {("a", 1): b"second"}


def test_the_place_in_the_order_is_not_used_again_after_everything_was_forgotten(tmp_path: Path) -> None:
    store = open_store(tmp_path, "w", LIMIT)
    rows = [row(7)]
    store.add(rows)
    store.confirmed(rows)
    store.close()
    again = open_store(tmp_path, "w", LIMIT)
    assert (again.next_seq, again.pending_count) == (8, 0)
    again.close()
