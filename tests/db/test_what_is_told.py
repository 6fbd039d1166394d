"""A move is logged and announced once, when it is written; what moves nothing is not told as if it did."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jobs import announcer
from jobs.models import Job
from occurrences import operations
from occurrences.lifecycle.dispatch import Dispatcher
from occurrences.lifecycle.intake import Intake
from occurrences.models import FailedOccurrence, Occurrence
from tests.db.reports import BERT, at, finished, line, progress, report, started
from tests.factories import NOON, make_job, make_operator

pytestmark = pytest.mark.django_db


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any) -> Any:
    """Do something and commit; returns the topics that this touched."""

    def topics(deed: Any) -> set[str]:
        gathered: list[Any] = []
        monkeypatch.setattr(announcer._announcer, "gather", gathered.extend)
        with django_capture_on_commit_callbacks(execute=True):
            deed()
        return announcer.topics_of(gathered)

    return topics


def test_a_failure_is_logged_once_however_many_late_reports_follow(
    intake: Intake, caplog: pytest.LogCaptureFixture
) -> None:
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(max_attempts=1), now=NOON))
    with caplog.at_level(logging.INFO, "tickwork.occurrences"):
        intake.apply([report(finished(occurrence, "failed"))], now=at(1))
        intake.apply([report(finished(occurrence), instance=BERT)], now=at(2))
    occurrence.refresh_from_db()
    assert occurrence.status_changes[-1].reason == "late report ignored: attempt 1 completed"
    assert caplog.messages.count("occurrence.failed") == 1


def test_a_move_touches_the_lists_and_what_moves_nothing_only_its_occurrences_page(
    intake: Intake, announced: Any
) -> None:
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(), now=NOON))
    page = f"occurrence:{occurrence.pk}"
    told = announced(lambda: intake.apply([report(started(occurrence))], now=at(1)))
    assert {page, f"job:{occurrence.job_id}", "overview"} <= told
    assert announced(lambda: intake.apply([report(progress(occurrence, 0.5))], now=at(2))) == {page}
    assert announced(lambda: intake.apply([report(line(occurrence, 1))], now=at(2))) == {page}
    assert announced(lambda: operations.cancel(occurrence.pk, by="olga", now=at(3))) == {page}
    assert "overview" in announced(lambda: intake.apply([report(finished(occurrence))], now=at(4)))


def test_whatever_closes_or_opens_a_failure_is_announced_to_the_inbox(intake: Intake, announced: Any) -> None:
    olga = make_operator()
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(max_attempts=1), now=NOON))
    assert "failures" in announced(lambda: intake.apply([report(finished(occurrence, "failed"))], now=at(1)))
    (failure,) = FailedOccurrence.objects.values_list("pk", flat=True)
    deeds = [
        lambda: operations.resolve([failure], by=olga, action="fixed", note="repaired"),
        lambda: operations.reopen(failure, by=olga),
        lambda: operations.retry_failures([failure], by=olga),
    ]
    assert all("failures" in announced(deed) for deed in deeds)


def test_a_job_that_the_dispatcher_sets_aside_is_announced(announced: Any) -> None:
    job = make_job(cron="* * * * *", now=NOON)
    Job.objects.filter(pk=job.pk).update(timezone="Mars/Olympus")
    assert f"job:{job.pk}" in announced(lambda: Dispatcher().tick(now=at(60)))
