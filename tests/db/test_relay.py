"""Sent: what leaves the outbox, with which headers, and what happens when the broker does not take it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from occurrences import messages, operations, sql
from occurrences.lifecycle.relay import Relay
from occurrences.models import Occurrence, OutboxMessage
from tests.db.conftest import SetConf
from tests.db.reports import at, dispatches
from tests.factories import NOON, make_job
from tests.waiting import PATIENCE_SECONDS
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Delivery
from tickwork.broker.connect import connect
from tickwork.errors import BrokerUnavailable

pytestmark = pytest.mark.django_db
QUEUE = topology.job_queue("steady", "work")


def trigger(**values: object) -> Occurrence:
    """A queued occurrence whose message waits in the outbox."""
    return Occurrence.objects.get(pk=operations.trigger(make_job(**values), now=NOON))


def taken(broker: Broker, queue: topology.Queue = QUEUE) -> list[Delivery]:
    """All that waits in a queue."""
    consumer = broker.consumer([queue], prefetch=1000)
    try:
        deliveries = consumer.take(1000, wait=PATIENCE_SECONDS)
        consumer.ack(deliveries)
        return deliveries
    finally:
        consumer.close()


def put(event_type: str, **values: object) -> OutboxMessage:
    """An outbox row of any kind."""
    fields = {
        "exchange": topology.JOBS, "routing_key": "steady.work.x", "body": "{}", "occurred_at": NOON,
        "next_attempt_at": NOON, **values,
    }  # fmt: skip
    return OutboxMessage.objects.create(event_type=event_type, **fields)


def test_a_message_reaches_its_queue_with_everything_a_worker_needs_and_leaves_the_outbox(
    relay: Relay, broker: Broker
) -> None:
    occurrence = trigger(data={"name": "Ünal"}, max_attempts=4, queue_ttl_seconds=77)
    assert relay.tick(now=NOON) == 1
    assert relay.tick(now=at(0.1)) == 1  # the confirm
    assert not OutboxMessage.objects.exists()

    (delivery,) = taken(broker)
    assert delivery.routing_key == f"steady.work.{occurrence.pk}"
    assert (delivery.correlation_id, delivery.type) == (str(occurrence.pk), messages.DISPATCH)
    assert delivery.headers == {
        "x-attempt": 1,
        "x-retry-count": 0,
        "x-max-retries": 3,
        "x-original-correlation-id": str(occurrence.pk),
        "x-queued-at": occurrence.queued_at.isoformat(),
    }
    dispatch = contracts.decode(contracts.Dispatch, delivery.body)
    assert (dispatch.id, dispatch.job_id, dispatch.data) == (
        str(occurrence.pk),
        str(occurrence.job_id),
        {"name": "Ünal"},
    )
    assert (dispatch.worker, dispatch.job_type, dispatch.attempt, dispatch.max_attempts) == ("steady", "work", 1, 4)
    assert dispatch.timeout_seconds == occurrence.timeout_seconds


def test_the_time_to_live_travels_with_the_message(relay: Relay, broker: Broker) -> None:
    trigger(queue_ttl_seconds=0.001)
    relay.tick(now=NOON)
    relay.tick(now=NOON)
    (dead,) = taken(broker, topology.dead_letter_queue())
    assert dead.deaths[0].reason == "expired"


def test_messages_of_one_pass_arrive_in_the_order_in_which_they_were_written(relay: Relay, broker: Broker) -> None:
    job = make_job()
    ids = operations.trigger_many(job, [{"n": n} for n in range(20)], now=NOON)
    assert relay.tick(now=NOON) == 20
    relay.tick(now=NOON)
    assert [delivery.correlation_id for delivery in taken(broker)] == [str(identifier) for identifier in ids]


def test_a_message_for_later_waits_for_its_time(relay: Relay) -> None:
    put(messages.DISPATCH, next_attempt_at=at(60))
    assert relay.tick(now=at(59)) == 0
    assert relay.sleep_until() == at(60)
    assert relay.tick(now=at(60)) == 1
    assert relay.sleep_until() is None  # a set is under way: look again at once


def test_a_pass_takes_at_most_its_batch_and_the_next_one_the_rest(
    relay: Relay, broker: Broker, set_conf: SetConf
) -> None:
    set_conf(relay_batch=2)
    operations.trigger_many(make_job(), [None] * 3, now=NOON)
    assert [relay.tick(now=NOON) for _ in range(4)] == [2, 3, 1, 0]
    assert len(taken(broker)) == 3


def test_a_message_that_no_queue_takes_is_kept_with_the_reason_and_tried_again_ever_later(relay: Relay) -> None:
    row = put(messages.DISPATCH, exchange=topology.CONTROL, routing_key="nobody.here")
    waits, now = [], NOON
    for _ in range(4):
        relay.tick(now=now)
        relay.tick(now=now)
        row.refresh_from_db()
        waits.append((row.next_attempt_at - now).total_seconds())
        now = row.next_attempt_at
    assert waits == [5, 10, 20, 40]
    assert (row.last_error, row.attempt_count) == ("unroutable", 4)


def test_a_command_or_notification_that_nobody_waits_for_is_done(relay: Relay) -> None:
    put(messages.COMMAND, exchange=topology.CONTROL, routing_key="nobody.here")
    put(messages.NOTIFICATION, exchange=topology.NOTIFICATIONS, routing_key="job.auto_disabled")
    relay.tick(now=NOON)
    relay.tick(now=NOON)
    assert not OutboxMessage.objects.exists()


def test_one_refused_message_does_not_hold_up_the_others_of_its_set(relay: Relay, broker: Broker) -> None:
    refused = put(messages.DISPATCH, exchange=topology.CONTROL, routing_key="nobody.here")
    occurrence = trigger()
    relay.tick(now=NOON)
    relay.tick(now=NOON)
    assert list(OutboxMessage.objects.values_list("pk", flat=True)) == [refused.pk]
    assert [delivery.correlation_id for delivery in taken(broker)] == [str(occurrence.pk)]


# ── copies ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_claim_of_a_relay_that_died_is_free_after_its_lease_and_the_copy_says_that_it_may_be_one(
    relay: Relay, broker: Broker, set_conf: SetConf
) -> None:
    set_conf(outbox_lease_seconds=30)
    trigger()
    assert len(sql.claim_outbox(now=NOON, limit=10, until=at(30))) == 1  # and then it died
    assert relay.tick(now=at(29)) == 0
    assert relay.tick(now=at(30)) == 1
    relay.tick(now=at(30))
    (delivery,) = taken(broker)
    assert delivery.headers[contracts.HEADER_MAYBE_DUPLICATE] == 1


def test_what_one_relay_has_claimed_another_one_leaves_alone(broker: Broker) -> None:
    first, second = Relay(broker), Relay(broker)
    trigger()
    assert (first.tick(now=NOON), second.tick(now=NOON)) == (1, 0)
    first.close()
    second.close()
    assert len(taken(broker)) == 1


def test_leaving_settles_what_is_under_way(broker: Broker) -> None:
    trigger()
    relay = Relay(broker)
    relay.tick(now=NOON)
    relay.close()
    assert not OutboxMessage.objects.exists()
    assert len(taken(broker)) == 1


# ── the broker is away ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A broker file that cannot be opened: its folder is a file as yet."""
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    return folder


