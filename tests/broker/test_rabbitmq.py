"""What only a broker across a network can do to us: cut, frozen, late, refusing, and differently declared."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from tests.broker.proxy import Proxy
from tests.broker.stage import Stage, collect, job_queue, nothing_comes, numbers, to
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.broker import topology
from tickwork.broker.base import Message, Publisher
from tickwork.broker.connect import connect
from tickwork.broker.rabbitmq_consumer import RabbitConsumer
from tickwork.errors import BrokerUnavailable, ConfigurationError


def publish_again(publisher: Publisher, batch: list[Message]) -> list[str | None]:
    """Publish until the broker confirms, as the relay does."""

    def attempt() -> list[str | None]:
        try:
            return publisher.publish(batch)
        except BrokerUnavailable:
            return []

    return eventually(attempt, what="the publisher is back")


def test_a_batch_under_way_fails_at_once_when_the_connection_is_cut(far: Stage, network: Proxy) -> None:
    queue = job_queue()
    network.open()
    publisher = far.publisher(queue)
    publisher.publish([to(queue, number="first")])
    network.freeze()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(
            publisher.publish, [to(queue, number=number) for number in range(500)], timeout=PATIENCE_SECONDS
        )
        eventually(lambda: network.held_back > 0, what="the batch is on its way")

        network.cut()

        with pytest.raises(BrokerUnavailable, match="connection to the broker was lost"):
            under_way.result(timeout=PATIENCE_SECONDS)


def test_nothing_that_was_confirmed_is_lost_however_often_the_connection_is_cut(
    far: Stage, near: Stage, network: Proxy
) -> None:
    queue = job_queue()
    network.open()
    publisher = far.publisher(queue)
    confirmed: set[str] = set()
    for round_number in range(15):
        batch = [to(queue, number=f"{round_number}-{one}") for one in range(500)]
        scissors = threading.Timer(0.002 * round_number, network.cut)
        scissors.start()

        assert publish_again(publisher, batch) == [None] * 500

        confirmed |= {message.message_id for message in batch}
        scissors.join()

    consumer = near.consumer(queue)
    arrived: set[str] = set()

    def all_arrived() -> bool:
        taken = consumer.take(500, wait=0.5)
        arrived.update(numbers(taken))
        consumer.ack(taken)
        return confirmed <= arrived

    eventually(all_arrived, what="everything that was confirmed")


def test_a_publisher_comes_back_after_a_cut_and_declares_its_queues_anew(far: Stage, network: Proxy) -> None:
    queue, later = job_queue(), job_queue()
    network.open()
    publisher = far.publisher(queue)
    publisher.publish([to(queue, number=1)])

    network.cut()

    assert publish_again(publisher, [to(queue, number=2), to(later, number=3)]) == [None, None]
    assert "3" in numbers(collect(far.consumer(later), 1))


def test_a_frozen_network_fails_the_batch_at_its_time_limit_and_is_replaced(far: Stage, network: Proxy) -> None:
    queue = job_queue()
    network.open()
    publisher = far.publisher(queue)
    publisher.publish([to(queue, number=1)])

    network.freeze()
    with pytest.raises(BrokerUnavailable, match="did not confirm within"):
        publisher.publish([to(queue, number=2)], timeout=0.3)

    network.thaw()
    network.cut()

    assert publish_again(publisher, [to(queue, number=3)]) == [None]


def test_a_dead_broker_is_not_hammered(far: Stage, network: Proxy) -> None:
    # Nothing listens: each attempt is refused at once.
    queue = job_queue()
    publisher = far.publisher()
    reasons = []
    for _ in range(50):
        with pytest.raises(BrokerUnavailable) as caught:
            publisher.publish([to(queue)])
        reasons.append(str(caught.value))

    assert str(network.port) in reasons[0]
    assert sum("the next attempt waits" in reason for reason in reasons) >= 40


def test_a_consumer_resumes_after_a_cut_and_what_it_held_is_stale(far: Stage, near: Stage, network: Proxy) -> None:
    queue = job_queue()
    near.publisher(queue).publish([to(queue, number=number) for number in range(4)])
    network.open()
    events: list[str] = []
    consumer = far.consumer(queue, on_connect=lambda: events.append("on"), on_disconnect=lambda: events.append("off"))
    held = collect(consumer, 4)
    since = consumer.connected_since
    assert since is not None

    network.cut()

    again = collect(consumer, 4)
    assert sorted(numbers(again)) == ["0", "1", "2", "3"]
    assert all(delivery.redelivered for delivery in again)
    consumer.ack(held)
    consumer.ack(again[:1])
    later = eventually(lambda: consumer.connected_since)
    assert later is not None
    assert later > since
    eventually(lambda: events == ["on", "off", "on"], what="the callbacks were called")
    consumer.close()
    eventually(lambda: near.broker.depth(queue) == 3, what="only what was acked after the cut is gone")


def test_a_command_queue_is_resumed_although_the_broker_still_believes_in_the_lost_connection(
    far: Stage, near: Stage, network: Proxy
) -> None:
    queue = topology.control_queue("w", job_queue().bindings[0].split(".")[0])
    key = queue.bindings[0]
    network.open()
    consumer = far.consumer(queue)
    since = consumer.connected_since
    assert since is not None

    network.cut(tell_server=False)

    eventually(lambda: (consumer.connected_since or 0.0) > since, what="the consumer is back")
    near.publisher().publish([Message(exchange=topology.CONTROL, routing_key=key, body=b"", message_id="stop")])
    assert numbers(collect(consumer, 1)) == ["stop"]


def test_a_consumer_waits_for_a_broker_that_starts_later(far: Stage, near: Stage, network: Proxy) -> None:
    queue = job_queue()
    near.publisher(queue).publish([to(queue, number=1)])
    consumer = far.consumer(queue, ready=False)
    assert consumer.take(1, wait=0.3) == []
    assert not consumer.connected

    network.open()

    assert numbers(collect(consumer, 1)) == ["1"]


def test_a_consumer_that_never_reached_its_broker_can_be_closed(far: Stage) -> None:
    consumer = far.consumer(job_queue(), ready=False)
    consumer.close()

    assert consumer.take(1, wait=0.0) == []


def test_a_consumer_survives_that_its_queue_is_deleted(near: Stage, rabbit_url: str) -> None:
    queue = job_queue()
    consumer = near.consumer(queue)
    since = consumer.connected_since
    assert since is not None
    with pika.BlockingConnection(pika.URLParameters(rabbit_url)) as connection:
        connection.channel().queue_delete(queue.name)

    eventually(lambda: (consumer.connected_since or 0.0) > since, what="the consumer is back")

    near.publisher(queue).publish([to(queue, number=1)])
    assert numbers(collect(consumer, 1)) == ["1"]


def test_messages_that_nobody_takes_from_the_buffer_go_back(near: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickwork.broker.rabbitmq_consumer.BUFFER_SECONDS", 0.0)
    monkeypatch.setattr("tickwork.broker.rabbitmq_consumer.BUFFER_CHECK_SECONDS", 0.2)
    queue = job_queue(delivery_limit=1000)
    near.publisher(queue).publish([to(queue, number=1)])
    hoarder = near.consumer(queue, prefetch=1)
    assert isinstance(hoarder, RabbitConsumer)

    (delivery,) = collect(near.consumer(queue, prefetch=1), 1)

    assert delivery.message_id == "1"
    assert delivery.redelivered


def test_the_broker_makes_quorum_queues(near: Stage, rabbit_url: str) -> None:
    queue = job_queue()
    near.publisher(queue).publish([to(queue)])

    with pika.BlockingConnection(pika.URLParameters(rabbit_url)) as connection:
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"x-queue-type.*'quorum'"):
            channel.queue_declare(
                queue.name,
                durable=True,
                arguments={"x-dead-letter-exchange": topology.DEAD_LETTERS, "x-delivery-limit": queue.delivery_limit},
            )


def test_a_wrong_password_is_refused_without_showing_it(near: Stage, rabbit_url: str) -> None:
    url = rabbit_url.replace("guest:guest@", "guest:hush-hush@")
    assert "hush-hush" in url
    broker = connect(url)

    with pytest.raises(BrokerUnavailable) as checked:
        broker.check()
    publisher = broker.publisher()
    with pytest.raises(BrokerUnavailable) as published:
        publisher.publish([to(job_queue())])
    publisher.close()

    for text in (str(checked.value), str(published.value), repr(broker)):
        assert "hush-hush" not in text
    assert "ACCESS_REFUSED" in str(checked.value)


def test_an_unusable_address_is_a_configuration_error_without_the_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect("amqp://guest:hush-hush@127.0.0.1:not-a-port/")

    assert "hush-hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_check_and_depth_name_the_broker_that_is_away(far: Stage, network: Proxy) -> None:
    with pytest.raises(BrokerUnavailable, match=str(network.port)):
        far.broker.check(timeout=1.0)
    with pytest.raises(BrokerUnavailable, match=str(network.port)):
        far.broker.depth(topology.events_queue())


def test_losing_the_broker_is_logged_once_and_the_library_is_quiet(
    far: Stage, network: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    network.open()
    consumer = far.consumer(job_queue())

    network.shut()
    network.cut()
    eventually(lambda: not consumer.connected, what="the loss is noticed")
    assert nothing_comes(consumer, wait=1.0)

    lost = [record for record in caplog.records if "broker.lost" in record.getMessage()]
    assert len(lost) == 1
    assert not [record for record in caplog.records if record.name.startswith("pika")]
