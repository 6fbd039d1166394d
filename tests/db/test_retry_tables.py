"""The waits between attempts, end to end: reported failure by reported failure, as the database has them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from occurrences import operations
from occurrences.lifecycle.intake import Intake
from occurrences.models import Attempt, FailedOccurrence, Occurrence
from occurrences.states import Status
from tests.db.reports import dispatches, finished, publish_all, report, started
from tests.factories import NOON, make_job

pytestmark = pytest.mark.django_db
HOUR = 3600


def waits(intake: Intake, **policy: Any) -> list[float]:
    """Fail each attempt as soon as it may start; the seconds between each failure and the next attempt."""
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(**policy), now=NOON))
    found: list[float] = []
    now: datetime = NOON
    while True:
        publish_all()
        attempt = occurrence.attempt
        told = report(started(occurrence, attempt=attempt), finished(occurrence, "failed", attempt=attempt, when=now))
        intake.apply([told], now=now)
        occurrence.refresh_from_db()
        if occurrence.status != Status.QUEUED:
            break
        due_at = occurrence.next_attempt_at
        assert due_at is not None
        (message,) = dispatches(occurrence)
        assert (message.row.next_attempt_at, message.headers["x-retry-count"]) == (due_at, attempt)
        found.append((due_at - now) / timedelta(seconds=1))
        now = due_at
    assert occurrence.status == Status.FAILED
    assert occurrence.attempt == policy["max_attempts"] == Attempt.objects.filter(occurrence=occurrence).count() + 1
    assert FailedOccurrence.objects.get().kind == "attempts_exhausted"
    return found


def test_milvaion_waits_10_20_40_80_seconds(intake: Intake) -> None:
    assert waits(intake, retry_preset="milvaion", max_attempts=5) == [10, 20, 40, 80]


def test_flare_waits_a_doubled_minute_and_up_to_three_seconds_more(intake: Intake) -> None:
    found = waits(intake, retry_preset="flare", max_attempts=8)
    least = [60, 120, 240, 480, 960, 1920, 3840]
    assert len(found) == len(least)
    for wait, low in zip(found, least, strict=True):
        assert low <= wait < low + 3


def test_flare_never_waits_longer_than_six_hours_and_the_jitter(intake: Intake) -> None:
    found = waits(intake, retry_preset="flare", max_attempts=12)
    assert 60 * 2**8 <= found[8] < 60 * 2**8 + 3
    for wait in found[9:]:
        assert 6 * HOUR <= wait < 6 * HOUR + 3


def test_the_default_waits_10_20_seconds_and_up_to_three_more(intake: Intake) -> None:
    first, second = waits(intake, max_attempts=3)
    assert 10 <= first < 13
    assert 20 <= second < 23


def test_a_jobs_own_figures_beat_those_of_its_preset(intake: Intake) -> None:
    figures = {"retry_base_seconds": 2, "retry_cap_seconds": 5, "retry_jitter_seconds": 0}
    assert waits(intake, retry_preset="flare", max_attempts=5, **figures) == [2, 4, 5, 5]


def test_one_attempt_is_never_followed_by_another(intake: Intake) -> None:
    assert waits(intake, max_attempts=1) == []
