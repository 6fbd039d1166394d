"""A worker asks before it runs what somebody else may run: who gets the attempt, and who hears what."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest

from occurrences import operations
from occurrences.hearing import Hearing
from occurrences.lifecycle.intake import Intake
from occurrences.models import Attempt, Occurrence
from occurrences.states import FINAL, Status
from tests.db.conftest import SetConf
from tests.db.reports import (
    ANNA,
    BERT,
    asks,
    at,
    commands,
    finished,
    heartbeat,
    publish_all,
    report,
    running,
    sent,
    started,
)
from tests.factories import NOON, make_instance, make_occurrence, make_worker
from tickwork.broker import topology
from tickwork.broker.base import Delivery
from tickwork.contracts import Cancel, Granted, Stopped, Verdict

pytestmark = pytest.mark.django_db


def held_by_anna(**values: object) -> Occurrence:
    """Running on an instance that was heard at noon."""
    occurrence = running(**values)
    Occurrence.objects.filter(pk=occurrence.pk).update(progress=0.5)
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


def hear(intake: Intake, deliveries: Sequence[Delivery], *, now: datetime, hearing: Hearing | None = None) -> None:
    """A consumer hears these, and all that was said before; it has listened since long before noon."""
    intake._ear.hearing = hearing or Hearing(at(-3600), now)
    intake.apply(deliveries, now=now)


def test_an_attempt_that_nobody_has_is_given_to_whoever_asks_first_and_the_second_waits(intake: Intake) -> None:
    occurrence = sent()
    make_instance(make_worker(), name=ANNA)
    hear(intake, [report(asks(occurrence)), report(asks(occurrence), instance=BERT)], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.instance, occurrence.started_at) == (Status.RUNNING, ANNA, None)
    assert verdicts() == [(to(ANNA), "run", "nobody else has it"), (to(BERT), "wait", f"held by {ANNA}")]


def test_the_grant_counts_as_being_heard_and_the_start_that_follows_sets_the_time(intake: Intake) -> None:
    occurrence = sent()
    hear(intake, [report(asks(occurrence))], now=at(1))
    hear(intake, [report(started(occurrence, when=at(2)))], now=at(3))
    occurrence.refresh_from_db()
    assert (occurrence.started_at, occurrence.heartbeat_at, occurrence.next_attempt_at) == (at(2), at(3), None)


def test_who_holds_the_attempt_already_may_go_on(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(asks(occurrence))], now=at(1))
    before = occurrence.history
    occurrence.refresh_from_db()
    assert verdicts() == [(to(ANNA), "run", "nobody else has it")]
    assert (occurrence.history, occurrence.progress) == (before, 0.5)


def test_another_instances_attempt_is_not_given_away_while_that_one_is_heard(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(30 - 0.001))
    assert verdicts() == [(to(BERT), "wait", f"held by {ANNA}")]
    occurrence.refresh_from_db()
    assert occurrence.instance == ANNA


def test_the_attempt_of_an_instance_that_fell_silent_is_taken_over(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(31))
    occurrence.refresh_from_db()
    assert verdicts() == [(to(BERT), "run", f"taken over from {ANNA}, which is gone")]
    assert (occurrence.status, occurrence.instance, occurrence.attempt) == (Status.RUNNING, BERT, 1)
    assert (occurrence.started_at, occurrence.heartbeat_at, occurrence.progress) == (None, at(31), None)
    assert Attempt.objects.values_list("outcome", "instance").get() == ("taken_over", ANNA)


def test_a_heartbeat_in_the_same_batch_keeps_the_attempt_with_its_holder(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(asks(occurrence), instance=BERT), report(heartbeat(occurrence))], now=at(31))
    assert verdicts() == [(to(BERT), "wait", f"held by {ANNA}")]


def test_a_start_that_was_heard_lately_counts_as_much_as_a_heartbeat(intake: Intake) -> None:
    occurrence = sent()
    make_instance(make_worker(), name=ANNA)  # heard for the last time at noon
    hear(intake, [report(started(occurrence))], now=at(40))
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(69))
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(70))
    assert [action for _, action, _ in verdicts()] == ["wait", "run"]


def test_of_two_that_ask_at_once_about_what_a_third_lost_only_one_gets_it(intake: Intake) -> None:
    occurrence = held_by_anna()
    told = [report(asks(occurrence), instance=BERT), report(asks(occurrence), instance="steady-host-3-carl")]
    hear(intake, told, now=at(31))
    assert [(key, action) for key, action, _ in verdicts()] == [(to(BERT), "run"), (to("steady-host-3-carl"), "wait")]


def test_an_instance_that_said_goodbye_is_gone_at_once(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(Stopped(at=NOON)), report(asks(occurrence), instance=BERT)], now=at(1))
    assert [action for _, action, _ in verdicts()] == ["run"]


def test_every_instance_hears_who_got_an_attempt(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(1))
    assert [command for _, command in commands() if isinstance(command, Granted)] == []
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(31))
    assert [(key, command) for key, command in commands() if isinstance(command, Granted)] == [
        (topology.control_key("steady"), Granted(id=str(occurrence.pk), attempt=1, instance=BERT))
    ]


def test_an_unknown_occurrence_of_a_silent_instance_is_taken_over(intake: Intake) -> None:
    occurrence = held_by_anna()
    Occurrence.objects.filter(pk=occurrence.pk).update(status=Status.UNKNOWN)
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(61))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.instance) == (Status.RUNNING, BERT)


def test_silence_counts_only_from_when_somebody_listened(intake: Intake) -> None:
    occurrence = held_by_anna()
    for seconds in (3629, 3631):
        hearing = Hearing(at(3600), at(seconds))
        hear(intake, [report(asks(occurrence), instance=BERT)], now=at(seconds), hearing=hearing)
    assert [action for _, action, _ in verdicts()] == ["wait", "run"]


def test_a_consumer_that_is_behind_takes_nothing_from_an_instance_whose_words_it_may_not_have_heard_yet(
    intake: Intake,
) -> None:
    occurrence = held_by_anna()
    for seconds in (29, 31):
        hearing = Hearing(at(-3600), at(seconds))
        hear(intake, [report(asks(occurrence), instance=BERT)], now=at(500), hearing=hearing)
    assert [action for _, action, _ in verdicts()] == ["wait", "run"]


def test_without_a_listener_nobody_counts_as_gone(intake: Intake) -> None:
    occurrence = held_by_anna()
    assert intake.hearing is None
    intake.apply([report(asks(occurrence), instance=BERT)], now=at(36_000))
    assert [action for _, action, _ in verdicts()] == ["wait"]


def test_what_was_taken_over_is_no_longer_its_former_holders(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(31))
    hear(intake, [report(finished(occurrence, result=b'"anna"'))], now=at(32))
    hear(intake, [report(started(occurrence), finished(occurrence, result=b'"bert"'), instance=BERT)], now=at(33))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.result) == (Status.COMPLETED, "bert")
    assert "late report ignored: attempt 1 completed" in [change.reason for change in occurrence.status_changes]


def test_a_cancel_request_whose_worker_died_is_not_run_by_the_next_one_but_carried_out(intake: Intake) -> None:
    occurrence = held_by_anna()
    operations.cancel(occurrence.pk, by="olga", reason="not today", now=at(1))
    publish_all()
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(31))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.reason) == (Status.CANCELLED, "not today")
    assert verdicts() == [(to(BERT), "drop", "its cancellation was asked for")]


@pytest.mark.parametrize("status", sorted(FINAL))
def test_a_delivery_of_something_finished_is_dropped(intake: Intake, status: Status) -> None:
    occurrence = make_occurrence(status=status)
    hear(intake, [report(asks(occurrence), instance=BERT)], now=at(1))
    assert verdicts() == [(to(BERT), "drop", f"already {status.label}")]


def test_a_delivery_of_an_earlier_attempt_is_dropped(intake: Intake) -> None:
    occurrence = make_occurrence(attempt=2)
    hear(intake, [report(asks(occurrence, attempt=1))], now=at(1))
    assert verdicts() == [(to(ANNA), "drop", "attempt 2 is the current one")]


def test_a_delivery_of_something_purged_is_dropped(intake: Intake) -> None:
    occurrence = make_occurrence()
    Occurrence.objects.all().delete()
    hear(intake, [report(asks(occurrence))], now=at(1))
    assert verdicts() == [(to(ANNA), "drop", "no such occurrence")]


def test_a_lease_is_confirmed_to_the_holder_and_refused_to_anybody_else(intake: Intake) -> None:
    occurrence = held_by_anna()
    hear(intake, [report(asks(occurrence, "lease"))], now=at(31))
    hear(intake, [report(asks(occurrence, "lease"), instance=BERT)], now=at(31))
    assert verdicts() == [(to(ANNA), "run", "nobody else has it"), (to(BERT), "drop", f"held by {ANNA}")]


def test_a_lease_of_an_attempt_whose_start_got_lost_makes_the_asker_its_holder(intake: Intake) -> None:
    occurrence = sent()
    hear(intake, [report(asks(occurrence, "lease"))], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.instance) == (Status.RUNNING, ANNA)


def test_start_and_question_of_one_batch_are_taken_in_their_order(intake: Intake) -> None:
    occurrence = sent()
    make_instance(make_worker(), name=BERT)
    told = [report(started(occurrence), instance=BERT), report(asks(occurrence)), report(started(occurrence))]
    hear(intake, told, now=at(1))
    assert verdicts() == [(to(ANNA), "wait", f"held by {BERT}")]
    assert [key for key, command in commands() if isinstance(command, Cancel)] == [to(ANNA)]
