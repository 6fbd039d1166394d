"""Forgotten: what is deleted when it is old, and what is kept."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from jobs.models import IdempotencyRecord
from occurrences.lifecycle.retention import Retention
from occurrences.models import Attempt, FailedOccurrence, LoopPass, Occurrence, OccurrenceLog
from occurrences.states import FINAL, Status
from tests.db.conftest import SetConf
from tests.factories import (
    NOON,
    make_attempt,
    make_failure,
    make_instance,
    make_job,
    make_log,
    make_occurrence,
    make_worker,
)
from tickwork.ids import first_at
from workers_app.models import WorkerInstance

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _figures(set_conf: SetConf) -> None:
    set_conf(retention_days=30, failure_retention_days=90, purge_batch=1000)


def old(status: Status = Status.COMPLETED, *, days: float = 31, **values: Any) -> Occurrence:
    """An occurrence that was made and has ended that many days before noon."""
    then = NOON - days * DAY
    return make_occurrence(status=status, at=then, id=first_at(then), **values)


def purge(now: datetime = NOON) -> int:
    return Retention().tick(now=now)


@pytest.mark.parametrize("status", sorted(FINAL))
def test_a_finished_occurrence_goes_after_its_time_with_its_logs_and_attempts(status: Status) -> None:
    occurrence = old(status)
    make_log(occurrence, 1)
    make_attempt(occurrence)
    recent = old(status, days=29, job=occurrence.job)
    assert (purge(), purge()) == (1, 1)
    assert list(Occurrence.objects.all()) == [recent]
    assert not OccurrenceLog.objects.exists()
    assert not Attempt.objects.exists()
    assert purge() == 0


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.UNKNOWN])
def test_what_is_not_at_its_end_is_kept_however_old_it_is(status: Status) -> None:
    old(status, days=400)
    assert purge() == 0


def test_what_began_long_ago_and_ended_lately_is_kept() -> None:
    old(ended_at=NOON - DAY)
    assert purge() == 0


def test_an_occurrence_with_an_open_failure_is_kept() -> None:
    make_failure(old(Status.FAILED, days=400))
    assert purge() == 0


def test_a_resolved_failure_is_kept_for_its_own_time_and_its_occurrence_with_it() -> None:
    occurrence = old(Status.FAILED, days=100)
    failure = make_failure(occurrence, resolved_at=NOON - 89 * DAY, action="fixed", note="repaired")
    assert purge() == 0
    FailedOccurrence.objects.filter(pk=failure.pk).update(resolved_at=NOON - 91 * DAY)
    assert purge() == 1
    assert not Occurrence.objects.exists()
    assert not FailedOccurrence.objects.exists()


def test_a_failure_that_nobody_resolved_is_kept_for_ever() -> None:
    make_failure(old(Status.FAILED, days=4000), failed_at=NOON - 4000 * DAY)
    assert purge() == 0


def test_a_tick_stays_used_up_after_its_occurrence_was_forgotten() -> None:
    job = make_job(cron="0 12 * * *", now=NOON - 40 * DAY)
    old(job=job, scheduled_for=NOON - 31 * DAY)
    type(job).objects.filter(pk=job.pk).update(last_tick_at=NOON - 31 * DAY)
    purge()
    job.refresh_from_db()
    assert job.last_tick_at == NOON - 31 * DAY


def test_answers_instances_and_loops_that_are_over_go_too() -> None:
    for days in (1, -1):
        IdempotencyRecord.objects.create(
            scope="s",
            key=str(days),
            request_hash="h",
            response_status=204,
            created_at=NOON,
            expires_at=NOON + days * DAY,
        )
    worker = make_worker()
    make_instance(worker, name="here", last_heartbeat_at=NOON - DAY)
    make_instance(worker, name="gone", last_heartbeat_at=NOON - 3 * DAY)
    for process, days in (("here", 1), ("gone", 3)):
        LoopPass.objects.create(role="relay", process=process, started_at=NOON, last_pass_at=NOON - days * DAY)
    assert purge() == 3
    assert IdempotencyRecord.objects.get().key == "1"
    assert WorkerInstance.objects.get().name == "here"
    assert LoopPass.objects.get().process == "here"


def test_log_lines_go_batch_by_batch_before_their_runs(set_conf: SetConf) -> None:
    set_conf(retention_days=30, purge_batch=2)
    occurrence = old()
    for number in range(1, 6):
        make_log(occurrence, number)
    assert [purge() for _ in range(4)] == [2, 2, 1, 1]
    assert not Occurrence.objects.exists()


def test_one_pass_deletes_at_most_a_batch_and_the_next_ones_the_rest(set_conf: SetConf) -> None:
    set_conf(purge_batch=2)
    job = make_job()
    for days in range(31, 36):
        old(days=days, job=job)
    assert [purge() for _ in range(4)] == [2, 2, 1, 0]
