"""The map of statuses: codes, kinds, and which moves are legal."""

from __future__ import annotations

import pytest

from occurrences import states
from occurrences.states import FINAL, LEGAL, LIVE, STARTED, Status

OUTCOMES = {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT}


def test_the_codes_are_fixed() -> None:
    codes = {status.name: status.value for status in Status}
    assert codes == {
        "QUEUED": 0, "RUNNING": 1, "COMPLETED": 2, "FAILED": 3,
        "CANCELLED": 4, "TIMED_OUT": 5, "UNKNOWN": 6, "SKIPPED": 7,
    }  # fmt: skip


def test_every_status_is_either_live_or_final_and_has_a_label_and_moves() -> None:
    assert set(Status) == LIVE | FINAL
    assert not LIVE & FINAL
    assert STARTED < LIVE
    assert [label for _, label in states.CHOICES] == [status.label for status in Status]
    assert set(LEGAL) == set(Status)


@pytest.mark.parametrize("status", sorted(FINAL))
def test_a_final_status_leads_only_to_queued(status: Status) -> None:
    assert LEGAL[status] == {Status.QUEUED}


@pytest.mark.parametrize("status", sorted(LIVE))
def test_a_live_status_reaches_every_outcome_and_is_never_skipped(status: Status) -> None:
    assert OUTCOMES | {Status.QUEUED, Status.RUNNING, Status.UNKNOWN} == LEGAL[status]


def test_nothing_moves_to_skipped() -> None:
    assert not any(Status.SKIPPED in reachable for reachable in LEGAL.values())


def test_the_drawing_names_every_status() -> None:
    drawing = states.__doc__ or ""
    assert all(word in drawing for word in ("Queued", "Running", "Unknown", "Skipped"))
    for status in OUTCOMES:
        assert status.label.title().replace(" ", "") in drawing


def test_the_drawing_and_the_map_agree_on_the_arrows() -> None:
    arrows = {
        (Status.QUEUED, Status.RUNNING),
        (Status.RUNNING, Status.UNKNOWN),
        (Status.UNKNOWN, Status.RUNNING),
        (Status.RUNNING, Status.QUEUED),
        (Status.UNKNOWN, Status.QUEUED),
        *((Status.RUNNING, outcome) for outcome in OUTCOMES),
        *((Status.UNKNOWN, outcome) for outcome in OUTCOMES),
        *((outcome, Status.QUEUED) for outcome in OUTCOMES),
    }
    assert all(to in LEGAL[start] for start, to in arrows)
