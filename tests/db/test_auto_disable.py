"""The circuit breaker: when a job is disabled, who is told, and how it comes back."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from jobs import auto_disable, definitions
from jobs.models import Job
from occurrences import operations
from occurrences.lifecycle.dispatch import Dispatcher
from occurrences.lifecycle.intake import Intake
from occurrences.lifecycle.zombies import Zombies
from occurrences.models import Occurrence
from occurrences.states import Status
from tests.db.conftest import SetConf
from tests.db.reports import at, finished, notifications, publish_all, report
from tests.factories import NOON, make_job, make_operator
from tickwork.contracts import Outcome

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _figures(set_conf: SetConf) -> None:
    set_conf(
        auto_disable_threshold=3, auto_disable_window_seconds=600, auto_reenable_after_seconds=0, default_max_attempts=1
    )


@pytest.fixture
def ends(intake: Intake) -> Any:
    """Let one run of the job end at a time, or several ends arrive together."""

    def ends(job: Job, *outcomes: Outcome, seconds: float = 0) -> None:
        ids = operations.trigger_many(job, [None] * len(outcomes), now=at(seconds))
        told = [report(finished(i, outcome)) for i, outcome in zip(ids, outcomes, strict=True)]
        intake.apply(told, now=at(seconds))
        job.refresh_from_db()

    return ends


def test_a_job_is_disabled_at_its_threshold_and_people_are_told_through_the_outbox(ends: Any) -> None:
    job = make_job(name="nightly", cron="* * * * *", now=NOON)
    ends(job, "failed")
    ends(job, "failed", seconds=10)
    assert (job.is_active, job.consecutive_failure_count, job.first_failure_at) == (True, 2, NOON)
    publish_all()
    ends(job, "failed", seconds=20)
    assert (job.is_active, job.disabled_by, job.disabled_at) == (False, "failures", at(20))
    assert job.disabled_reason == "3 consecutive failures within 10 min"
    (notice,) = notifications()
    assert (notice["kind"], notice["job_id"], notice["job_name"]) == ("job.auto_disabled", str(job.pk), "nightly")
    assert Dispatcher().tick(now=at(60)) == 0


def test_only_the_failure_that_disables_a_job_is_told(ends: Any) -> None:
    job = make_job()
    ends(job, *["failed"] * 3)
    ends(job, *["failed"] * 3, seconds=1)
    assert len(notifications()) == 1
    assert job.consecutive_failure_count == 6


def test_failures_of_one_batch_count_one_by_one(ends: Any) -> None:
    job = make_job()
    ends(job, *["failed"] * 5)
    assert (job.is_active, job.consecutive_failure_count) == (False, 5)


def test_a_success_begins_the_count_anew(ends: Any) -> None:
    job = make_job()
    ends(job, "failed", "failed")
    ends(job, "completed", seconds=1)
    assert (job.consecutive_failure_count, job.first_failure_at, job.recent_failures_at) == (0, None, [])
    ends(job, "failed", "failed", seconds=2)
    assert job.is_active
    ends(job, "completed", "failed", "failed", seconds=3)
    assert (job.is_active, job.consecutive_failure_count) == (True, 2)


@pytest.mark.parametrize(
    ("seconds", "is_active"), [((0, 300, 601), True), ((0, 300, 600), False), ((0, 599, 601, 602), False)]
)
def test_the_window_slides_with_the_last_failure(ends: Any, seconds: tuple[float, ...], is_active: bool) -> None:
    job = make_job()
    for moment in seconds:
        assert job.is_active
        ends(job, "failed", seconds=moment)
    assert (job.is_active, job.consecutive_failure_count, job.first_failure_at) == (is_active, len(seconds), NOON)


def test_failures_before_and_in_one_batch_lie_in_one_window(ends: Any) -> None:
    job = make_job()
    ends(job, "failed")
    ends(job, "failed", seconds=400)
    ends(job, "failed", "failed", seconds=900)
    assert (job.is_active, job.consecutive_failure_count) == (False, 4)
    assert job.disabled_reason == "3 consecutive failures within 10 min"


def test_a_job_keeps_no_more_failures_than_decide(ends: Any) -> None:
    job, never = make_job(auto_disable_window_seconds=1), make_job(auto_disable_threshold=0)
    for seconds in range(0, 100, 10):
        ends(job, "failed", seconds=seconds)
        ends(never, "failed", seconds=seconds)
    assert (job.is_active, job.consecutive_failure_count, len(job.recent_failures_at)) == (True, 10, 3)
    assert (never.is_active, never.consecutive_failure_count, never.recent_failures_at) == (True, 10, [])


def test_failures_of_many_jobs_are_written_together(django_assert_num_queries: Any) -> None:
    jobs = [make_job() for _ in range(60)]
    with transaction.atomic(), django_assert_num_queries(2):  # lock, write
        auto_disable.record([(job.pk, False) for job in jobs], now=NOON)
    assert Job.objects.filter(consecutive_failure_count=1, recent_failures_at=[NOON.timestamp()]).count() == 60


def test_timeouts_count_and_cancellations_do_not(ends: Any) -> None:
    job = make_job()
    ends(job, "cancelled", "cancelled", "cancelled")
    assert job.consecutive_failure_count == 0
    ends(job, "timed_out", "failed", "timed_out", seconds=1)
    assert not job.is_active


def test_a_late_success_of_a_disabled_job_does_not_make_it_a_paused_one(ends: Any) -> None:
    job = make_job()
    ends(job, *["failed"] * 3)
    ends(job, "completed", seconds=1)
    assert (job.consecutive_failure_count, job.was_disabled) == (0, True)
    assert Job.objects.disabled().get() == job
    definitions.pause(job, by=make_operator())
    assert Job.objects.disabled().get() == job


def test_an_attempt_that_is_tried_again_is_no_failure_yet(ends: Any) -> None:
    job = make_job(max_attempts=2)
    ends(job, "failed", "failed", "failed")
    assert (job.is_active, job.consecutive_failure_count) == (True, 0)


def test_a_job_may_have_figures_of_its_own(ends: Any) -> None:
    strict = make_job(auto_disable_threshold=1)
    ends(strict, "failed")
    assert not strict.is_active
    never = make_job(auto_disable_threshold=0)
    ends(never, *["failed"] * 9)
    assert never.is_active
    brief = make_job(auto_disable_window_seconds=5)
    for seconds in (0, 3, 6, 9):
        ends(brief, "failed", seconds=seconds)
    assert brief.is_active


def test_a_setting_turns_it_off_for_all(ends: Any, set_conf: SetConf) -> None:
    set_conf(auto_disable_threshold=0)
    job = make_job(max_attempts=1)
    ends(job, *["failed"] * 9)
    assert job.is_active


def test_a_person_enables_it_again_and_the_count_begins_anew(ends: Any) -> None:
    job = make_job(cron="* * * * *", now=NOON, misfire_policy="catch_up")
    ends(job, *["failed"] * 3)
    definitions.enable(job, by=make_operator(), now=at(330))
    job.refresh_from_db()
    assert (job.is_active, job.consecutive_failure_count, job.disabled_at) == (True, 0, None)
    assert job.next_run_at == at(360)
    ends(job, *["failed"] * 2, seconds=340)
    assert job.is_active


# ── probe runs ─────────────────────────────────────────────────────────────────────────────────────


def disabled(ends: Any, **values: Any) -> Job:
    """A job that was disabled at noon and gets a probe run after a minute."""
    job = make_job(**{"cron": "* * * * *", "now": NOON, "auto_reenable_after_seconds": 60, **values})
    ends(job, *["failed"] * 3)
    publish_all()
    assert job.probe_at == at(60)
    return job


def probe(seconds: float) -> Occurrence | None:
    """A pass of the detector; the probe run that it made."""
    Zombies().tick(now=at(seconds))
    return Occurrence.objects.filter(trigger="probe").order_by("-id").first()


def test_after_its_cool_down_a_job_gets_one_probe_run(ends: Any) -> None:
    job = disabled(ends)
    assert probe(59) is None
    run = probe(60)
    assert run is not None
    assert (run.job_id, run.status, run.reason) == (job.pk, Status.QUEUED, "probe run after a cool-down")
    publish_all()
    Zombies().tick(now=at(61))
    assert Occurrence.objects.filter(trigger="probe").count() == 1
    job.refresh_from_db()
    assert (job.is_active, job.is_probing) == (False, True)


def test_a_probe_that_succeeds_enables_the_job_and_does_not_make_up_for_what_was_missed(
    ends: Any, intake: Intake
) -> None:
    job = disabled(ends, misfire_policy="catch_up")
    run = probe(600)
    assert run is not None
    intake.apply([report(finished(run))], now=at(630))
    job.refresh_from_db()
    assert (job.is_active, job.is_probing, job.probe_at, job.disabled_by) == (True, False, None, "")
    assert (job.consecutive_failure_count, job.next_run_at) == (0, at(660))
    assert [notice["kind"] for notice in notifications()] == ["job.auto_enabled"]
    Dispatcher().tick(now=at(660))
    assert Occurrence.objects.filter(trigger="schedule").count() == 1


def test_a_probe_that_succeeds_for_a_job_whose_zone_is_gone_leaves_the_job_to_the_dispatcher(
    ends: Any, intake: Intake
) -> None:
    job = disabled(ends)
    run = probe(60)
    assert run is not None
    Job.objects.filter(pk=job.pk).update(timezone="Atlantis/Capital")
    intake.apply([report(finished(run))], now=at(70))
    Dispatcher().tick(now=at(71))
    job.refresh_from_db()
    run.refresh_from_db()
    assert (run.status, job.is_active, job.disabled_by) == (Status.COMPLETED, False, Job.DisabledBy.SCHEDULE)
    assert "Atlantis/Capital" in job.disabled_reason
    assert not Occurrence.objects.filter(trigger="schedule").exists()


def test_a_probe_that_fails_is_followed_by_another_cool_down(ends: Any, intake: Intake) -> None:
    job = disabled(ends)
    run = probe(60)
    assert run is not None
    intake.apply([report(finished(run, "failed"))], now=at(70))
    job.refresh_from_db()
    assert (job.is_active, job.is_probing, job.probe_at) == (False, False, at(130))
    assert notifications() == []


def test_a_probe_that_ends_neither_way_is_followed_by_another_one(ends: Any) -> None:
    disabled(ends)
    first = probe(60)
    assert first is not None
    operations.cancel(first.pk, by="olga", now=at(61))
    second = probe(120)
    assert second is not None
    assert second.pk != first.pk


def test_a_probe_that_still_runs_is_the_only_one(ends: Any) -> None:
    disabled(ends)
    first, second = probe(60), probe(120)
    assert first == second


def test_a_person_who_pauses_a_disabled_job_ends_its_probe_runs(ends: Any, intake: Intake) -> None:
    job = disabled(ends)
    run = probe(60)
    assert run is not None
    definitions.pause(job, by=make_operator(), note="leave it")
    intake.apply([report(finished(run))], now=at(70))
    job.refresh_from_db()
    assert (job.is_active, job.probe_at, job.disabled_reason) == (False, None, "paused by olga: leave it")


def test_a_job_whose_probe_cannot_be_made_does_not_stop_the_others(ends: Any) -> None:
    broken, sound = disabled(ends), disabled(ends)
    Job.objects.filter(pk=broken.pk).update(retry_preset="nonsense")
    run = probe(60)
    assert run is not None
    assert run.job_id == sound.pk
    assert Occurrence.objects.filter(trigger="probe").count() == 1
