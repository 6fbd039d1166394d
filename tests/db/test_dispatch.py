"""Born: which due ticks become occurrences, and that each does once."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import definitions
from jobs.models import Job
from occurrences import operations, sql
from occurrences.lifecycle.dispatch import Dispatcher
from occurrences.models import Occurrence, OutboxMessage
from occurrences.states import Status
from tests.db.conftest import SetConf
from tests.db.reports import at, dispatches, publish_all
from tests.factories import NOON, make_job, make_occurrence
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
EVERY_MINUTE = "* * * * *"


def due_job(*, cron: str = EVERY_MINUTE, now: datetime = NOON - MINUTE, **values: object) -> Job:
    """A job whose next tick is noon."""
    return make_job(cron=cron, now=now, **values)


def ticks_of(job: Job, status: Status | None = None) -> list[datetime]:
    rows = Occurrence.objects.filter(job=job).order_by("scheduled_for")
    if status is not None:
        rows = rows.filter(status=status)
    return [row.scheduled_for for row in rows if row.scheduled_for]


def test_a_due_tick_becomes_a_queued_occurrence_with_its_message_and_the_job_moves_on() -> None:
    job = due_job(data={"name": "Ünal"}, max_attempts=4, timeout_seconds=30, queue_ttl_seconds=20)

    assert Dispatcher().tick(now=at(0.5)) == 1

    occurrence = Occurrence.objects.get()
    assert (occurrence.job_id, occurrence.status, occurrence.attempt, occurrence.max_attempts) == (job.pk, 0, 1, 4)
    assert (occurrence.scheduled_for, occurrence.trigger, occurrence.data) == (NOON, "schedule", {"name": "Ünal"})
    assert (occurrence.timeout_seconds, occurrence.instance, occurrence.ended_at) == (30, "", None)
    (change,) = occurrence.status_changes
    assert (change.status, change.attempt, change.at, change.by) == (Status.QUEUED, 1, at(0.5), "schedule")
    (sent,) = dispatches(occurrence)
    assert (sent.dispatch.id, sent.dispatch.attempt, sent.dispatch.max_attempts) == (str(occurrence.pk), 1, 4)
    assert (sent.dispatch.data, sent.dispatch.scheduled_for) == ({"name": "Ünal"}, NOON)
    assert (sent.row.expiration_seconds, sent.row.next_attempt_at) == (20, at(0.5))
    job.refresh_from_db()
    assert (job.next_run_at, job.last_tick_at) == (at(60), NOON)


def test_a_second_pass_makes_nothing_more() -> None:
    job = due_job()
    Dispatcher().tick(now=NOON)
    assert Dispatcher().tick(now=at(1)) == 0
    assert ticks_of(job) == [NOON]


def test_jobs_that_are_not_due_paused_retired_or_only_on_call_are_left_alone() -> None:
    make_job()
    make_job(cron="0 13 * * *", now=NOON)
    definitions.pause(due_job(), by=None)
    definitions.retire(due_job(), by=None)
    assert Dispatcher().tick(now=NOON) == 0
    assert not Occurrence.objects.exists()


def test_several_ticks_that_are_on_time_all_run() -> None:
    job = due_job(cron="* * * * * *", now=at(-1), concurrent_execution_policy=Job.Overlap.ALLOW)
    Dispatcher().tick(now=at(3))
    assert ticks_of(job, Status.QUEUED) == [at(0), at(1), at(2), at(3)]


# ── misfire ────────────────────────────────────────────────────────────────────────────────────────


def test_fire_once_runs_the_latest_missed_tick_and_says_what_it_stands_for() -> None:
    job = due_job(misfire_policy="fire_once")
    Dispatcher().tick(now=at(10 * 60 + 30))
    assert ticks_of(job) == [at(600)]
    occurrence = Occurrence.objects.get()
    assert occurrence.status == Status.QUEUED
    assert "10 missed ticks" in occurrence.reason
    assert "2030-01-15 12:00:00 to 2030-01-15 12:09:00 UTC" in occurrence.reason


def test_skip_records_the_missed_ticks_as_one_skipped_occurrence() -> None:
    job = due_job(misfire_policy="skip")
    Dispatcher().tick(now=at(10 * 60 + 30))
    occurrence = Occurrence.objects.get()
    assert (occurrence.status, occurrence.scheduled_for) == (Status.SKIPPED, at(600))
    assert occurrence.ended_at == at(630)
    assert "11 missed ticks" in occurrence.reason
    assert dispatches() == []
    job.refresh_from_db()
    assert (job.next_run_at, job.last_tick_at) == (at(660), at(600))


def test_catch_up_runs_the_latest_ones_up_to_its_limit_and_records_the_rest() -> None:
    job = due_job(misfire_policy="catch_up", misfire_limit=3, concurrent_execution_policy=Job.Overlap.ALLOW)
    Dispatcher().tick(now=at(10 * 60 + 30))
    assert ticks_of(job, Status.QUEUED) == [at(480), at(540), at(600)]
    assert ticks_of(job, Status.SKIPPED) == [at(420)]
    assert "8 missed ticks" in Occurrence.objects.get(status=Status.SKIPPED).reason


def test_a_tick_beyond_its_start_deadline_is_not_run_but_recorded() -> None:
    job = due_job(misfire_policy="catch_up", start_deadline_seconds=90, concurrent_execution_policy=Job.Overlap.ALLOW)
    Dispatcher().tick(now=at(10 * 60))
    assert ticks_of(job, Status.QUEUED) == [at(540), at(600)]
    assert ticks_of(job, Status.SKIPPED) == [at(480)]


def test_more_missed_ticks_than_anybody_counts_are_said_to_be_more() -> None:
    due_job(cron="* * * * * *", now=at(-1), misfire_policy="skip")
    Dispatcher().tick(now=at(3600))
    assert "more than 200 missed ticks" in Occurrence.objects.order_by("scheduled_for")[0].reason


# ── overlap ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.UNKNOWN])
def test_a_tick_is_skipped_while_an_earlier_occurrence_is_not_at_its_end(status: Status) -> None:
    job = due_job(concurrent_execution_policy=Job.Overlap.SKIP)
    make_occurrence(job, status=status)
    Dispatcher().tick(now=NOON)
    skipped = Occurrence.objects.get(scheduled_for=NOON)
    assert (skipped.status, skipped.reason) == (
        Status.SKIPPED,
        "an earlier occurrence of this job was not finished",
    )
    assert dispatches() == []


def test_a_tick_runs_when_the_earlier_occurrence_is_at_its_end() -> None:
    job = due_job(concurrent_execution_policy=Job.Overlap.SKIP)
    make_occurrence(job, status=Status.FAILED)
    Dispatcher().tick(now=NOON)
    assert Occurrence.objects.get(scheduled_for=NOON).status == Status.QUEUED


def test_side_by_side_runs_are_made_when_the_job_allows_them() -> None:
    job = due_job(concurrent_execution_policy=Job.Overlap.ALLOW)
    make_occurrence(job, status=Status.RUNNING)
    Dispatcher().tick(now=NOON)
    assert Occurrence.objects.get(scheduled_for=NOON).status == Status.QUEUED


def test_of_several_ticks_of_one_pass_only_the_first_runs_when_the_job_does_not_overlap() -> None:
    job = due_job(cron="* * * * * *", now=at(-1))
    Dispatcher().tick(now=at(2))
    assert ticks_of(job, Status.QUEUED) == [NOON]
    assert ticks_of(job, Status.SKIPPED) == [at(1), at(2)]


def test_a_skipped_run_still_tells_which_missed_ticks_it_stands_for() -> None:
    job = due_job(misfire_policy="fire_once")
    make_occurrence(job, status=Status.RUNNING)
    Dispatcher().tick(now=at(10 * 60 + 30))
    reason = Occurrence.objects.get(status=Status.SKIPPED).reason
    assert reason.startswith("an earlier occurrence of this job was not finished; 10 missed ticks")


# ── jitter, one-time jobs, bounds ──────────────────────────────────────────────────────────────────


def test_jitter_delays_the_message_and_never_changes_the_tick() -> None:
    due_job(jitter_seconds=30)
    Dispatcher().tick(now=NOON)
    occurrence = Occurrence.objects.get()
    assert occurrence.scheduled_for == NOON
    assert occurrence.next_attempt_at is not None
    assert NOON <= occurrence.next_attempt_at < at(30)
    assert dispatches(occurrence)[0].row.next_attempt_at == occurrence.next_attempt_at


def test_a_one_time_job_runs_once_and_is_then_without_a_next_tick() -> None:
    job = make_job(execute_at=NOON, now=NOON - MINUTE)
    assert Dispatcher().tick(now=at(-1)) == 0
    assert Dispatcher().tick(now=NOON) == 1
    assert Dispatcher().tick(now=at(60)) == 0
    job.refresh_from_db()
    assert (job.next_run_at, job.last_tick_at) == (None, NOON)
    assert ticks_of(job, Status.QUEUED) == [NOON]


def test_a_one_time_job_whose_time_has_passed_unfired_runs_as_soon_as_it_is_made() -> None:
    job = make_job(execute_at=NOON, now=at(3600))
    Dispatcher().tick(now=at(3600))
    assert ticks_of(job, Status.QUEUED) == [NOON]


def test_a_job_stops_after_its_last_tick_within_its_bounds() -> None:
    job = due_job(ends_at=at(60), concurrent_execution_policy=Job.Overlap.ALLOW)
    for seconds in (0, 60, 120):
        Dispatcher().tick(now=at(seconds))
    assert ticks_of(job) == [at(0), at(60)]
    job.refresh_from_db()
    assert job.next_run_at is None


# ── what must not stop the others ──────────────────────────────────────────────────────────────────


def test_a_job_whose_schedule_cannot_be_used_is_set_aside_and_the_others_go_on() -> None:
    sound, broken, wrong_policy = due_job(), due_job(), due_job()
    Job.objects.filter(pk=broken.pk).update(timezone="Mars/Olympus")
    Job.objects.filter(pk=wrong_policy.pk).update(retry_preset="nonsense")
    assert Dispatcher().tick(now=NOON) == 3
    assert Occurrence.objects.get().job_id == sound.pk
    broken.refresh_from_db()
    wrong_policy.refresh_from_db()
    assert (broken.is_active, broken.disabled_by) == (False, "schedule")
    assert "Mars/Olympus" in broken.disabled_reason
    assert not wrong_policy.is_active
    assert "nonsense" in wrong_policy.disabled_reason
    assert Dispatcher().tick(now=at(1)) == 0


@pytest.mark.parametrize("count", [1, 6])
def test_a_tick_that_has_its_occurrence_already_is_passed_over_and_the_others_go_on(count: int) -> None:
    jobs = [due_job(misfire_policy="catch_up", concurrent_execution_policy=Job.Overlap.ALLOW) for _ in range(count)]
    make_occurrence(jobs[0], scheduled_for=at(60), status=Status.COMPLETED)
    Dispatcher().tick(now=at(120))
    for job in jobs:
        assert ticks_of(job) == [at(0), at(60), at(120)]
        job.refresh_from_db()
        assert (job.next_run_at, job.last_tick_at) == (at(180), at(120))
    assert Occurrence.objects.filter(scheduled_for=at(60), status=Status.COMPLETED).count() == 1


def test_the_last_tick_only_grows_so_that_a_tick_set_back_is_not_run_again() -> None:
    job = due_job(concurrent_execution_policy=Job.Overlap.ALLOW)
    Dispatcher().tick(now=at(60))
    Occurrence.objects.all().delete()  # pruned long ago
    Job.objects.filter(pk=job.pk).update(next_run_at=NOON)
    Dispatcher().tick(now=at(61))
    assert ticks_of(job) == []
    job.refresh_from_db()
    assert (job.next_run_at, job.last_tick_at) == (at(120), at(60))


def test_a_job_edited_while_it_is_due_keeps_the_tick_of_its_new_schedule() -> None:
    job = due_job()
    definitions.update_job(job, by=None, now=at(1), cron="0 15 * * *")
    sql.advance_jobs([(job.pk, NOON, at(60), NOON)])  # a pass that read it before the edit
    job.refresh_from_db()
    assert job.next_run_at == at(3 * 3600)
    assert Dispatcher().tick(now=at(2)) == 0


def test_an_edit_uses_the_new_data_from_the_next_tick_on() -> None:
    job = due_job(data={"n": 1}, concurrent_execution_policy=Job.Overlap.ALLOW)
    Dispatcher().tick(now=NOON)
    definitions.update_job(job, by=None, now=at(1), data={"n": 2})
    Dispatcher().tick(now=at(60))
    rows = Occurrence.objects.order_by("scheduled_for").values_list("data", "job_version")
    assert list(rows) == [({"n": 1}, 1), ({"n": 2}, 2)]


def test_the_dispatcher_sleeps_until_the_next_tick() -> None:
    assert Dispatcher().sleep_until() is None
    due_job(now=at(60))
    due_job()
    assert Dispatcher().sleep_until() == NOON


# ── cost, and several at once ──────────────────────────────────────────────────────────────────────


def test_a_pass_costs_as_many_queries_for_many_jobs_as_for_few() -> None:
    def queries(count: int) -> int:
        for _ in range(count):
            due_job()
        with CaptureQueriesContext(connection) as captured:
            assert Dispatcher().tick(now=NOON) == count
        Job.objects.all().delete()
        publish_all()
        return len(captured)

    queries(1)  # warms what is remembered
    assert queries(60) == queries(10)


@pytest.mark.django_db(transaction=True)
def test_several_dispatchers_at_once_make_one_occurrence_of_each_tick(set_conf: SetConf) -> None:
    set_conf(dispatch_batch=5)
    jobs = [
        due_job(cron="* * * * * *", now=at(-1), concurrent_execution_policy=Job.Overlap.ALLOW, misfire_policy="skip")
        for _ in range(20)
    ]
    ready = threading.Barrier(3)
    errors: list[Exception] = []

    def dispatch() -> None:
        try:
            ready.wait(PATIENCE_SECONDS)
            for seconds in range(6):
                while Dispatcher().tick(now=at(seconds)):
                    pass
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=dispatch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert OutboxMessage.objects.count() == Occurrence.objects.count() == 6 * len(jobs)
    for job in jobs:
        assert ticks_of(job, Status.QUEUED) == [at(seconds) for seconds in range(6)]


def test_a_run_by_hand_does_not_move_the_schedule() -> None:
    job = due_job()
    operations.trigger(job, now=at(-30))
    job.refresh_from_db()
    assert (job.next_run_at, job.last_tick_at) == (NOON, None)
