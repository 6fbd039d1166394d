"""What an event consumer claims to have heard: from when it listened without a gap, up to its own last word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection

from occurrences import hearing
from occurrences.hearing import Hearing
from occurrences.lifecycle.intake import Intake
from tests.db.reports import ANNA, at, listens
from tests.waiting import eventually
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Message

pytestmark = pytest.mark.django_db


def say_something(broker: Broker) -> None:
    publisher = broker.publisher()
    body = contracts.encode(contracts.EventBatch(worker="steady", instance=ANNA, events=[]))
    publisher.publish([Message(exchange=topology.EVENTS, routing_key=topology.events_key("steady", ANNA), body=body)])
    publisher.close()


def hear_itself(intake: Intake, *, said: float, heard: float) -> None:
    """The consumer's own word comes back."""
    intake._ear._send(at(said))
    eventually(lambda: intake.tick(now=at(heard)))


def go_deaf(intake: Intake) -> None:
    """Nothing has been heard for too long."""
    intake._ear._heard_at -= hearing.DEAF_AFTER_SECONDS + 1


@pytest.fixture
def other(broker: Broker, intake: Intake) -> Iterator[Intake]:
    """Another event consumer, which stands by."""
    eventually(lambda: intake._consumer.connected)
    other = Intake(broker)
    yield other
    other.close()


def test_hearing_begins_with_what_is_heard_and_goes_on_over_a_short_silence(intake: Intake, broker: Broker) -> None:
    say_something(broker)
    eventually(lambda: intake.tick(now=at(100)))
    assert intake.hearing == (at(100), at(100))
    intake.tick(now=at(101))
    say_something(broker)
    eventually(lambda: intake.tick(now=at(102)))
    assert intake.hearing == (at(100), at(100))


def test_all_is_heard_up_to_the_consumers_own_last_word(intake: Intake) -> None:
    hear_itself(intake, said=100, heard=101)
    assert intake.hearing == (at(101), at(101)), "what it said before it began to listen proves nothing"
    hear_itself(intake, said=103, heard=150)
    assert intake.hearing == (at(101), at(103))
    hear_itself(intake, said=102, heard=151)  # delivered again
    assert intake.hearing == (at(101), at(103))


def test_the_word_of_another_consumer_proves_nothing_about_the_time(intake: Intake, other: Intake) -> None:
    hear_itself(intake, said=0, heard=1)
    other._ear._send(at(500))
    eventually(lambda: intake.tick(now=at(2)))
    assert intake.hearing == (at(1), at(1))
    assert other.hearing is None


def test_a_consumer_that_is_connected_and_hears_nothing_does_not_claim_to_hear(intake: Intake) -> None:
    hear_itself(intake, said=0, heard=0)
    go_deaf(intake)
    assert intake.tick(now=at(2)) == 0
    assert intake.hearing is None


def test_hearing_begins_anew_after_a_silence(intake: Intake, broker: Broker) -> None:
    hear_itself(intake, said=0, heard=0)
    go_deaf(intake)
    say_something(broker)
    eventually(lambda: intake.tick(now=at(61)))
    assert intake.hearing == (at(61), at(61))


def test_what_could_not_be_written_was_not_heard(intake: Intake) -> None:
    hear_itself(intake, said=0, heard=0)
    intake._ear._send(at(1))
    with connection.execute_wrapper(_refuse), pytest.raises(OperationalError):
        eventually(lambda: intake.tick(now=at(2)))
    assert intake.hearing == (at(0), at(0))
    assert intake.tick(now=at(3)) == 1
    assert intake.hearing == (at(0), at(1))


def test_hearing_begins_anew_when_the_database_was_away(intake: Intake, broker: Broker) -> None:
    hear_itself(intake, said=0, heard=0)
    say_something(broker)
    with connection.execute_wrapper(_refuse), pytest.raises(OperationalError):
        eventually(lambda: intake.tick(now=at(1)))
    go_deaf(intake)  # so long it was
    assert intake.tick(now=at(61)) == 1
    assert intake.hearing == (at(61), at(61))


def test_without_any_worker_the_consumer_hears_itself(
    intake: Intake, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("occurrences.hearing.PULSE_SECONDS", 0.01)
    intake._ear._next_at = 0.0
    eventually(lambda: intake.tick(now=at(5)) and intake.hearing)
    eventually(lambda: intake.tick(now=at(6)) and intake.hearing == (at(5), at(6)))


def test_silence_is_measured_within_what_was_heard() -> None:
    hearing = Hearing(at(100), at(160))
    assert [hearing.silence_seconds(at(seconds)) for seconds in (0, 100, 150, 170)] == [60, 60, 10, -10]


def test_of_several_claims_the_one_that_reaches_furthest_is_the_newest() -> None:
    assert Hearing.newest() is None
    listens(since=at(0), until=at(50))
    assert Hearing.newest() == (at(0), at(50))


def _refuse(*_: Any) -> Any:
    raise OperationalError("the database is away")
