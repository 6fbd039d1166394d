"""A process of its own on a broker file: `python -m tests.broker.embedded_child URL publish|consume|hold …`."""

from __future__ import annotations

import sys

from tickwork.broker import embedded_consumer, topology
from tickwork.broker.base import Message
from tickwork.broker.connect import connect
from tickwork.broker.topology import Queue, job_queue


def main(url: str, what: str, worker: str, *more: str) -> None:
    """Prints what it did: one message id in each line."""
    queue = job_queue(worker, "Work")
    if what == "publish":
        publish(url, worker, name=more[0], count=int(more[1]))
    elif what == "consume":
        consume(url, queue)
    else:
        hold(url, Queue(**{**vars(queue), "single_active": True}))


def publish(url: str, worker: str, *, name: str, count: int) -> None:
    """Publish `count` messages in batches of 50."""
    publisher = connect(url).publisher()
    for start in range(0, count, 50):
        names = [f"{name}-{number}" for number in range(start, min(start + 50, count))]
        results = publisher.publish(
            [
                Message(exchange=topology.JOBS, routing_key=f"{worker}.Work.{one}", body=b"{}", message_id=one)
                for one in names
            ]
        )
        if any(results):
            raise SystemExit(f"not delivered: {results}")
        print("\n".join(names), flush=True)
    publisher.close()


def consume(url: str, queue: Queue) -> None:
    """Take and ack until a message named `end` comes, which is left for the next process."""
    consumer = connect(url).consumer([queue], prefetch=100)
    while True:
        taken = consumer.take(37, wait=5.0)
        ends = [delivery for delivery in taken if delivery.message_id == "end"]
        others = [delivery for delivery in taken if delivery.message_id != "end"]
        consumer.ack(others)
        for delivery in others:
            print(delivery.message_id, flush=True)
        if ends:
            consumer.reject(ends, requeue=True)
            consumer.close()
            return


def hold(url: str, queue: Queue) -> None:
    """Take one message, say so, and sit on it until killed; the lease is short."""
    embedded_consumer.LEASE_SECONDS = 1.0
    embedded_consumer.RENEW_SECONDS = 0.2
    consumer = connect(url).consumer([queue], prefetch=1)
    taken = consumer.take(1, wait=30.0)
    print(taken[0].message_id, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
