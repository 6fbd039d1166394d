"""What cannot be executed: no worker, poison, unknown job types, and jobs that kill whoever runs them."""

from __future__ import annotations

from typing import LiteralString

import pika
import pytest

from tests.processes.cluster import COMPLETED, FAILED, QUEUED, WORKER, Cluster
from tests.processes.conftest import MakeCluster
from tickwork import contracts
from tickwork.broker import topology

pytestmark = pytest.mark.slow
GARBAGE = [b"\xff\xfe not json", b"{}", b'{"v": 99}']


def failures(cluster: Cluster, identifier: str) -> list[str]:
    """The kinds of one occurrence's open failures."""
    query = "SELECT kind FROM occurrences_failedoccurrence WHERE occurrence_id = %s AND resolved_at IS NULL"
    return [kind for (kind,) in cluster.rows(query, identifier)]


def test_what_no_worker_takes_in_time_fails_or_is_sent_again_until_one_is_there(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"SCHEDULER_REDISPATCH_LIMIT": "1000"})
    cluster.start_all(worker=0)
    failing = cluster.trigger("short", queue_ttl_seconds=1)
    patient = cluster.trigger("works", queue_ttl_seconds=1, on_worker_unavailable="redispatch", data={"seconds": 0})
    cluster.reaches(failing, FAILED)
    assert failures(cluster, failing) == ["queue_ttl_expired"]
    assert "worker queue TTL expired" in cluster.history(failing)[-1][2]
    cluster.until(
        lambda: [reason for _, _, reason in cluster.history(patient) if "sent again" in reason],
        what="it to be sent again",
    )
    assert cluster.status(patient) == QUEUED
    cluster.start(WORKER)
    cluster.reaches(patient, COMPLETED)
    assert cluster.effects("end") == [(patient, 1)]


def test_poison_is_set_aside_and_stops_nothing(cluster: Cluster) -> None:
    cluster.start_all()
    unknown = cluster.trigger("no_such_job", queue_ttl_seconds=60)
    cluster.until(
        lambda: cluster.rows("SELECT count(*) FROM occurrences_outboxmessage") == [(0,)], what="the message to be sent"
    )
    order = contracts.Dispatch(
        id=unknown, job_id="j", job_name="n", worker="faults", job_type="no_such_job", attempt=1, max_attempts=1
    )
    with pika.BlockingConnection(pika.URLParameters(cluster.environment["BROKER_URL"])) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in GARBAGE:
            channel.basic_publish(topology.EVENTS, "faults.nobody", body)
            channel.basic_publish(topology.DEAD_LETTERS, "faults.short.x", body)
            channel.basic_publish(topology.JOBS, topology.job_key("faults", "short", "x"), body)
            channel.basic_publish(topology.CONTROL, topology.control_key("faults"), body)
        # A type that this worker does not know, in a queue that it reads.
        channel.basic_publish(topology.JOBS, topology.job_key("faults", "short", unknown), contracts.encode(order))
    cluster.reaches(unknown, FAILED)
    assert failures(cluster, unknown) == ["rejected"]
    expected = 3 * len(GARBAGE)  # a command that cannot be read concerns no occurrence and is only logged
    count: LiteralString = (
        "SELECT count(*), count(*) FILTER (WHERE raw <> '') "
        "FROM occurrences_failedoccurrence WHERE occurrence_id IS NULL"
    )
    cluster.until(
        lambda: cluster.rows(count) == [(expected, expected)],
        what=f"{expected} messages to be set aside with their text",
    )
    cluster.reaches(cluster.trigger("short"), COMPLETED)


def test_a_job_that_kills_its_worker_each_time_fails_in_the_end(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"SCHEDULER_WORKER_LOST_AFTER_SECONDS": "2", "SCHEDULER_ZOMBIE_TIMEOUT_SECONDS": "600"})
    queue = topology.job_queue("faults", "deadly")
    with pika.BlockingConnection(pika.URLParameters(cluster.environment["BROKER_URL"])) as connection:
        # As declared by the program, but for a limit that a test can wait for. A queue that exists is used as it is.
        arguments = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": topology.DEAD_LETTERS,
            "x-delivery-limit": 3,
        }
        connection.channel().queue_declare(queue.name, durable=True, arguments=arguments)
    cluster.start_all(worker=2)
    deadly = cluster.trigger("deadly")
    cluster.reaches(deadly, FAILED)
    assert failures(cluster, deadly) == ["delivery_limit"]
    assert cluster.effects("start", deadly) == [(deadly, 1)] * 4
    cluster.reaches(cluster.trigger("short"), COMPLETED)
