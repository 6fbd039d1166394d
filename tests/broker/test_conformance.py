"""What the port promises, tried on every implementation."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.broker.stage import Stage, collect, job_queue, nothing_comes, numbers, to
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.broker import topology
from tickwork.broker.base import Consumer, Death, Delivery, Message
from tickwork.errors import BrokerUnavailable

# ── publishing and routing ─────────────────────────────────────────────────────────────────────────


def test_a_message_arrives_as_it_was_published_in_the_queue_of_its_key_only(stage: Stage) -> None:
    mine, other = job_queue(), job_queue()
    headers = {"x-retry-count": 1, "x-original-correlation-id": "c-1", "flag": True}
    sent = to(mine, b"\x00\xff not JSON", 7, headers=headers, correlation_id="c-1", type="dispatch")

    assert stage.publisher(mine, other).publish([sent]) == [None]

    (delivery,) = collect(stage.consumer(mine), 1)
    assert (delivery.queue, delivery.routing_key, delivery.body) == (mine.name, sent.routing_key, sent.body)
    assert (delivery.correlation_id, delivery.message_id, delivery.type) == ("c-1", "7", "dispatch")
    assert dict(delivery.headers) == headers
    assert (delivery.redelivered, delivery.delivery_count, delivery.deaths) == (False, 0, ())
    assert nothing_comes(stage.consumer(other))


def test_a_job_message_waits_for_a_worker_that_has_not_started(stage: Stage) -> None:
    queue = job_queue()

    assert stage.publisher().publish([to(queue, number=1)]) == [None]

    assert numbers(collect(stage.consumer(queue), 1)) == ["1"]


def test_events_wait_for_the_scheduler(stage: Stage) -> None:
    event = Message(exchange=topology.EVENTS, routing_key=topology.events_key("w", "w-1"), body=b"{}")

    assert stage.publisher().publish([event]) == [None]

    assert stage.broker.depth(topology.events_queue()) == 1


def test_a_message_that_no_queue_takes_is_unroutable_and_the_others_of_its_batch_arrive(stage: Stage) -> None:
    queue = job_queue()
    nobody = Message(exchange=topology.CONTROL, routing_key="nobody.listens", body=b"{}")
    optional = Message(exchange=topology.CONTROL, routing_key="nobody.listens", body=b"{}", mandatory=False)
    batch = [to(queue, number=1), nobody, to(queue, number=2), optional, nobody]

    assert stage.publisher().publish(batch) == [None, "unroutable", None, None, "unroutable"]

    assert numbers(collect(stage.consumer(queue), 2)) == ["1", "2"]


def test_a_message_that_cannot_be_encoded_does_not_keep_back_the_others(stage: Stage) -> None:
    queue = job_queue()

    results = stage.publisher().publish([to(queue, number=1, headers={"what": object()}), to(queue, number=2)])

    assert results[0] is not None
    assert results[0].startswith("cannot be encoded")
    assert results[1] is None
    assert numbers(collect(stage.consumer(queue), 1)) == ["2"]


def test_an_empty_batch_is_published_at_once(stage: Stage) -> None:
    assert stage.publisher().publish([]) == []


def test_large_bodies_arrive_whole(stage: Stage) -> None:
    queue = job_queue()
    bodies = [bytes([number]) * (300_000 + number) for number in range(3)]

    stage.publisher().publish([to(queue, body, number) for number, body in enumerate(bodies)])

    assert [delivery.body for delivery in collect(stage.consumer(queue), 3)] == bodies


def test_order_is_kept_within_a_queue(stage: Stage) -> None:
    queue = job_queue()
    publisher, consumer = stage.publisher(queue), stage.consumer(queue, prefetch=200)

    for start in range(0, 2000, 500):
        assert publisher.publish([to(queue, number=start + one) for one in range(500)]) == [None] * 500

    seen: list[str] = []
    while len(seen) < 2000:
        taken = collect(consumer, 100)
        seen += numbers(taken)
        consumer.ack(taken)
    assert seen == [str(number) for number in range(2000)]


def test_threads_that_share_a_publisher_each_get_their_own_results(stage: Stage) -> None:
    queues = [job_queue() for _ in range(4)]
    publisher = stage.publisher(*queues)
    nobody = Message(exchange=topology.CONTROL, routing_key="nobody.listens", body=b"{}")

    def publish(index: int) -> list[str | None]:
        batch = [to(queues[index], number=number) for number in range(50)]
        batch[index] = nobody
        return publisher.publish(batch)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(publish, range(4)))

    for index, result in enumerate(results):
        assert result == [None] * index + ["unroutable"] + [None] * (49 - index)


def test_a_closed_publisher_refuses_and_may_be_closed_again(stage: Stage) -> None:
    queue = job_queue()
    publisher = stage.publisher()
    publisher.publish([to(queue)])
    publisher.close()
    publisher.close()

    with pytest.raises(BrokerUnavailable, match="closed"):
        publisher.publish([to(queue)])


# ── taking, acking, giving back ────────────────────────────────────────────────────────────────────


def test_a_taker_that_waits_is_woken_by_a_message(stage: Stage) -> None:
    queue = job_queue()
    publisher, consumer = stage.publisher(queue), stage.consumer(queue)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.take, 1, wait=PATIENCE_SECONDS)

        publisher.publish([to(queue, number=1)])

        assert numbers(waiting.result(timeout=PATIENCE_SECONDS)) == ["1"]


def test_taking_from_an_empty_queue_returns_nothing(stage: Stage) -> None:
    assert stage.consumer(job_queue()).take(10, wait=0.05) == []


def test_what_was_acked_never_comes_back(stage: Stage) -> None:
    queue = job_queue()
    stage.publisher(queue).publish([to(queue, number=number) for number in range(20)])
    consumer = stage.consumer(queue)
    taken = collect(consumer, 20)

    consumer.ack(taken[10:])
    consumer.ack(reversed(taken[:10]))
    consumer.close()

    assert stage.broker.depth(queue) == 0
    assert nothing_comes(stage.consumer(queue))


def test_what_was_not_acked_comes_back_when_its_consumer_closes(stage: Stage) -> None:
    queue = job_queue()
    stage.publisher(queue).publish([to(queue, number=number) for number in range(5)])
    first = stage.consumer(queue)
    taken = collect(first, 5)
    first.ack([taken[1], taken[3]])
    first.close()
    first.close()

    again = collect(stage.consumer(queue), 3)

    assert sorted(numbers(again)) == ["0", "2", "4"]
    assert {(delivery.redelivered, delivery.delivery_count) for delivery in again} == {(True, 1)}


def test_a_requeued_message_is_handed_out_again(stage: Stage) -> None:
    queue = job_queue()
    stage.publisher(queue).publish([to(queue, number=1)])
    consumer = stage.consumer(queue)

    consumer.reject(collect(consumer, 1), requeue=True)

    (again,) = collect(consumer, 1)
    assert (again.message_id, again.redelivered, again.delivery_count) == ("1", True, 1)


def test_acks_of_a_lost_or_settled_delivery_do_nothing(stage: Stage) -> None:
    queue = job_queue()
    stage.publisher(queue).publish([to(queue, number=1)])
    first = stage.consumer(queue)
    stale = collect(first, 1)
    first.close()
    first.ack(stale)
    second = stage.consumer(queue)
    held = collect(second, 1)

    second.ack(stale)
    second.reject(stale, requeue=False)
    second.close()

    third = stage.consumer(queue)
    last = collect(third, 1)
    assert numbers(held) == numbers(last) == ["1"]
    third.ack(last)
    third.ack(last)
    third.reject(last, requeue=True)
    assert nothing_comes(third)
    assert third.connected


def test_no_more_than_the_prefetch_is_in_hand_over_all_queues(stage: Stage) -> None:
    one, two = job_queue(), job_queue()
    stage.publisher(one, two).publish([to(queue, number=number) for number in range(5) for queue in (one, two)])
    consumer = stage.consumer(one, two, prefetch=3)

    taken = collect(consumer, 3)
    assert nothing_comes(consumer)

    consumer.ack(taken[:2])
    assert len(collect(consumer, 2)) == 2
    assert nothing_comes(consumer)


def test_no_queue_of_a_consumer_is_starved_by_another(stage: Stage) -> None:
    busy, quiet = job_queue(), job_queue()
    publisher = stage.publisher(busy, quiet)
    publisher.publish([to(busy, number=f"busy-{number}") for number in range(300)])
    publisher.publish([to(quiet, number="quiet")])
    consumer = stage.consumer(busy, quiet, prefetch=10)

    seen: list[str] = []
    while "quiet" not in seen:
        taken = collect(consumer, 1)
        consumer.ack(taken)
        seen += numbers(taken)

    assert len(seen) < 300


def test_a_paused_consumer_takes_nothing_more_but_settles_what_it_has(stage: Stage) -> None:
    queue = job_queue()
    publisher = stage.publisher(queue)
    publisher.publish([to(queue, number=number) for number in range(10)])
    consumer = stage.consumer(queue)
    taken = collect(consumer, 2)

    consumer.pause()
    consumer.pause()

    assert consumer.take(10, wait=0.05) == []
    assert not consumer.connected
    others = collect(stage.consumer(queue), 8)
    assert sorted(numbers(others), key=int) == [str(number) for number in range(2, 10)]
    consumer.ack(taken)
    consumer.close()
    assert stage.broker.depth(queue) == 0


def test_a_waiting_taker_returns_when_the_consumer_pauses(stage: Stage) -> None:
    consumer = stage.consumer(job_queue())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.take, 1, wait=2 * PATIENCE_SECONDS)

        consumer.pause()

        assert waiting.result(timeout=PATIENCE_SECONDS) == []


# ── dead letters ───────────────────────────────────────────────────────────────────────────────────


def test_a_rejected_message_becomes_a_dead_letter_with_its_history(stage: Stage) -> None:
    queue = job_queue()
    stage.publisher(queue).publish([to(queue, b"poison", 1, headers={"x-attempt": 2}, correlation_id="c-1")])
    consumer, dead = stage.consumer(queue), stage.consumer(topology.dead_letter_queue())

    consumer.reject(collect(consumer, 1), requeue=False)

    (letter,) = collect(dead, 1)
    assert letter.deaths == (Death(queue=queue.name, reason="rejected", count=1),)
    assert (letter.queue, letter.body, letter.correlation_id) == (topology.DEAD_LETTER_QUEUE, b"poison", "c-1")
    assert dict(letter.headers) == {"x-attempt": 2}
    assert (letter.redelivered, letter.delivery_count) == (False, 0)
    assert stage.broker.depth(queue) == 0


def test_a_message_that_kills_its_consumers_becomes_a_dead_letter(stage: Stage) -> None:
    queue = job_queue(delivery_limit=2)
    stage.publisher(queue).publish([to(queue, number=1)])
    dead = stage.consumer(topology.dead_letter_queue())

    for count in range(3):
        consumer = stage.consumer(queue)
        (delivery,) = collect(consumer, 1)
        assert delivery.delivery_count == count
        if count == 1:
            # Paused, so that it is not handed to this one again.
            consumer.pause()
            consumer.reject([delivery], requeue=True)
        consumer.close()

    (letter,) = collect(dead, 1)
    assert letter.deaths == (Death(queue=queue.name, reason="delivery_limit", count=1),)


def test_a_message_that_nobody_took_in_time_becomes_a_dead_letter(stage: Stage) -> None:
    queue = job_queue()
    stage.publisher(queue).publish(
        [to(queue, number="short", expiration_seconds=0.05), to(queue, number="long", expiration_seconds=600)]
    )

    (letter,) = collect(stage.consumer(topology.dead_letter_queue()), 1)

    assert letter.message_id == "short"
    assert letter.deaths == (Death(queue=queue.name, reason="expired", count=1),)
    assert numbers(collect(stage.consumer(queue), 1)) == ["long"]


def test_a_message_older_than_its_queue_allows_becomes_a_dead_letter(stage: Stage) -> None:
    queue = job_queue(message_ttl_seconds=0.05)
    stage.publisher(queue).publish([to(queue, number=1)])

    (letter,) = collect(stage.consumer(topology.dead_letter_queue()), 1)

    assert letter.deaths == (Death(queue=queue.name, reason="expired", count=1),)


def test_a_message_that_was_taken_does_not_expire(stage: Stage) -> None:
    queue = job_queue()
    consumer, dead = stage.consumer(queue), stage.consumer(topology.dead_letter_queue())
    stage.publisher(queue).publish([to(queue, number=1, expiration_seconds=2.0)])

    taken = collect(consumer, 1)

    assert nothing_comes(dead, wait=2.5)
    consumer.ack(taken)


# ── single active, exclusive ───────────────────────────────────────────────────────────────────────


def test_a_single_active_queue_serves_one_consumer_and_a_standby_takes_over(stage: Stage) -> None:
    queue = job_queue(single_active=True)
    publisher = stage.publisher(queue)
    consumers = [stage.consumer(queue), stage.consumer(queue)]
    publisher.publish([to(queue, number=number) for number in range(4)])

    def taken() -> list[tuple[Consumer, list[Delivery]]]:
        return [(one, deliveries) for one in consumers if (deliveries := one.take(2, wait=0.1))]

    ((active, got),) = eventually(taken)
    got += collect(active, 4 - len(got))
    (standby,) = set(consumers) - {active}
    assert nothing_comes(standby)
    assert numbers(got) == ["0", "1", "2", "3"]
    active.ack(got[:2])

    active.close()

    publisher.publish([to(queue, number=4)])
    assert numbers(collect(standby, 3)) == ["2", "3", "4"]


def test_a_standby_takes_over_when_the_active_consumer_pauses(stage: Stage) -> None:
    queue = job_queue(single_active=True)
    publisher, active = stage.publisher(queue), stage.consumer(queue)
    publisher.publish([to(queue, number=1)])
    active.ack(collect(active, 1))
    standby = stage.consumer(queue)

    active.pause()

    publisher.publish([to(queue, number=2)])
    assert numbers(collect(standby, 1)) == ["2"]


def test_a_command_reaches_one_instance_or_all_of_a_worker(stage: Stage) -> None:
    worker = job_queue().bindings[0].split(".")[0]
    queues = [topology.control_queue(worker, f"{worker}-{number}") for number in (1, 2)]
    consumers = [stage.consumer(queue) for queue in queues]
    publisher = stage.publisher()

    def command(key: str, number: str) -> str | None:
        return publisher.publish([Message(exchange=topology.CONTROL, routing_key=key, body=b"", message_id=number)])[0]

    assert command(topology.control_key(worker, f"{worker}-2"), "second only") is None
    assert command(topology.control_key(worker), "everybody") is None

    assert [(one.queue, one.message_id) for one in collect(consumers[0], 1)] == [(queues[0].name, "everybody")]
    assert numbers(collect(consumers[1], 2)) == ["second only", "everybody"]


def test_an_exclusive_queue_vanishes_with_its_consumer(stage: Stage) -> None:
    worker = job_queue().bindings[0].split(".")[0]
    consumer = stage.consumer(topology.control_queue(worker, f"{worker}-1"))
    publisher = stage.publisher()
    command = Message(exchange=topology.CONTROL, routing_key=topology.control_key(worker), body=b"")
    assert publisher.publish([command]) == [None]

    consumer.close()

    eventually(lambda: publisher.publish([command]) == ["unroutable"], what="the queue is gone")


# ── the rest ───────────────────────────────────────────────────────────────────────────────────────


def test_depth_counts_what_waits_and_knows_no_strange_queue(stage: Stage) -> None:
    queue = job_queue()
    assert stage.broker.depth(queue) is None

    stage.publisher(queue).publish([to(queue, number=number) for number in range(3)])
    assert stage.broker.depth(queue) == 3

    consumer = stage.consumer(queue)
    consumer.ack(collect(consumer, 3))
    consumer.close()
    assert stage.broker.depth(queue) == 0


def test_check_passes_when_the_broker_answers(stage: Stage) -> None:
    stage.broker.check()

    stage.broker.check(timeout=PATIENCE_SECONDS)


def test_a_consumer_tells_when_it_is_connected(stage: Stage) -> None:
    connected = threading.Event()

    consumer = stage.consumer(job_queue(), on_connect=connected.set)

    assert connected.wait(PATIENCE_SECONDS)
    assert consumer.connected_since is not None
    consumer.close()
    assert not consumer.connected
    assert consumer.connected_since is None


def test_a_callback_that_raises_does_not_stop_the_consumer(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    queue = job_queue()

    def fail() -> None:
        raise ValueError("a callback with a fault")

    consumer = stage.consumer(queue, on_connect=fail)
    stage.publisher(queue).publish([to(queue, number=1)])

    assert numbers(collect(consumer, 1)) == ["1"]
    assert "a callback with a fault" in caplog.text


def test_a_queue_that_exists_with_other_arguments_is_used_with_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    before = job_queue(delivery_limit=3)
    after = job_queue(name=before.name, bindings=before.bindings, delivery_limit=5)
    publisher = stage.publisher(before)
    publisher.publish([to(before, number=1)])

    consumer = stage.consumer(after)

    assert numbers(collect(consumer, 1)) == ["1"]
    assert before.name in caplog.text
    assert "other arguments" in caplog.text


def test_consumers_of_one_queue_share_its_messages_without_overlap(stage: Stage) -> None:
    queue = job_queue()
    consumers = [stage.consumer(queue, prefetch=20) for _ in range(3)]
    publisher = stage.publisher(queue)
    seen: list[list[str]] = [[] for _ in consumers]
    stop = threading.Event()

    def work(index: int) -> None:
        while not stop.is_set():
            taken = consumers[index].take(20, wait=0.1)
            seen[index] += numbers(taken)
            consumers[index].ack(taken)

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work, index) for index in range(3)]
        for start in range(0, 1500, 500):
            publisher.publish([to(queue, number=start + one) for one in range(500)])
        eventually(lambda: sum(map(len, seen)) >= 1500, what="everything was taken")
        stop.set()
        for worker in workers:
            worker.result(timeout=PATIENCE_SECONDS)

    assert sorted(int(number) for part in seen for number in part) == list(range(1500))