@pytest.fixture
def stranded(folder: Path) -> Iterator[Relay]:
    relay = Relay(connect(f"sqlite:///{folder}/broker.sqlite3"))
    yield relay
    relay.close()


def come_back(folder: Path) -> Broker:
    folder.unlink()
    folder.mkdir()
    return connect(f"sqlite:///{folder}/broker.sqlite3")


def test_while_the_broker_is_away_messages_wait_and_then_leave_marked_as_possible_copies(
    stranded: Relay, folder: Path
) -> None:
    occurrence = trigger()
    stranded.tick(now=NOON)
    with pytest.raises(BrokerUnavailable):
        stranded.tick(now=at(0.1))
    (sent,) = dispatches(occurrence)
    assert sent.row.last_error
    assert sent.row.next_attempt_at == at(1.1)

    broker = come_back(folder)
    stranded.tick(now=at(1.1))
    stranded.tick(now=at(1.2))
    (delivery,) = taken(broker)
    assert delivery.headers[contracts.HEADER_MAYBE_DUPLICATE] == 1
    assert not OutboxMessage.objects.exists()


def test_messages_claimed_while_the_set_before_them_failed_are_given_back_unmarked(
    stranded: Relay, folder: Path
) -> None:
    first = trigger()
    stranded.tick(now=NOON)
    second = trigger()
    with pytest.raises(BrokerUnavailable):
        stranded.tick(now=NOON)
    assert [sent.row.attempt_count for sent in dispatches()] == [1, 0]
    assert [sent.row.next_attempt_at for sent in dispatches()] == [at(1), at(1)]

    broker = come_back(folder)
    stranded.tick(now=at(1))
    stranded.tick(now=at(1))
    marked = {d.correlation_id: contracts.HEADER_MAYBE_DUPLICATE in d.headers for d in taken(broker)}
    assert marked == {str(first.pk): True, str(second.pk): False}
