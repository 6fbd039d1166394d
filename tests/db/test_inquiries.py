"""A worker asks before it runs what somebody else may run: who gets the attempt, and who hears what."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection

from occurrences import operations
from occurrences.lifecycle.intake import DEAF_AFTER_SECONDS, Intake
from occurrences.models import Attempt, Occurrence
from occurrences.states import FINAL, Status
from tests.db.conftest import SetConf
from tests.db.reports import ANNA, BERT, asks, at, commands, finished, heartbeat, publish_all, report, started
from tests.factories import NOON, make_instance, make_job, make_occurrence, make_worker
from tests.waiting import eventually
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Message
from tickwork.contracts import Cancel, Granted, Stopped, Verdict

pytestmark = pytest.mark.django_db


def sent(**values: object) -> Occurrence:
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(**values), now=NOON))
    publish_all()
    return occurrence


def held_by_anna(**values: object) -> Occurrence:
    """Running on an instance that was heard at noon."""
    occurrence = sent(**values)
    Occurrence.objects.filter(pk=occurrence.pk).update(
        status=Status.RUNNING, instance=ANNA, started_at=NOON, heartbeat_at=NOON, progress=0.5
    )
    make_instance(make_worker(), name=ANNA)
    occurrence.refresh_from_db()
    return occurrence


def verdicts() -> list[tuple[str, str, str]]:
    """(routing key, action, reason) of each verdict that waits in the outbox."""
    return [(key, c.action, c.reason) for key, c in commands() if isinstance(c, Verdict)]


def to(instance: str) -> str:
    return topology.control_key("steady", instance)


@pytest.fixture(autouse=True)
def _lost_after_30_seconds(set_conf: SetConf) -> None:
    set_conf(worker_lost_after_seconds=30)


@pytest.fixture
def intake(intake: Intake) -> Intake:
    """An event consumer that has listened since long before noon."""
    intake.hearing_since = at(-3600)
    return intake


def test_an_attempt_that_nobody_has_is_given_to_whoever_asks_first_and_the_second_waits(intake: Intake) -> None:
    occurrence = sent()
    make_instance(make_worker(), name=ANNA)
    intake.apply([report(asks(occurrence)), report(asks(occurrence), instance=BERT)], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.instance, occurrence.started_at) == (Status.RUNNING, ANNA, None)
    assert verdicts() == [(to(ANNA), "run", "nobody else has it"), (to(BERT), "wait", f"held by {ANNA}")]


def test_the_grant_counts_as_being_heard_and_the_start_that_follows_sets_the_time(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(asks(occurrence))], now=at(1))
    intake.apply([report(started(occurrence, when=at(2)))], now=at(3))
    occurrence.refresh_from_db()
    assert (occurrence.started_at, occurrence.heartbeat_at, occurrence.next_attempt_at) == (at(2), at(3), None)


def test_who_holds_the_attempt_already_may_go_on(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(asks(occurrence))], now=at(1))
    before = occurrence.history
    occurrence.refresh_from_db()
    assert verdicts() == [(to(ANNA), "run", "nobody else has it")]
    assert (occurrence.history, occurrence.progress) == (before, 0.5)


def test_another_instances_attempt_is_not_given_away_while_that_one_is_heard(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(30 - 0.001))
    assert verdicts() == [(to(BERT), "wait", f"held by {ANNA}")]
    occurrence.refresh_from_db()
    assert occurrence.instance == ANNA


def test_the_attempt_of_an_instance_that_fell_silent_is_taken_over(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(31))
    occurrence.refresh_from_db()
    assert verdicts() == [(to(BERT), "run", f"taken over from {ANNA}, which is gone")]
    assert (occurrence.status, occurrence.instance, occurrence.attempt) == (Status.RUNNING, BERT, 1)
    assert (occurrence.started_at, occurrence.heartbeat_at, occurrence.progress) == (None, at(31), None)
    assert Attempt.objects.values_list("outcome", "instance").get() == ("taken_over", ANNA)


def test_a_heartbeat_in_the_same_batch_keeps_the_attempt_with_its_holder(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(asks(occurrence), instance=BERT), report(heartbeat(occurrence))], now=at(31))
    assert verdicts() == [(to(BERT), "wait", f"held by {ANNA}")]


def test_a_start_that_was_heard_lately_counts_as_much_as_a_heartbeat(intake: Intake) -> None:
    occurrence = sent()
    make_instance(make_worker(), name=ANNA)  # heard for the last time at noon
    intake.apply([report(started(occurrence))], now=at(40))
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(69))
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(70))
    assert [action for _, action, _ in verdicts()] == ["wait", "run"]


def test_of_two_that_ask_at_once_about_what_a_third_lost_only_one_gets_it(intake: Intake) -> None:
    occurrence = held_by_anna()
    told = [report(asks(occurrence), instance=BERT), report(asks(occurrence), instance="steady-host-3-carl")]
    intake.apply(told, now=at(31))
    assert [(key, action) for key, action, _ in verdicts()] == [(to(BERT), "run"), (to("steady-host-3-carl"), "wait")]


def test_an_instance_that_said_goodbye_is_gone_at_once(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(Stopped(at=NOON)), report(asks(occurrence), instance=BERT)], now=at(1))
    assert [action for _, action, _ in verdicts()] == ["run"]


def test_every_instance_hears_who_got_an_attempt(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(1))
    assert [command for _, command in commands() if isinstance(command, Granted)] == []
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(31))
    assert [(key, command) for key, command in commands() if isinstance(command, Granted)] == [
        (topology.control_key("steady"), Granted(id=str(occurrence.pk), attempt=1, instance=BERT))
    ]


def test_an_unknown_occurrence_of_a_silent_instance_is_taken_over(intake: Intake) -> None:
    occurrence = held_by_anna()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(61))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.instance) == (Status.RUNNING, BERT)


def test_silence_counts_only_from_when_somebody_listened(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.hearing_since = at(3600)
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(3629))
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(3631))
    assert [action for _, action, _ in verdicts()] == ["wait", "run"]


def test_without_a_listener_nobody_counts_as_gone(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.hearing_since = None
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(36_000))
    assert [action for _, action, _ in verdicts()] == ["wait"]


def test_what_was_taken_over_is_no_longer_its_former_holders(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(31))
    intake.apply([report(finished(occurrence, result=b'"anna"'))], now=at(32))
    intake.apply([report(started(occurrence), finished(occurrence, result=b'"bert"'), instance=BERT)], now=at(33))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.result) == (Status.COMPLETED, "bert")
    assert "late report ignored: attempt 1 completed" in [change.reason for change in occurrence.status_changes]


def test_a_cancel_request_whose_worker_died_is_not_run_by_the_next_one_but_carried_out(intake: Intake) -> None:
    occurrence = held_by_anna()
    operations.cancel(occurrence.pk, by="olga", reason="not today", now=at(1))
    publish_all()
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(31))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.reason) == (Status.CANCELLED, "not today")
    assert verdicts() == [(to(BERT), "drop", "its cancellation was asked for")]


@pytest.mark.parametrize("status", sorted(FINAL))
def test_a_delivery_of_something_finished_is_dropped(intake: Intake, status: Status) -> None:
    occurrence = make_occurrence(status=status)
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(1))
    assert verdicts() == [(to(BERT), "drop", f"already {status.label}")]


def test_a_delivery_of_an_earlier_attempt_is_dropped(intake: Intake) -> None:
    occurrence = make_occurrence(attempt=2)
    intake.apply([report(asks(occurrence, attempt=1))], now=at(1))
    assert verdicts() == [(to(ANNA), "drop", "attempt 2 is the current one")]


def test_a_delivery_of_something_purged_is_dropped(intake: Intake) -> None:
    occurrence = make_occurrence()
    Occurrence.objects.all().delete()
    intake.apply([report(asks(occurrence))], now=at(1))
    assert verdicts() == [(to(ANNA), "drop", "no such occurrence")]


def test_a_lease_is_confirmed_to_the_holder_and_refused_to_anybody_else(intake: Intake) -> None:
    occurrence = held_by_anna()
    intake.apply([report(asks(occurrence, "lease"))], now=at(31))
    intake.apply([report(asks(occurrence, "lease"), instance=BERT)], now=at(31))
    assert verdicts() == [(to(ANNA), "run", "nobody else has it"), (to(BERT), "drop", f"held by {ANNA}")]


def test_a_lease_of_an_attempt_whose_start_got_lost_makes_the_asker_its_holder(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(asks(occurrence, "lease"))], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.instance) == (Status.RUNNING, ANNA)


def test_start_and_question_of_one_batch_are_taken_in_their_order(intake: Intake) -> None:
    occurrence = sent()
    make_instance(make_worker(), name=BERT)
    told = [report(started(occurrence), instance=BERT), report(asks(occurrence)), report(started(occurrence))]
    intake.apply(told, now=at(1))
    assert verdicts() == [(to(ANNA), "wait", f"held by {BERT}")]
    assert [key for key, command in commands() if isinstance(command, Cancel)] == [to(ANNA)]


# ── since when the consumer has listened ───────────────────────────────────────────────────────────


def say_something(broker: Broker) -> None:
    publisher = broker.publisher()
    body = contracts.encode(contracts.EventBatch(worker="steady", instance=ANNA, events=[]))
    publisher.publish([Message(exchange=topology.EVENTS, routing_key=topology.events_key("steady", ANNA), body=body)])
    publisher.close()


def test_hearing_begins_with_what_is_heard_and_goes_on_over_a_short_silence(intake: Intake, broker: Broker) -> None:
    intake.hearing_since = None
    say_something(broker)
    eventually(lambda: intake.tick(now=at(100)))
    assert intake.hearing_since == at(100)
    intake.tick(now=at(101))
    say_something(broker)
    eventually(lambda: intake.tick(now=at(102)))
    assert intake.hearing_since == at(100)


def test_a_consumer_that_is_connected_and_hears_nothing_does_not_claim_to_hear(intake: Intake) -> None:
    intake.hearing_since = at(0)
    eventually(lambda: intake.tick(now=at(1)) == 0 and intake._consumer.connected)
    intake._heard_at -= DEAF_AFTER_SECONDS
    assert intake.tick(now=at(2)) == 0
    assert intake.hearing_since is None


def test_hearing_begins_anew_after_a_silence(intake: Intake, broker: Broker) -> None:
    say_something(broker)
    eventually(lambda: intake.tick(now=at(0)))
    intake._heard_at -= DEAF_AFTER_SECONDS + 1
    say_something(broker)
    eventually(lambda: intake.tick(now=at(61)))
    assert intake.hearing_since == at(61)


def test_hearing_begins_anew_when_the_database_was_away(intake: Intake, broker: Broker) -> None:
    say_something(broker)
    eventually(lambda: intake.tick(now=at(0)))
    say_something(broker)
    with connection.execute_wrapper(_refuse), pytest.raises(OperationalError):
        eventually(lambda: intake.tick(now=at(1)))
    intake._heard_at -= DEAF_AFTER_SECONDS + 1  # so long it was
    assert intake.tick(now=at(61)) == 1
    assert intake.hearing_since == at(61)


def test_without_any_worker_the_consumer_hears_itself(
    intake: Intake, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("occurrences.pulse.PULSE_SECONDS", 0.01)
    alone = Intake(broker)
    intake.close()
    try:
        eventually(lambda: alone.tick(now=at(5)) and alone.hearing_since)
        assert alone.hearing_since == at(5)
    finally:
        alone.close()


def _refuse(*_: Any) -> Any:
    raise OperationalError("the database is away")
