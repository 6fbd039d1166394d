"""Heard: input that is wrong is set aside, alone; what came beside it counts, and the loop goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
from django.db import OperationalError, connection

from occurrences.lifecycle.intake import Intake
from occurrences.models import FailedOccurrence, Occurrence, OccurrenceLog
from occurrences.states import Status
from tests.db.reports import (
    ANNA,
    at,
    finished,
    heartbeat,
    line,
    progress,
    raw_delivery,
    report,
    sent,
    started,
)
from tests.factories import NOON
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Message
from tickwork.contracts import Event, Registered
from workers_app.models import WorkerInstance

pytestmark = pytest.mark.django_db


def status_of(occurrence: Occurrence) -> Status:
    occurrence.refresh_from_db()
    return occurrence.status_enum


def only_aside() -> FailedOccurrence:
    """The one message that was set aside."""
    failure = FailedOccurrence.objects.get()
    assert (failure.kind, failure.occurrence_id, failure.job_id) == ("rejected", None, None)
    return failure


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"[]",
        b'{"v":1,"worker":"w"}',
        b'{"v":2,"worker":"w","instance":"i","events":[]}',
        b'{"v":1,"worker":"w","instance":"i","events":[{"type":"weather","id":"x"}]}',
        b'{"v":1,"worker":"w","instance":"i","events":' + b"[" * 100_000,
        b'{"v":1,"worker":"w","instance":"i","events":[{"type":"log","id":"x","attempt":1,'
        b'"at":"2030-01-15T12:00:00Z","seq":1,"level":"info","message":"\\ud800"}]}',
    ],
    ids=["empty", "no json", "no utf-8", "a list", "half", "version", "event type", "deep", "lone surrogate"],
)
def test_a_message_that_cannot_be_decoded_is_set_aside_with_its_raw_text(intake: Intake, body: bytes) -> None:
    sound = sent()
    intake.apply([raw_delivery(body), report(finished(sound))], now=at(1))
    assert status_of(sound) == Status.COMPLETED
    failure = only_aside()
    assert failure.error_type == "ContractError"
    assert failure.raw == body[:16_384].decode("utf-8", "replace").replace("\x00", "\ufffd")


def wrong_id() -> Event:
    return started(sent()).__class__(id="no-uuid", attempt=1, at=NOON)


def huge_sequence() -> Event:
    return line(sent(), 2**70)


def negative_process() -> Event:
    return Registered(at=NOON, host="h", pid=-5, version="1", concurrency=1, job_types=[])


POISON = [wrong_id, huge_sequence, negative_process]


@pytest.mark.parametrize("poison", POISON, ids=lambda make: make.__name__)
def test_one_event_that_is_refused_is_set_aside_alone(intake: Intake, poison: Callable[[], Event]) -> None:
    before, after, elsewhere = sent(), sent(), [sent() for _ in range(7)]
    told = [report(finished(occurrence)) for occurrence in elsewhere]
    told.insert(3, report(started(before), finished(before), poison(), finished(after), heartbeat()))
    intake.apply(told, now=at(1))
    assert {status_of(occurrence) for occurrence in (before, after, *elsewhere)} == {Status.COMPLETED}
    assert WorkerInstance.objects.filter(pk=ANNA).exists()  # the heartbeat
    only_aside()


@pytest.mark.parametrize("clock", ["2030-01-15T12:00:00", "0001-01-01T00:00:00+05:00", "9999-12-31T23:00:00-05:00"])
def test_a_worker_whose_clock_says_what_no_calendar_can_keep_is_heard_at_our_time(intake: Intake, clock: str) -> None:
    occurrence = sent()
    body = report(started(occurrence), line(occurrence, 1), finished(occurrence)).body
    intake.apply([raw_delivery(body.replace(b"2030-01-15T12:00:00Z", clock.encode()))], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.started_at, occurrence.ended_at) == (Status.COMPLETED, at(1), at(1))
    assert OccurrenceLog.objects.get().logged_at == at(1)
    assert not FailedOccurrence.objects.exists()


def test_a_nul_character_becomes_a_mark_that_can_be_kept(intake: Intake) -> None:
    occurrence = sent()
    told = report(line(occurrence, 1, "a\x00b", value="\x00"), finished(occurrence, result=b'"\\u0000"'))
    intake.apply([told], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.result) == (Status.COMPLETED, "\ufffd")
    assert OccurrenceLog.objects.values_list("message", "fields").get() == ("a\ufffdb", {"value": "\ufffd"})
    assert not FailedOccurrence.objects.exists()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite keeps any JSON text")
def test_a_result_that_the_database_refuses_is_left_out_and_the_end_of_the_attempt_still_counts(
    intake: Intake,
) -> None:
    occurrence = sent()
    intake.apply([report(started(occurrence), finished(occurrence, result=b"1e400000"))], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.result) == (Status.COMPLETED, None)
    assert "1e400000" in only_aside().raw


@pytest.mark.parametrize("attempt", [2**40, -1, 0])
def test_an_attempt_number_out_of_this_world_is_just_stale(intake: Intake, attempt: int) -> None:
    occurrence = sent()
    intake.apply([report(finished(occurrence, attempt=attempt), progress(occurrence, 0.5))], now=at(1))
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.progress) == (Status.QUEUED, 0.5)


def test_a_heartbeat_with_nonsense_in_it_is_set_aside(intake: Intake) -> None:
    sound = sent()
    poison = contracts.Heartbeat(at=NOON, running=[("nonsense", 1)])
    intake.apply([report(poison), report(finished(sound))], now=at(1))
    assert status_of(sound) == Status.COMPLETED
    only_aside()


def test_poison_that_came_through_the_broker_is_acknowledged(intake: Intake, broker: Broker) -> None:
    publisher = broker.publisher([topology.events_queue()])
    publisher.publish([Message(exchange=topology.EVENTS, routing_key="steady.x", body=b"\x00poison")])
    publisher.close()
    while not intake.tick(now=at(1)):
        pass
    assert intake.tick(now=at(2)) == 0
    intake.close()
    assert broker.depth(topology.events_queue()) == 0
    only_aside()


def test_while_the_database_is_away_the_set_in_hand_is_kept_and_nothing_is_set_aside(
    intake: Intake, broker: Broker
) -> None:
    occurrence = sent()
    publisher = broker.publisher([topology.events_queue()])
    publisher.publish([Message(exchange=topology.EVENTS, routing_key="s.x", body=report(finished(occurrence)).body)])
    publisher.close()

    def away(*_: object) -> None:
        raise OperationalError("the server closed the connection unexpectedly") from sqlite3.OperationalError()

    def hear() -> None:
        while not intake.tick(now=at(1)):
            pass

    with connection.execute_wrapper(away), pytest.raises(OperationalError):
        hear()
    assert not FailedOccurrence.objects.exists()
    assert status_of(occurrence) == Status.QUEUED

    assert intake.tick(now=at(2)) == 1
    assert status_of(occurrence) == Status.COMPLETED
