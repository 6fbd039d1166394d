"""Heard: what workers report moves occurrences on, in order, once, and only by the attempt's holder."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from occurrences import operations, transitions
from occurrences.lifecycle.intake import Intake
from occurrences.models import Attempt, FailedOccurrence, Occurrence, OccurrenceLog
from occurrences.run import change
from occurrences.states import Status
from tests.db.reports import (
    ANNA,
    BERT,
    at,
    commands,
    dispatches,
    finished,
    heartbeat,
    line,
    progress,
    publish_all,
    raw_delivery,
    report,
    running,
    sent,
    started,
)
from tests.factories import NOON, make_job, make_occurrence
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Message
from tickwork.contracts import Cancel, ErrorInfo

pytestmark = pytest.mark.django_db


def moves(occurrence: Occurrence) -> list[tuple[Status, int]]:
    return [(change.status, change.attempt) for change in occurrence.status_changes]


# ── the ordinary way ───────────────────────────────────────────────────────────────────────────────


def test_a_report_travels_through_the_broker_and_is_acknowledged_when_it_is_written(
    intake: Intake, broker: Broker
) -> None:
    occurrence = sent()
    publisher = broker.publisher([topology.events_queue()])
    publisher.publish(
        [
            Message(exchange=topology.EVENTS, routing_key=topology.events_key("steady", ANNA), body=report(event).body)
            for event in (started(occurrence), finished(occurrence, when=at(2), result=b'{"rows":42}'))
        ]
    )
    handled = 0
    while handled < 2:
        handled += intake.tick(now=at(3))
    intake.close()
    publisher.close()

    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.result, occurrence.instance) == (Status.COMPLETED, {"rows": 42}, ANNA)
    assert (occurrence.started_at, occurrence.ended_at) == (NOON, at(2))
    assert broker.depth(topology.events_queue()) == 0


def test_started_and_finished_of_one_batch_are_folded_into_one_move_with_all_its_times(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(started(occurrence), finished(occurrence, when=at(1.5)))], now=at(2))
    occurrence.refresh_from_db()
    assert moves(occurrence) == [(Status.QUEUED, 1), (Status.RUNNING, 1), (Status.COMPLETED, 1)]
    assert [change.by for change in occurrence.status_changes] == ["manual", ANNA, ANNA]
    assert occurrence.duration_seconds == 1.5
    assert not Attempt.objects.exists()


def test_a_quick_attempt_is_told_by_its_finished_event_alone(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(finished(occurrence, when=at(1), started_at=at(0.5)))], now=at(2))
    occurrence.refresh_from_db()
    assert moves(occurrence) == [(Status.QUEUED, 1), (Status.RUNNING, 1), (Status.COMPLETED, 1)]
    assert (occurrence.started_at, occurrence.instance) == (at(0.5), ANNA)


def test_finished_before_started_completes_and_the_late_start_changes_nothing(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(finished(occurrence), started(occurrence))], now=at(1))
    intake.apply([report(started(occurrence))], now=at(2))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.COMPLETED
    assert moves(occurrence)[-1] == (Status.COMPLETED, 1)


def test_an_attempt_that_ended_before_it_started_is_still_its_reporters(intake: Intake) -> None:
    occurrence = sent()
    told = report(finished(occurrence, "failed", started_at=None, error=ErrorInfo(type="PermanentError")))
    intake.apply([told], now=at(1))
    before = Occurrence.objects.values().get(pk=occurrence.pk)
    intake.apply([told], now=at(2))
    assert Occurrence.objects.values().get(pk=occurrence.pk) == before
    assert (before["instance"], before["started_at"]) == (ANNA, None)


@pytest.mark.parametrize("outcome", ["completed", "cancelled", "timed_out"])
def test_the_same_report_again_changes_nothing(intake: Intake, outcome: contracts.Outcome) -> None:
    occurrence = sent()
    told = [report(started(occurrence)), report(line(occurrence, 1), finished(occurrence, outcome))]
    intake.apply(told, now=at(1))
    before = Occurrence.objects.values().get(pk=occurrence.pk)
    intake.apply(told, now=at(2))
    assert Occurrence.objects.values().get(pk=occurrence.pk) == before
    assert OccurrenceLog.objects.count() == 1
    assert FailedOccurrence.objects.count() <= 1


def test_a_worker_clock_that_runs_backwards_gives_no_negative_duration(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(started(occurrence, when=at(10)), finished(occurrence, when=at(3)))], now=at(11))
    occurrence.refresh_from_db()
    assert occurrence.duration_seconds == 0


def test_a_report_about_an_occurrence_that_nobody_knows_is_dropped(intake: Intake) -> None:
    ghost = make_occurrence()
    Occurrence.objects.all().delete()
    intake.apply([report(started(ghost), line(ghost, 1), finished(ghost))], now=at(1))
    assert not OccurrenceLog.objects.exists()
    assert not FailedOccurrence.objects.exists()


# ── outcomes ───────────────────────────────────────────────────────────────────────────────────────


def test_a_failure_with_attempts_left_waits_for_the_next_attempt(intake: Intake) -> None:
    occurrence = sent(max_attempts=3, retry_preset="milvaion")
    error = ErrorInfo(type="app.Flaky", message="try again", traceback="Traceback …")
    intake.apply([report(started(occurrence), finished(occurrence, "failed", when=at(5), error=error))], now=at(6))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt, occurrence.next_attempt_at) == (Status.QUEUED, 2, at(16))
    assert (occurrence.instance, occurrence.started_at, occurrence.error, occurrence.ended_at) == ("", None, None, None)
    attempt = Attempt.objects.get()
    assert (attempt.number, attempt.outcome, attempt.instance) == (1, "failed", ANNA)
    assert (attempt.started_at, attempt.ended_at) == (NOON, at(5))
    assert attempt.error == {"type": "app.Flaky", "message": "try again", "traceback": "Traceback …"}
    (message,) = dispatches(occurrence)
    assert (message.dispatch.attempt, message.row.next_attempt_at) == (2, at(16))
    assert (message.headers["x-attempt"], message.headers["x-retry-count"], message.headers["x-max-retries"]) == (
        2,
        1,
        2,
    )
    assert contracts.HEADER_MAYBE_DUPLICATE not in message.headers
    assert not FailedOccurrence.objects.exists()


def test_the_last_attempts_failure_is_kept_for_an_operator(intake: Intake) -> None:
    occurrence = sent(max_attempts=1)
    error = ErrorInfo(type="app.Flaky", message="no luck", traceback='File "a.py", line 3, in f')
    intake.apply([report(started(occurrence), finished(occurrence, "failed", when=at(5), error=error))], now=at(6))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.ended_at) == (Status.FAILED, at(5))
    assert (occurrence.error or {})["message"] == "no luck"
    assert occurrence.reason == "Attempts exhausted: no luck"
    failure = FailedOccurrence.objects.get()
    assert (failure.occurrence_id, failure.job_id, failure.kind) == (
        occurrence.pk,
        occurrence.job_id,
        "attempts_exhausted",
    )
    assert (failure.attempt, failure.error_type, failure.error_message) == (1, "app.Flaky", "no luck")
    assert (failure.traceback, failure.resolved_at) == (error.traceback, None)


@pytest.mark.parametrize(
    "error",
    [
        ErrorInfo(type="PermanentError", message="never"),
        ErrorInfo(type="app.Odd", message="never", retryable=False),
        ErrorInfo(type="pydantic.ValidationError", message="never"),
    ],
)
def test_a_permanent_error_ends_the_occurrence_at_its_first_attempt(intake: Intake, error: ErrorInfo) -> None:
    occurrence = sent(max_attempts=5)
    intake.apply([report(finished(occurrence, "failed", error=error))], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt) == (Status.FAILED, 1)
    assert FailedOccurrence.objects.get().kind == "permanent"


def test_a_failed_report_without_an_error_is_still_a_failure(intake: Intake) -> None:
    occurrence = sent(max_attempts=1)
    body = report(finished(occurrence)).body.replace(b'"completed"', b'"failed"')
    intake.apply([raw_delivery(body)], now=at(1))
    assert FailedOccurrence.objects.get().error_message == "the worker gave no error"


def test_what_the_job_or_a_server_asked_to_wait_is_waited_when_it_is_later(intake: Intake) -> None:
    patient, hasty = sent(retry_preset="milvaion"), sent(retry_preset="milvaion")
    for occurrence, after in ((patient, 120.0), (hasty, 1.0)):
        error = ErrorInfo(type="RetryableError", retryable=True, retry_after=after)
        intake.apply([report(finished(occurrence, "failed", error=error))], now=NOON)
    patient.refresh_from_db()
    hasty.refresh_from_db()
    assert (patient.next_attempt_at, hasty.next_attempt_at) == (at(120), at(10))


def test_a_timeout_ends_the_occurrence_unless_its_policy_says_to_try_again(intake: Intake) -> None:
    final, again = sent(), sent(retry_on_timeout=True)
    intake.apply([report(finished(final, "timed_out"), finished(again, "timed_out"))], now=at(1))
    final.refresh_from_db()
    again.refresh_from_db()
    assert (final.status, again.status, again.attempt) == (Status.TIMED_OUT, Status.QUEUED, 2)
    assert FailedOccurrence.objects.get().kind == "timed_out"
    assert Attempt.objects.get().outcome == "timed_out"


def test_an_interrupted_attempt_is_sent_again_without_being_used_up(intake: Intake) -> None:
    occurrence = running(max_attempts=1)
    intake.apply([report(finished(occurrence, "interrupted", when=at(-3600)))], now=at(10))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt, occurrence.instance) == (Status.QUEUED, 1, "")
    assert occurrence.queued_at == at(10)  # the scheduler's clock: it tells this copy from earlier ones
    (message,) = dispatches(occurrence)
    assert message.headers[contracts.HEADER_MAYBE_DUPLICATE] == 1
    assert message.headers["x-queued-at"] == at(10).isoformat()
    assert Attempt.objects.get().outcome == "interrupted"


def test_an_attempt_that_a_person_cancelled_ends_as_cancelled_however_it_ends(intake: Intake) -> None:
    for outcome in ("cancelled", "failed", "timed_out", "interrupted"):
        occurrence = running(max_attempts=5, retry_on_timeout=True)
        operations.cancel(occurrence.pk, by="olga", reason="not today", now=at(1))
        intake.apply([report(finished(occurrence, outcome))], now=at(2))
        occurrence.refresh_from_db()
        assert (outcome, occurrence.status, occurrence.reason) == (outcome, Status.CANCELLED, "not today")
    assert not FailedOccurrence.objects.exists()


def test_an_attempt_that_completed_in_spite_of_a_cancel_request_is_completed(intake: Intake) -> None:
    occurrence = running()
    operations.cancel(occurrence.pk, by="olga", now=at(1))
    intake.apply([report(finished(occurrence))], now=at(2))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.reason) == (Status.COMPLETED, "")


def test_a_job_that_cancelled_itself_says_so_whatever_happened_before(intake: Intake) -> None:
    occurrence = running()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    intake.apply([report(heartbeat(occurrence))], now=at(1))
    intake.apply([report(finished(occurrence, "cancelled"))], now=at(2))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.reason) == (Status.CANCELLED, "cancelled by the job")


def test_why_it_shall_be_cancelled_outlives_a_silence_of_its_worker(intake: Intake) -> None:
    occurrence = running()
    operations.cancel(occurrence.pk, by="olga", reason="not today", now=at(1))
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    intake.apply([report(heartbeat(occurrence))], now=at(2))
    intake.apply([report(finished(occurrence, "cancelled"))], now=at(3))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.reason) == (Status.CANCELLED, "not today")


# ── stale reports ──────────────────────────────────────────────────────────────────────────────────


def test_a_report_of_an_attempt_that_is_over_is_noted_and_moves_nothing(intake: Intake) -> None:
    occurrence = sent(max_attempts=3, retry_preset="milvaion")
    intake.apply([report(started(occurrence), finished(occurrence, "failed"))], now=at(1))
    intake.apply([report(finished(occurrence, "completed", attempt=1), instance=BERT)], now=at(2))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt, occurrence.result) == (Status.QUEUED, 2, None)
    assert occurrence.status_changes[-1].reason == "late report ignored: attempt 1 completed"
    assert occurrence.status_changes[-1].by == BERT


def test_a_report_of_another_instance_than_the_holder_moves_nothing(intake: Intake) -> None:
    occurrence = running()
    intake.apply([report(progress(occurrence, 0.9), finished(occurrence, "failed"), instance=BERT)], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.instance, occurrence.progress) == (Status.RUNNING, ANNA, None)


def test_whoever_starts_what_is_not_its_own_is_told_to_stop(intake: Intake) -> None:
    occurrence = running()
    intake.apply([report(started(occurrence), instance=BERT)], now=at(1))
    ((key, command),) = commands()
    assert key == topology.control_key("steady", BERT)
    assert command == Cancel(id=str(occurrence.pk), attempt=1, reason="not held by this instance")


def test_a_run_cancelled_while_it_was_on_its_way_is_stopped_when_it_starts(intake: Intake) -> None:
    occurrence = sent()
    operations.cancel(occurrence.pk, by="olga", now=at(1))
    publish_all()
    intake.apply([report(started(occurrence))], now=at(2))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.CANCELLED
    ((key, command),) = commands()
    assert (key, type(command)) == (topology.control_key("steady", ANNA), Cancel)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT])
def test_a_final_status_never_changes_and_a_late_final_report_is_noted(intake: Intake, status: Status) -> None:
    occurrence = make_occurrence(status=status, instance=ANNA)
    intake.apply([report(finished(occurrence, result=b'"other"'), instance=BERT)], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.result, occurrence.ended_at) == (status, None, NOON)
    assert occurrence.status_changes[-1].reason == "late report ignored: attempt 1 completed"
    assert occurrence.status_changes[-1].status == status


@pytest.mark.parametrize("outcome", ["completed", "failed", "timed_out"])
def test_an_end_that_is_told_again_is_not_noted_even_when_the_next_attempt_is_there(
    intake: Intake, outcome: contracts.Outcome
) -> None:
    occurrence = sent(max_attempts=3, retry_preset="milvaion", retry_on_timeout=True)
    told = report(finished(occurrence, outcome))
    intake.apply([report(started(occurrence)), told], now=at(1))
    if outcome == "completed":
        change([occurrence.pk], lambda run: transitions.retry_final(run, by="olga", now=at(2)), now=at(2))
    before = Occurrence.objects.values().get(pk=occurrence.pk)
    assert (before["status"], before["attempt"]) == (Status.QUEUED, 2)
    intake.apply([told], now=at(3))
    assert Occurrence.objects.values().get(pk=occurrence.pk) == before


def test_a_late_report_is_noted_once_however_often_it_is_told(intake: Intake) -> None:
    occurrence = running()
    for moment in (1, 2):
        intake.apply([report(finished(occurrence), instance=BERT)], now=at(moment))
    occurrence.refresh_from_db()
    assert [change.reason for change in occurrence.status_changes].count(
        "late report ignored: attempt 1 completed"
    ) == 1


def test_a_late_result_of_what_counted_as_a_zombie_is_noted(intake: Intake) -> None:
    occurrence = running()
    change([occurrence.pk], lambda run: transitions.zombie(run, now=at(1), reason="silent"), now=at(1))
    intake.apply([report(finished(occurrence))], now=at(2))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED
    assert occurrence.status_changes[-1].reason == "late report ignored: attempt 1 completed"


def test_a_cancellation_that_both_sides_know_is_not_noted_as_late(intake: Intake) -> None:
    occurrence = sent()
    operations.cancel(occurrence.pk, by="olga", now=at(1))
    before = Occurrence.objects.values().get(pk=occurrence.pk)
    intake.apply([report(finished(occurrence, "cancelled", started_at=None))], now=at(2))
    assert Occurrence.objects.values().get(pk=occurrence.pk) == before


def test_notes_in_a_history_are_bounded(intake: Intake) -> None:
    occurrence = make_occurrence(status=Status.COMPLETED, instance=ANNA)
    for _ in range(3):
        intake.apply([report(*[finished(occurrence, attempt=n) for n in range(2, 400)], instance=BERT)], now=at(1))
    occurrence.refresh_from_db()
    assert 200 < len(occurrence.history) < 500


# ── progress, logs ─────────────────────────────────────────────────────────────────────────────────


def test_the_late_result_of_an_unknown_occurrence_counts(intake: Intake) -> None:
    occurrence = running()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    intake.apply([report(finished(occurrence, result=b"1"))], now=at(90))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.result) == (Status.COMPLETED, 1)


def test_progress_is_kept_within_its_bounds_and_full_at_the_end(intake: Intake) -> None:
    occurrence = running()
    intake.apply([report(progress(occurrence, 0.25, "a quarter"), progress(occurrence, 7.0, "x" * 900))], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.progress, len(occurrence.progress_message)) == (1.0, 500)
    intake.apply([report(progress(occurrence, -3.0))], now=at(2))
    occurrence.refresh_from_db()
    assert occurrence.progress == 0.0
    intake.apply([report(finished(occurrence))], now=at(3))
    occurrence.refresh_from_db()
    assert occurrence.progress == 1.0


def test_a_log_line_is_kept_once_with_its_fields(intake: Intake) -> None:
    occurrence = running()
    told = report(line(occurrence, 1, "one", size=3), line(occurrence, 2, "two"), line(occurrence, 1, "twice"))
    intake.apply([told, told], now=at(1))
    intake.apply([told], now=at(2))
    rows = OccurrenceLog.objects.values_list("attempt", "sequence", "message", "fields")
    assert list(rows) == [(1, 1, "one", {"size": 3}), (1, 2, "two", {})]


# ── races and cost ─────────────────────────────────────────────────────────────────────────────────


def test_a_failure_counts_for_its_job_once_however_often_it_is_reported(intake: Intake) -> None:
    job = make_job(max_attempts=1)
    told = [report(finished(sent(job), "failed")) for _ in range(2)]
    intake.apply(told, now=at(1))
    intake.apply(told, now=at(2))
    job.refresh_from_db()
    assert job.consecutive_failure_count == 2


def test_a_pass_costs_as_many_queries_for_many_occurrences_as_for_few(intake: Intake) -> None:
    job = make_job()

    def queries(count: int) -> int:
        ids = operations.trigger_many(job, [None] * count, now=NOON)
        told = [report(started(i), line(i, 1), finished(i, when=NOON + timedelta(seconds=1))) for i in ids]
        with CaptureQueriesContext(connection) as captured:
            intake.apply(told, now=at(2))
        if connection.vendor == "postgresql":
            return len(captured)
        # SQLite writes row by row: a statement is a function call there, not a round trip.
        return len([query for query in captured if not query["sql"].startswith("UPDATE occurrences_occurrence")])

    queries(1)
    assert queries(60) == queries(10)
    assert Occurrence.objects.filter(status=Status.COMPLETED).count() == 71
