"""What people ask for: run, cancel, retry, resolve, reopen; what each does and what it refuses."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User

from jobs import definitions
from jobs.errors import InvalidDefinition, NotKnown, NotPossibleNow
from occurrences import operations
from occurrences.lifecycle.intake import Intake
from occurrences.models import Attempt, FailedOccurrence, Occurrence, OutboxMessage
from occurrences.states import FINAL, LIVE, Status
from tests.db.conftest import SetConf
from tests.db.reports import ANNA, FLAW, at, commands, dispatches, finished, report, sent, started
from tests.factories import NOON, make_failure, make_job, make_occurrence, make_operator
from tickwork import contracts
from tickwork.broker import topology
from tickwork.contracts import Cancel

pytestmark = pytest.mark.django_db


def an_operator() -> User:
    return User.objects.filter(username="olga").first() or make_operator()


def failed(intake: Intake, **values: Any) -> Occurrence:
    """One that failed for good."""
    occurrence = sent(max_attempts=1, **values)
    intake.apply([report(started(occurrence), finished(occurrence, "failed", when=at(1)))], now=at(2))
    occurrence.refresh_from_db()
    return occurrence


# ── trigger ────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_by_hand_uses_the_jobs_data_unless_others_are_given() -> None:
    job = make_job(data={"n": 1})
    own = operations.trigger(job, by="olga", now=NOON)
    other = operations.trigger(job, data={"n": 2}, by="olga", trigger="api", now=NOON)
    rows = Occurrence.objects.in_bulk([own, other])
    assert (rows[own].data, rows[own].trigger, rows[own].triggered_by) == ({"n": 1}, "manual", "olga")
    assert (rows[other].data, rows[other].trigger, rows[other].scheduled_for) == ({"n": 2}, "api", None)
    assert rows[own].status_changes[0].by == "olga"
    assert [sent.dispatch.data for sent in dispatches()] == [{"n": 1}, {"n": 2}]


def test_a_call_overrides_the_jobs_policy_for_this_run_only() -> None:
    job = make_job(max_attempts=2)
    once = operations.trigger(job, call={"max_attempts": 9, "timeout_seconds": 5}, now=NOON)
    usual = operations.trigger(job, now=NOON)
    rows = Occurrence.objects.in_bulk([once, usual])
    assert (rows[once].max_attempts, rows[once].timeout_seconds) == (9, 5)
    assert (rows[usual].max_attempts, rows[usual].timeout_seconds) == (2, 1800)
    assert rows[once].policy["sources"]["max_attempts"] == "call"


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 101}, "1 to 100"),
        ({"retry_preset": "x"}, "retry_preset"),
    ],
)
def test_a_policy_value_that_is_not_allowed_is_refused(call: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidDefinition, match=word):
        operations.trigger(make_job(), call=call, now=NOON)
    assert not Occurrence.objects.exists()


def test_a_policy_value_that_nobody_knows_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidDefinition) as refused:
        operations.trigger(make_job(), call={"max_attemps": 5}, now=NOON)
    assert list(refused.value.fields) == ["max_attemps"]


@pytest.mark.parametrize("data", [[], "text", {"when": object()}, {"name": "a\x00b"}, {"name": "\ud800"}])
def test_data_that_are_no_json_object_to_keep_are_refused(data: Any) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        operations.trigger(make_job(), data=data, now=NOON)
    assert list(refused.value.fields) == ["data"]


def test_data_are_measured_in_bytes(set_conf: SetConf) -> None:
    set_conf(max_data_bytes=20)
    operations.trigger(make_job(), data={"n": "123456789012"}, now=NOON)
    with pytest.raises(InvalidDefinition) as refused:
        operations.trigger(make_job(), data={"n": "ü" * 8}, now=NOON)
    assert refused.value.fields == {"data": ["The data are 24 bytes of JSON; at most 20 are allowed."]}


def test_many_runs_are_made_together_or_not_at_all() -> None:
    job = make_job()
    ids = operations.trigger_many(job, [{"n": 1}, None, {"n": 3}], now=NOON)
    assert [Occurrence.objects.get(pk=identifier).data for identifier in ids] == [{"n": 1}, {}, {"n": 3}]
    wrong: Any = [{"n": 1}, "text"]
    with pytest.raises(InvalidDefinition) as refused:
        operations.trigger_many(job, wrong, now=NOON)
    assert refused.value.fields == {"data[1]": ["The data must be a JSON object."]}
    assert Occurrence.objects.count() == 3
    assert operations.trigger_many(job, [], now=NOON) == []


def test_a_call_has_a_limit_of_runs() -> None:
    with pytest.raises(InvalidDefinition, match="at most 10000"):
        operations.trigger_many(make_job(), [None] * 10_001, now=NOON)


def test_a_retired_job_cannot_be_run() -> None:
    job = definitions.retire(make_job(), by=None)
    with pytest.raises(NotPossibleNow) as refused:
        operations.trigger(job, now=NOON)
    assert refused.value.code == "job_retired"


def test_a_paused_job_can_be_run_by_hand() -> None:
    job = definitions.pause(make_job(cron="* * * * *"), by=None)
    operations.trigger(job, now=NOON)
    assert Occurrence.objects.count() == 1


# ── cancel ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_run_is_cancelled_at_once_and_its_message_withdrawn() -> None:
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(), now=NOON))
    assert operations.cancel(occurrence.pk, by="olga", now=at(1)) == "cancelled"
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.ended_at) == (Status.CANCELLED, at(1))
    assert occurrence.reason == "cancelled by olga"
    assert dispatches() == []
    ((key, command),) = commands()  # its message may be with a worker already
    assert key == topology.control_key("steady")
    assert command == Cancel(id=str(occurrence.pk), attempt=1, reason="cancelled by olga", for_good=True)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.UNKNOWN])
def test_a_running_one_is_asked_to_stop_and_stays_as_it_is_until_its_worker_says_so(status: Status) -> None:
    occurrence = sent()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=status, instance=ANNA, started_at=NOON)
    assert operations.cancel(occurrence.pk, by="olga", reason="not today", now=at(1)) == "requested"
    assert operations.cancel(occurrence.pk, by="olga", reason="really", now=at(2)) == "requested"
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.cancel_requested_at) == (status, at(1))
    assert [command.reason for _, command in commands() if isinstance(command, Cancel)] == ["not today", "really"]
    assert occurrence.status_changes[-1].reason == "cancel requested: really"


@pytest.mark.parametrize("status", sorted(FINAL))
def test_what_is_at_its_end_cannot_be_cancelled(status: Status) -> None:
    occurrence = make_occurrence(status=status)
    before = Occurrence.objects.values().get(pk=occurrence.pk)
    with pytest.raises(NotPossibleNow) as refused:
        operations.cancel(occurrence.pk, by="olga")
    assert refused.value.code == "already_final"
    assert Occurrence.objects.values().get(pk=occurrence.pk) == before
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize(
    "ask",
    [
        lambda i: operations.cancel(i, by="olga"),
        lambda i: operations.retry(i, by=an_operator()),
        lambda i: operations.retry(i, by=an_operator(), data={}),
        lambda i: operations.retry_now(i, by="olga"),
    ],
)
def test_an_occurrence_that_nobody_knows_is_said_to_be_unknown(ask: Any) -> None:
    with pytest.raises(NotKnown):
        ask(uuid4())


# ── retry ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_retry_keeps_the_id_and_starts_clean(intake: Intake) -> None:
    occurrence = failed(intake)
    operations.retry(occurrence.pk, by=an_operator(), now=at(10))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt, occurrence.max_attempts) == (Status.QUEUED, 2, 2)
    assert (occurrence.error, occurrence.instance, occurrence.started_at, occurrence.ended_at) == (None, "", None, None)
    assert (occurrence.queued_at, occurrence.next_attempt_at) == (at(10), None)
    attempt = Attempt.objects.get()
    assert (attempt.number, attempt.outcome, attempt.instance, attempt.ended_at) == (1, "failed", ANNA, at(1))
    (message,) = dispatches(occurrence)
    assert (message.dispatch.attempt, message.dispatch.max_attempts) == (2, 2)
    assert contracts.HEADER_MAYBE_DUPLICATE not in message.headers
    failure = FailedOccurrence.objects.get()
    assert (failure.action, failure.note, failure.resolved_at) == ("retried", "retried by olga", at(10))
    assert failure.resolved_by == an_operator()


def test_a_retry_leaves_attempts_that_are_not_used_up_as_they_are(intake: Intake) -> None:
    occurrence = sent(max_attempts=5)
    intake.apply([report(finished(occurrence, "failed", error=contracts.ErrorInfo(type="PermanentError")))], now=at(1))
    operations.retry(occurrence.pk, by=an_operator(), now=at(2))
    occurrence.refresh_from_db()
    assert (occurrence.attempt, occurrence.max_attempts) == (2, 5)


def test_a_retry_can_have_edited_data(intake: Intake) -> None:
    occurrence = failed(intake, data={"n": 1})
    operations.retry(occurrence.pk, by=an_operator(), data={"n": 2}, now=at(10))
    occurrence.refresh_from_db()
    assert occurrence.data == {"n": 2}
    assert dispatches(occurrence)[0].dispatch.data == {"n": 2}


def test_a_retry_with_data_that_do_not_fit_changes_nothing(intake: Intake) -> None:
    occurrence = failed(intake)
    wrong: Any = ["no object"]
    with pytest.raises(InvalidDefinition):
        operations.retry(occurrence.pk, by=an_operator(), data=wrong, now=at(10))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED
    assert FailedOccurrence.objects.get().resolved_at is None


def test_a_retry_that_fails_again_opens_another_failure(intake: Intake) -> None:
    occurrence = failed(intake)
    operations.retry(occurrence.pk, by=an_operator(), now=at(10))
    intake.apply([report(finished(occurrence, "failed", attempt=2, error=FLAW))], now=at(11))
    rows = FailedOccurrence.objects.order_by("attempt").values_list("attempt", "action")
    assert list(rows) == [(1, "retried"), (2, "")]


@pytest.mark.parametrize("status", sorted(FINAL))
def test_everything_that_is_at_its_end_can_be_started_again(status: Status) -> None:
    occurrence = sent()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=status, ended_at=NOON)
    operations.retry(occurrence.pk, by=an_operator(), now=at(10))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt) == (Status.QUEUED, 2)
    assert Attempt.objects.get().outcome == status.name.lower()


@pytest.mark.parametrize("status", sorted(LIVE))
def test_what_is_not_at_its_end_cannot_be_retried(status: Status) -> None:
    occurrence = make_occurrence(status=status)
    with pytest.raises(NotPossibleNow) as refused:
        operations.retry(occurrence.pk, by=an_operator())
    assert refused.value.code == "not_final"


def test_the_wait_for_the_next_attempt_can_be_ended(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(finished(occurrence, "failed"))], now=at(1))
    operations.retry_now(occurrence.pk, by="olga", now=at(2))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt, occurrence.next_attempt_at) == (Status.QUEUED, 2, None)
    (message,) = dispatches(occurrence)  # the one that waited is withdrawn
    assert message.row.next_attempt_at == at(2)
    assert message.headers[contracts.HEADER_MAYBE_DUPLICATE] == 1  # unless the relay had it in hand


def test_what_does_not_wait_for_a_time_has_no_wait_to_end() -> None:
    with pytest.raises(NotPossibleNow) as refused:
        operations.retry_now(sent().pk, by="olga")
    assert refused.value.code == "not_waiting"
    running = make_occurrence(status=Status.RUNNING)
    with pytest.raises(NotPossibleNow):
        operations.retry_now(running.pk, by="olga")


# ── failures ───────────────────────────────────────────────────────────────────────────────────────


def test_failures_are_resolved_together_with_action_note_user_and_time() -> None:
    olga = make_operator()
    first, second, closed = make_failure(), make_failure(), make_failure(resolved_at=NOON, action="ignored", note="old")
    ids = [first.pk, second.pk, closed.pk, uuid4()]
    assert operations.resolve(ids, by=olga, action="fixed", note=" repaired ", now=at(1)) == 2
    first.refresh_from_db()
    closed.refresh_from_db()
    assert (first.action, first.note, first.resolved_by_id, first.resolved_at) == ("fixed", "repaired", olga.pk, at(1))
    assert (closed.action, closed.note) == ("ignored", "old")


@pytest.mark.parametrize(
    ("action", "note", "field"), [("retried", "n", "action"), ("", "n", "action"), ("fixed", "  ", "note")]
)
def test_a_resolution_needs_an_action_that_resolves_and_a_note(action: str, note: str, field: str) -> None:
    failure = make_failure()
    with pytest.raises(InvalidDefinition) as refused:
        operations.resolve([failure.pk], by=make_operator(), action=action, note=note)
    assert list(refused.value.fields) == [field]


def test_a_resolved_failure_can_be_opened_again() -> None:
    olga = make_operator()
    failure = make_failure()
    operations.resolve([failure.pk], by=olga, action="fixed", note="repaired")
    operations.reopen(failure.pk, by=olga)
    failure.refresh_from_db()
    assert (failure.resolved_at, failure.resolved_by, failure.action) == (None, None, "")
    with pytest.raises(NotPossibleNow) as refused:
        operations.reopen(failure.pk, by=olga)
    assert refused.value.code == "already_open"


def test_a_failure_whose_occurrence_went_on_stays_resolved(intake: Intake) -> None:
    olga = make_operator()
    occurrence = failed(intake)
    failure = FailedOccurrence.objects.get()
    operations.retry(occurrence.pk, by=olga, now=at(10))
    for _ in range(2):
        with pytest.raises(NotPossibleNow) as refused:
            operations.reopen(failure.pk, by=olga)
        assert refused.value.code == "superseded"
        intake.apply([report(finished(occurrence, "failed", attempt=2, error=FLAW))], now=at(11))
    with pytest.raises(NotKnown):
        operations.reopen(uuid4(), by=olga)


def test_failures_are_retried_together_and_what_cannot_be_is_left_alone(intake: Intake) -> None:
    olga = make_operator()
    first, second = failed(intake), failed(intake)
    stray = make_failure(make_occurrence(status=Status.FAILED))
    FailedOccurrence.objects.filter(pk=stray.pk).update(occurrence=None)
    gone_on = make_failure(make_occurrence(status=Status.RUNNING))
    ids = list(FailedOccurrence.objects.values_list("pk", flat=True))
    assert operations.retry_failures(ids, by=olga, now=at(10)) == 2
    assert operations.retry_failures(ids, by=olga, now=at(11)) == 0
    for occurrence in (first, second):
        occurrence.refresh_from_db()
        assert (occurrence.status, occurrence.attempt) == (Status.QUEUED, 2)
    done = FailedOccurrence.objects.filter(action="retried").values_list("resolved_by", "note")
    assert set(done) == {(olga.pk, "retried by olga")}
    gone_on.refresh_from_db()
    assert gone_on.resolved_at is None


def test_failures_can_be_retried_with_edited_data(intake: Intake) -> None:
    occurrence = failed(intake, data={"n": 1})
    ids: list[UUID] = list(FailedOccurrence.objects.values_list("pk", flat=True))
    assert operations.retry_failures(ids, by=make_operator(), note="wrong n", data={"n": 2}, now=at(10)) == 1
    occurrence.refresh_from_db()
    assert occurrence.data == {"n": 2}
    assert FailedOccurrence.objects.get().note == "wrong n"
