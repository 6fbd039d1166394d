"""A gap in being in touch with the broker: standing still, hearing nothing, and how long it is remembered."""

from __future__ import annotations

from tickwork.worker.continuity import STILL_SECONDS, Continuity

NEVER_BEFORE = float("-inf")


def made(last_heard_at: float | None = None) -> Continuity:
    """Made at 100, with a silence of 10 seconds allowed."""
    return Continuity(silence_seconds=10.0, last_heard_at=lambda: last_heard_at, now=100.0)


def turns(continuity: Continuity, until: int) -> None:
    """One turn each second."""
    for now in range(100, until + 1):
        continuity.turn(float(now))


def test_without_a_gap_nothing_is_doubted() -> None:
    continuity = made(last_heard_at=101.0)
    continuity.turn(101.5)
    assert continuity.gap_at(101.5 + STILL_SECONDS) == NEVER_BEFORE


def test_a_process_that_stood_still_has_a_gap_up_to_the_moment_that_it_is_noticed() -> None:
    continuity = made(last_heard_at=101.0)
    continuity.turn(101.0)
    assert continuity.gap_at(105.0) == 105.0


def test_a_gap_is_remembered_whichever_thread_noticed_it() -> None:
    continuity = made(last_heard_at=101.0)
    continuity.turn(101.0)
    continuity.turn(105.0)
    assert continuity.gap_at(106.0) == 105.0


def test_a_silent_broker_is_a_gap_that_lasts() -> None:
    continuity = made(last_heard_at=101.0)
    turns(continuity, until=111)
    assert continuity.gap_at(111.0) == NEVER_BEFORE
    assert continuity.gap_at(111.5) == 111.5
    assert continuity.gap_at(112.5) == 112.5


def test_a_start_counts_as_having_heard() -> None:
    continuity = made()
    turns(continuity, until=110)
    assert continuity.gap_at(110.0) == NEVER_BEFORE
    assert continuity.gap_at(110.5) == 110.5
