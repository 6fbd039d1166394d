"""What the database itself refuses, whoever writes; and that a write which lost a race is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from jobs.models import IdempotencyRecord, Job, JobType, JobVersion
from occurrences import operations, sql, transitions
from occurrences.models import FailedOccurrence, Occurrence, OutboxMessage
from occurrences.run import change, load, save
from occurrences.states import Status
from tests.db.reports import ANNA, at
from tests.factories import NOON, make_failure, make_job, make_job_type, make_log, make_occurrence

pytestmark = pytest.mark.django_db


def _tick_twice() -> None:
    job = make_job()
    make_occurrence(job, scheduled_for=NOON)
    make_occurrence(job, scheduled_for=NOON)


def _second_open_failure() -> None:
    occurrence = make_occurrence(status=Status.FAILED)
    make_failure(occurrence)
    make_failure(occurrence)


def _log_line_twice() -> None:
    occurrence = make_occurrence()
    make_log(occurrence, 1)
    make_log(occurrence, 1)


def _version_twice() -> None:
    job = make_job()
    JobVersion.objects.create(job=job, number=1, definition={}, created_at=NOON)


def _job_type_twice() -> None:
    make_job_type(name="work")
    make_job_type(name="work")


def _keep_answer(**values: Any) -> IdempotencyRecord:
    return IdempotencyRecord.objects.create(
        scope="s", key="k", request_hash="h", created_at=NOON, expires_at=NOON, **values
    )


REFUSED: dict[str, Callable[[], Any]] = {
    "occurrence_once_per_tick": _tick_twice,
    "failure_open_once": _second_open_failure,
    "log_line_once": _log_line_twice,
    "job_version_once": _version_twice,
    "job_type_once_per_worker": _job_type_twice,
    "occurrence_attempts": lambda: make_occurrence(attempt=4, max_attempts=3),
    "occurrence_attempts from one": lambda: make_occurrence(attempt=0),
    "occurrence_final_has_end": lambda: make_occurrence(status=Status.COMPLETED, ended_at=None),
    "occurrence_final_has_end, live": lambda: make_occurrence(status=Status.RUNNING, ended_at=NOON),
    "occurrence_status": lambda: Occurrence.objects.filter(pk=make_occurrence().pk).update(status=8),
    "failure_resolution_complete": lambda: make_failure(resolved_at=NOON, action=""),
    "failure_resolution_complete, open": lambda: make_failure(resolved_at=None, action="fixed"),
    "job_has_one_schedule": lambda: Job.objects.filter(pk=make_job().pk).update(cron="* * * * *", execute_at=NOON),
    "job_max_attempts": lambda: Job.objects.filter(pk=make_job().pk).update(max_attempts=101),
    "job_timeout": lambda: Job.objects.filter(pk=make_job().pk).update(timeout_seconds=0),
    "job_jitter": lambda: Job.objects.filter(pk=make_job().pk).update(jitter_seconds=-1),
    "idempotency_final_answer": lambda: _keep_answer(response_status=503),
    "idempotency_final_answer, null": lambda: _keep_answer(response_status=None),
    "idempotency_key_once_per_scope": lambda: (_keep_answer(response_status=200), _keep_answer(response_status=200)),
    "job_ends_after_start": lambda: Job.objects.filter(pk=make_job().pk).update(starts_at=NOON, ends_at=NOON),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_database_refuses(name: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        REFUSED[name]()


def test_two_runs_by_hand_are_no_tick_and_may_coincide() -> None:
    job = make_job()
    make_occurrence(job)
    make_occurrence(job)
    assert Occurrence.objects.filter(job=job, scheduled_for=None).count() == 2


def test_a_failure_may_be_opened_when_the_earlier_one_was_resolved() -> None:
    occurrence = make_occurrence(status=Status.FAILED)
    make_failure(occurrence, resolved_at=NOON, action="fixed")
    make_failure(occurrence)
    assert FailedOccurrence.objects.count() == 2


def test_occurrence_and_message_are_written_together_or_not_at_all() -> None:
    job = make_job()

    @transaction.atomic
    def half_way() -> None:
        operations.trigger_many(job, [None] * 5, now=NOON)
        make_occurrence(job, attempt=0)

    with pytest.raises(IntegrityError):
        half_way()
    assert not Occurrence.objects.exists()
    assert not OutboxMessage.objects.exists()
    assert JobType.objects.count() == 0


# ── races ──────────────────────────────────────────────────────────────────────────────────────────


def running() -> Occurrence:
    return make_occurrence(status=Status.RUNNING, instance=ANNA, heartbeat_at=NOON)


def test_a_move_decided_on_an_earlier_status_is_not_written() -> None:
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(), now=NOON))
    late = load([occurrence.pk])
    operations.cancel(occurrence.pk, by="olga", now=at(1))
    count = OutboxMessage.objects.count()
    transitions.started(late[occurrence.pk], attempt=1, instance=ANNA, at=at(2), now=at(2))
    assert save(late.values(), now=at(2)) == [late[occurrence.pk]]
    occurrence.refresh_from_db()
    assert occurrence.status == Status.CANCELLED
    assert OutboxMessage.objects.count() == count


ONLY_POSTGRESQL = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="on SQLite a transaction has the database for itself"
)


@ONLY_POSTGRESQL
def test_a_cancel_request_between_reading_and_writing_is_not_lost() -> None:
    occurrence = running()
    late = load([occurrence.pk])
    operations.cancel(occurrence.pk, by="olga", now=at(1))
    transitions.progressed(late[occurrence.pk], attempt=1, instance=ANNA, fraction=0.5, message="")
    assert save(late.values(), now=at(2)) == [late[occurrence.pk]]
    occurrence.refresh_from_db()
    assert (occurrence.cancel_requested_at, occurrence.progress) == (at(1), None)


@ONLY_POSTGRESQL
def test_a_heartbeat_between_reading_and_writing_saves_a_run_from_being_declared_lost() -> None:
    occurrence = running()
    late = load([occurrence.pk])
    with transaction.atomic():
        sql.touch_heartbeats([(occurrence.pk, 1, ANNA)], at=at(100))
    transitions.fell_silent(late[occurrence.pk], now=at(100))
    assert save(late.values(), now=at(100)) == [late[occurrence.pk]]
    occurrence.refresh_from_db()
    assert occurrence.status == Status.RUNNING


def test_what_lost_a_race_is_decided_anew() -> None:
    occurrence = running()
    reads = 0

    def decide(run: Any) -> str:
        nonlocal reads
        reads += 1
        if reads == 1:
            Occurrence.objects.filter(pk=occurrence.pk).update(instance="another")
        return transitions.cancel(run, by="olga", reason="", now=at(1))

    assert change([occurrence.pk], decide, now=at(1)) == {occurrence.pk: "requested"}
    assert reads == 2
    occurrence.refresh_from_db()
    assert (occurrence.instance, occurrence.cancel_requested_at) == ("another", at(1))


def test_an_illegal_move_is_a_programming_error_and_writes_nothing() -> None:
    occurrence = make_occurrence(status=Status.COMPLETED)
    run = load([occurrence.pk])[occurrence.pk]
    with pytest.raises(AssertionError, match="Completed to Unknown is no legal move"):
        transitions.fell_silent(run, now=at(1))
