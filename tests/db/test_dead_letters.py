"""Broken: what becomes of each message that the broker could not deliver."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from occurrences import operations
from occurrences.lifecycle.dead_letters import DeadLetters
from occurrences.models import FailedOccurrence, LoopPass, Occurrence, OutboxMessage
from occurrences.states import FINAL, Status
from tests.db.conftest import SetConf
from tests.db.reports import ANNA, at, dispatches, listens, publish_all
from tests.factories import NOON, make_job
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Message

pytestmark = pytest.mark.django_db
QUEUE = topology.job_queue("steady", "work")
IN_TIME = at(300)


def sent(**values: Any) -> tuple[Occurrence, OutboxMessage]:
    """A queued occurrence, and the message that has left for it."""
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(**values), now=NOON))
    row = OutboxMessage.objects.get()
    publish_all()
    return occurrence, row


@pytest.fixture(autouse=True)
def an_event_consumer(db: None) -> None:
    """It has heard everything, now and in all that follows."""
    listens(until=at(100_000))


def change(occurrence: Occurrence, **values: Any) -> None:
    Occurrence.objects.filter(pk=occurrence.pk).update(**values)


@pytest.fixture
def bury(broker: Broker, dead_letters: DeadLetters) -> Any:
    """Let the broker dead-letter a message for a reason, and the dead-letter consumer handle it."""

    def bury(
        row: OutboxMessage,
        reason: str = "expired",
        *,
        now: datetime = IN_TIME,
        patience: float = PATIENCE_SECONDS,
        **headers: Any,
    ) -> None:
        said = {name: value for name, value in {**row.headers, **headers}.items() if value is not None}
        expires = 0.001 if reason == "expired" else None
        message = Message(
            exchange=row.exchange,
            routing_key=row.routing_key,
            body=row.body.encode(),
            headers=said,
            expiration_seconds=expires,
        )
        publisher = broker.publisher()
        assert publisher.publish([message]) == [None]
        publisher.close()
        if reason != "expired":
            consumer = broker.consumer([QUEUE], prefetch=1)
            again = topology.DELIVERY_LIMIT + 1 if reason == "delivery_limit" else 1
            for _ in range(again):
                delivery = consumer.take(1, wait=PATIENCE_SECONDS)
                consumer.reject(delivery, requeue=reason == "delivery_limit")
            consumer.close()
        assert eventually(lambda: dead_letters.tick(now=now), timeout=patience) == 1

    return bury


def only_failure() -> FailedOccurrence:
    return FailedOccurrence.objects.get()


# ── the table of outcomes ──────────────────────────────────────────────────────────────────────────


def test_a_message_that_nobody_took_in_time_fails_its_occurrence(bury: Any) -> None:
    occurrence, row = sent(max_attempts=5)
    bury(row)
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt, occurrence.ended_at) == (Status.FAILED, 1, at(300))
    assert occurrence.reason.startswith("Worker queue TTL expired: worker queue TTL expired: no instance")
    assert (only_failure().kind, only_failure().occurrence_id) == ("queue_ttl_expired", occurrence.pk)
    assert dispatches() == []


def test_it_is_sent_again_when_the_job_says_so_a_bounded_number_of_times(bury: Any, set_conf: SetConf) -> None:
    set_conf(redispatch_limit=2)
    occurrence, row = sent(on_worker_unavailable="redispatch")
    for number in (1, 2):
        bury(row, now=at(300 * number))
        occurrence.refresh_from_db()
        assert (occurrence.status, occurrence.redispatch_count) == (Status.QUEUED, number)
        assert (occurrence.attempt, occurrence.queued_at) == (1, at(300 * number))
        (message,) = dispatches(occurrence)
        assert message.headers[contracts.HEADER_MAYBE_DUPLICATE] == 1
        row = message.row
        publish_all()
    bury(row, now=at(900))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED
    assert only_failure().kind == "queue_ttl_expired"


def test_a_message_that_its_worker_rejected_fails_its_occurrence(bury: Any) -> None:
    occurrence, row = sent(on_worker_unavailable="redispatch", max_attempts=5)
    bury(row, "rejected")
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED
    assert only_failure().kind == "rejected"


def test_what_was_delivered_too_often_and_never_begun_is_sent_again_a_bounded_number_of_times(
    bury: Any, set_conf: SetConf
) -> None:
    set_conf(redispatch_limit=1)
    occurrence, row = sent(max_attempts=5)
    bury(row, "delivery_limit")
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt) == (Status.QUEUED, 1)
    (again,) = dispatches(occurrence)
    publish_all()
    bury(again.row, "delivery_limit")
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED
    assert only_failure().kind == "delivery_limit"


@pytest.mark.parametrize(("holders", "status"), [(2, Status.RUNNING), (3, Status.FAILED)])
def test_what_was_delivered_too_often_fails_when_it_outlived_several_instances(
    bury: Any, holders: int, status: Status
) -> None:
    occurrence, row = sent(max_attempts=5)
    told = [[Status.RUNNING.value, 1, NOON.isoformat(), f"w-{number}", "taken over"] for number in range(holders)]
    change(occurrence, status=Status.RUNNING, instance="w-1", started_at=NOON, history=[*occurrence.history, *told])
    listens(until=at(301))
    bury(row, "delivery_limit")
    occurrence.refresh_from_db()
    assert occurrence.status == status
    assert len(dispatches(occurrence)) == (1 if status == Status.RUNNING else 0), "another one waits in its place"


@pytest.mark.parametrize("status", sorted(FINAL))
def test_a_dead_letter_of_something_finished_changes_nothing(bury: Any, status: Status) -> None:
    occurrence, row = sent()
    change(occurrence, status=status, ended_at=NOON)
    before = Occurrence.objects.values().get(pk=occurrence.pk)
    bury(row)
    assert Occurrence.objects.values().get(pk=occurrence.pk) == before
    assert not FailedOccurrence.objects.exists()


def test_a_dead_letter_of_another_attempt_changes_nothing(bury: Any) -> None:
    occurrence, row = sent()
    change(occurrence, attempt=2)
    bury(row)
    occurrence.refresh_from_db()
    assert occurrence.status == Status.QUEUED


@pytest.mark.parametrize("status", [Status.RUNNING, Status.UNKNOWN])
def test_a_rejection_of_something_that_runs_changes_nothing(bury: Any, status: Status) -> None:
    occurrence, row = sent()
    change(occurrence, status=status, instance=ANNA, started_at=NOON, heartbeat_at=NOON)
    bury(row, "rejected")
    occurrence.refresh_from_db()
    assert occurrence.status == status
    assert dispatches(occurrence) == []


@pytest.mark.parametrize("status", [Status.RUNNING, Status.UNKNOWN])
def test_an_expired_message_of_something_that_runs_is_replaced_by_one_whose_taker_asks(
    bury: Any, status: Status
) -> None:
    occurrence, row = sent()
    change(occurrence, status=status, instance=ANNA, started_at=NOON, heartbeat_at=NOON)
    bury(row, "expired")
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.attempt, occurrence.instance) == (status, 1, ANNA)
    (copy,) = dispatches(occurrence)
    assert copy.headers[contracts.HEADER_MAYBE_DUPLICATE] == 1
    assert copy.headers[contracts.HEADER_ATTEMPT] == 1


def test_what_was_delivered_too_often_is_looked_at_again_later_while_its_instance_is_heard(
    bury: Any, set_conf: SetConf, broker: Broker, dead_letters: DeadLetters
) -> None:
    set_conf(worker_lost_after_seconds=30)
    occurrence, row = sent()
    told = [[Status.RUNNING.value, 1, NOON.isoformat(), name, "taken over"] for name in ("w-1", "w-2", ANNA)]
    change(
        occurrence,
        status=Status.RUNNING,
        instance=ANNA,
        started_at=NOON,
        heartbeat_at=at(280),
        history=[*occurrence.history, *told],
    )
    listens(until=at(301))
    bury(row, "delivery_limit", now=at(300))
    occurrence.refresh_from_db()
    assert occurrence.status == Status.RUNNING
    later = OutboxMessage.objects.get()
    assert later.next_attempt_at == at(330)
    publisher = broker.publisher()  # the relay, when its time came
    publisher.publish(
        [
            Message(
                exchange=later.exchange, routing_key=later.routing_key, body=later.body.encode(), headers=later.headers
            )
        ]
    )
    publisher.close()
    listens(until=at(332))
    assert eventually(lambda: dead_letters.tick(now=at(331))) == 1
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED
    assert only_failure().kind == FailedOccurrence.Kind.DELIVERY_LIMIT


def test_an_older_copy_of_the_same_attempt_changes_nothing(bury: Any) -> None:
    occurrence, row = sent()
    change(occurrence, queued_at=at(100))  # sent again meanwhile
    bury(row)
    occurrence.refresh_from_db()
    assert occurrence.status == Status.QUEUED
    bury(row, **{contracts.HEADER_QUEUED_AT: at(100).isoformat()})
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED


@pytest.mark.parametrize("said", [None, "", "yesterday", "2030-13-45T99:00:00Z", "2030-01-01T00:00:00", 7, ["x"]])
def test_a_message_that_does_not_say_when_it_was_queued_counts_as_the_current_one(bury: Any, said: Any) -> None:
    occurrence, row = sent()
    bury(row, **{contracts.HEADER_QUEUED_AT: said})
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED


def test_a_dead_letter_of_an_occurrence_that_nobody_knows_is_acknowledged(bury: Any, broker: Broker) -> None:
    occurrence, row = sent()
    occurrence.delete()
    bury(row)
    assert not FailedOccurrence.objects.exists()


@pytest.mark.parametrize("body", ["", "no json", '{"v":9,"id":"x"}', '{"v":1,"id":"5f0c5a34-9f64-4e0c-8d5e"}'])
def test_a_dead_letter_that_cannot_be_read_is_kept_with_its_raw_text(bury: Any, body: str) -> None:
    _, row = sent()
    row.body = body
    bury(row)
    failure = only_failure()
    assert (failure.kind, failure.occurrence_id, failure.raw) == ("rejected", None, body)


def test_a_dead_letter_with_an_impossible_id_is_kept_with_its_raw_text(bury: Any) -> None:
    occurrence, row = sent()
    row.body = row.body.replace(str(occurrence.pk), "not-an-id")
    bury(row)
    assert "not-an-id" in only_failure().raw


def test_a_dead_letter_of_a_run_that_nobody_can_make_sense_of_does_not_stop_the_others(bury: Any) -> None:
    occurrence, row = sent()
    change(occurrence, status=Status.RUNNING, instance=ANNA, started_at=NOON, policy={})
    bury(row)
    assert (only_failure().kind, only_failure().occurrence_id) == ("rejected", None)
    _, another = sent()
    bury(another)
    assert FailedOccurrence.objects.count() == 2


def test_every_dead_letter_is_acknowledged_once_it_is_handled(bury: Any, broker: Broker, dead_letters: Any) -> None:
    _, row = sent()
    bury(row)
    dead_letters.close()
    assert broker.depth(topology.dead_letter_queue()) == 0
    assert broker.depth(QUEUE) == 0


def test_while_the_database_is_away_dead_letters_are_kept_in_hand(
    broker: Broker, dead_letters: DeadLetters, bury: Any
) -> None:
    occurrence, row = sent()

    def away(*_: object) -> None:
        raise OperationalError("the server closed the connection unexpectedly")

    with connection.execute_wrapper(away), pytest.raises(OperationalError):
        bury(row)
    assert dead_letters.tick(now=at(301)) == 1
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED


@pytest.mark.parametrize(
    ("was_away", "needed"), [(False, 400), (True, 430)], ids=["it stayed connected", "the broker was away"]
)
def test_nothing_is_judged_before_what_workers_said_was_heard(
    bury: Any, dead_letters: DeadLetters, set_conf: SetConf, was_away: bool, needed: int
) -> None:
    set_conf(worker_lost_after_seconds=30)
    occurrence, row = sent()
    eventually(lambda: dead_letters._consumer.connected)
    assert dead_letters.tick(now=at(280)) == 0
    if was_away:
        dead_letters._connected_since = 0.0  # it was connected before, and lost the connection since
    listens(until=at(needed - 1))  # an event consumer that is behind
    with pytest.raises(AssertionError, match="not within"):
        bury(row, now=at(400), patience=0.2)
    LoopPass.objects.all().delete()  # none at all
    assert dead_letters.tick(now=at(401)) == 0
    listens(until=at(needed + 1))
    assert dead_letters.tick(now=at(402)) == 1
    occurrence.refresh_from_db()
    assert occurrence.status == Status.FAILED


def test_the_failure_of_a_cancelled_wait_stays_a_cancellation(bury: Any) -> None:
    occurrence, row = sent()
    operations.cancel(occurrence.pk, by="olga", now=at(1))
    bury(row)
    occurrence.refresh_from_db()
    assert occurrence.status == Status.CANCELLED


def test_a_dead_letter_counts_as_a_failure_of_its_job(bury: Any) -> None:
    occurrence, row = sent()
    bury(row, now=NOON + timedelta(minutes=5))
    occurrence.job.refresh_from_db()
    assert occurrence.job.consecutive_failure_count == 1
