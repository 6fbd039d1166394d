"""Heartbeats: what instances have at hand is renewed, revived, or told to stop where that may have been missed."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from occurrences import operations
from occurrences.lifecycle.intake import Intake
from occurrences.models import Occurrence
from occurrences.states import Status
from tests.db.reports import ANNA, BERT, at, commands, heartbeat, publish_all, report, running
from tests.factories import NOON, make_job, make_occurrence
from tickwork.broker import topology
from tickwork.contracts import Cancel
from workers_app.models import WorkerInstance

pytestmark = pytest.mark.django_db


def test_a_heartbeat_renews_what_its_instance_runs_and_nothing_else(intake: Intake) -> None:
    hers, not_hers, other_attempt = running(), running(), running()
    Occurrence.objects.filter(pk=not_hers.pk).update(instance=BERT)
    Occurrence.objects.filter(pk=other_attempt.pk).update(attempt=2)
    intake.apply([report(heartbeat(hers, not_hers, other_attempt))], now=at(30))
    seen = dict(Occurrence.objects.values_list("pk", "heartbeat_at"))
    assert seen == {hers.pk: at(30), not_hers.pk: NOON, other_attempt.pk: NOON}
    assert WorkerInstance.objects.get(pk=ANNA).running_count == 3


def told_to_stop(occurrence: Occurrence) -> list[str]:
    """Whom the outbox tells so, by routing key."""
    return [key for key, command in commands() if isinstance(command, Cancel) and command.id == str(occurrence.pk)]


def test_a_cancellation_that_its_worker_may_have_missed_is_told_again_when_the_worker_is_heard(intake: Intake) -> None:
    asked, other = running(), running()
    operations.cancel(asked.pk, by="olga", reason="not today", now=at(1))
    publish_all()
    intake.apply([report(heartbeat(asked, other))], now=at(5.9))
    assert commands() == [], "it has only just been asked for"
    told = [report(heartbeat(asked, other)), report(heartbeat(asked)), report(heartbeat(asked), instance=BERT)]
    intake.apply(told, now=at(6))
    stop = Cancel(id=str(asked.pk), attempt=1, reason="not today", for_good=True)
    assert commands() == [(topology.control_key("steady", ANNA), stop)]


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.FAILED])
def test_who_has_at_hand_what_is_over_is_told_so(intake: Intake, status: Status) -> None:
    never_begun = make_occurrence(status=status, instance="")
    begun = make_occurrence(status=status, instance=ANNA)
    another_ones = make_occurrence(status=status, instance=BERT)
    intake.apply([report(heartbeat(never_begun, begun, another_ones))], now=at(5))
    assert told_to_stop(never_begun) == told_to_stop(begun) == [topology.control_key("steady", ANNA)]
    assert told_to_stop(another_ones) == []


def test_a_cancellation_is_told_again_to_whoever_is_heard_after_a_long_silence(intake: Intake) -> None:
    occurrence = running()
    operations.cancel(occurrence.pk, by="olga", now=at(1))
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    publish_all()
    intake.apply([report(heartbeat(occurrence))], now=at(90))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.RUNNING
    assert told_to_stop(occurrence) == [topology.control_key("steady", ANNA)]


def test_of_several_heartbeats_in_one_pass_the_last_one_counts(intake: Intake) -> None:
    first, second = running(), running()
    told = [report(heartbeat(first, second)), report(heartbeat(second)), report(heartbeat(), instance=BERT)]
    with CaptureQueriesContext(connection) as captured:
        intake.apply([*told[:1] * 20, *told[1:]], now=at(10))
    assert dict(WorkerInstance.objects.values_list("name", "running_count")) == {ANNA: 1, BERT: 0}
    assert set(Occurrence.objects.values_list("heartbeat_at", flat=True)) == {at(10)}
    noted = [query for query in captured if query["sql"].startswith('UPDATE "workers_app_workerinstance"')]
    assert len(noted) == 2


def test_heartbeats_cost_as_many_queries_for_many_runs_as_for_few(intake: Intake) -> None:
    def queries(count: int) -> int:
        ids = operations.trigger_many(make_job(), [None] * count, now=NOON)
        Occurrence.objects.filter(pk__in=ids).update(
            status=Status.RUNNING, instance=ANNA, started_at=NOON, cancel_requested_at=NOON
        )
        with CaptureQueriesContext(connection) as captured:
            intake.apply([report(heartbeat(*ids))], now=at(10))
        if connection.vendor == "postgresql":
            return len(captured)
        return len([query for query in captured if not query["sql"].startswith(("UPDATE occ", "INSERT"))])

    queries(1)
    assert queries(40) == queries(10)


def test_an_unknown_occurrence_is_running_again_when_its_instance_is_heard(intake: Intake) -> None:
    occurrence = running()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    intake.apply([report(heartbeat(occurrence)), report(heartbeat(occurrence), instance=BERT)], now=at(90))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.heartbeat_at, occurrence.instance) == (Status.RUNNING, at(90), ANNA)
    assert occurrence.status_changes[-1].reason == "heard again"


def test_an_unknown_occurrence_stays_so_for_another_instance(intake: Intake) -> None:
    occurrence = running()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    intake.apply([report(heartbeat(occurrence), instance=BERT)], now=at(90))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.UNKNOWN
