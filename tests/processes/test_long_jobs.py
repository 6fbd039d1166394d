"""Jobs that outlast what the broker allows: its consumer timeout, and the time to live of a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import LiteralString

import pika
import pytest

from tests.processes.cluster import COMPLETED, RUNNING, WORKER, Servers
from tests.processes.conftest import MakeCluster
from tickwork import contracts
from tickwork.broker import topology

pytestmark = pytest.mark.slow
CONSUMER_TIMEOUT_SECONDS = 7


@pytest.fixture
def impatient(servers: Servers) -> Iterator[None]:
    """RabbitMQ closes a channel that holds a delivery for 7 seconds, instead of 30 minutes, and looks every second."""
    servers.rabbitmq.start()

    def allow(milliseconds: int, interval: int) -> None:
        servers.rabbitmq.control(
            "eval",
            f"application:set_env(rabbit, consumer_timeout, {milliseconds}), "
            f"application:set_env(rabbit, channel_tick_interval, {interval}).",
        )

    allow(CONSUMER_TIMEOUT_SECONDS * 1000, 1000)
    yield
    allow(1_800_000, 60_000)


@pytest.mark.usefixtures("impatient")
def test_a_job_longer_than_the_consumer_timeout_is_not_redelivered_and_completes_once(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster()
    cluster.start_all(worker=0)
    (careless,) = cluster.start(WORKER, settings={"TICKWORK_WORKER_LEASE_AFTER_SECONDS": "900"})
    first = cluster.trigger_gated()
    cluster.until(lambda: "broker.lost" in careless.log_tail(30), what="RabbitMQ's timeout to strike without a lease")
    careless.kept = False
    careless.kill()

    cluster.start(WORKER, 2, settings={"TICKWORK_WORKER_LEASE_AFTER_SECONDS": "0.5"})
    seconds = 1.5 * CONSUMER_TIMEOUT_SECONDS
    ids = [cluster.trigger(job_type, data={"seconds": seconds}) for job_type in ("waits", "works", "isolated")]
    for identifier in ids:
        cluster.reaches(identifier, COMPLETED)
        assert cluster.effects("start", identifier) == cluster.effects("end", identifier) == [(identifier, 1)]
    assert cluster.status(first) == RUNNING, "taken over, and under a lease as well"
    for worker in cluster.of(WORKER)[1:]:
        assert "broker.lost" not in worker.log.read_text()


def test_what_waits_in_a_busy_worker_is_not_sent_to_another_one_as_lost(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        {
            "SCHEDULER_DEFAULT_QUEUE_TTL_SECONDS": "3",
            "SCHEDULER_QUEUED_BACKSTOP_SECONDS": "5",
            "TICKWORK_WORKER_CONCURRENCY": "1",
        }
    )
    cluster.start_all(worker=0)
    cluster.start(WORKER)
    cluster.workers_registered(1)
    cluster.trigger_gated()
    cluster.until(lambda: cluster.effects("start"), what="the worker to be busy")
    waiting = cluster.trigger("short")
    cluster.until(
        lambda: cluster.rows("SELECT heartbeat_at FROM occurrences_occurrence WHERE id = %s", waiting)[0][0],
        what="the worker to name what waits in it",
    )
    cluster.start(WORKER)
    cluster.workers_registered(2)
    query: LiteralString = "SELECT now() - queued_at > interval '7 s' FROM occurrences_occurrence WHERE id = %s"
    cluster.until(lambda: cluster.rows(query, waiting) == [(True,)], what="the backstop's time to be over")
    cluster.open_gate()
    cluster.reaches(waiting, COMPLETED)
    assert cluster.effects("end", waiting) == [(waiting, 1)]
    assert [reason for _, _, reason in cluster.history(waiting) if "lost" in reason] == []


def test_a_copy_that_another_worker_ran_does_not_run_again_where_the_first_one_waits(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"TICKWORK_WORKER_CONCURRENCY": "1"})
    cluster.start_all(worker=0)
    cluster.start(WORKER)
    busy = cluster.trigger_gated()
    cluster.until(lambda: cluster.effects("start"), what="the worker to be busy")
    cluster.until(  # what is queued in its first seconds it asks about in any case
        lambda: cluster.rows("SELECT now() - started_at > interval '3 s' FROM workers_app_workerinstance") == [(True,)],
        what="the worker to be no newcomer",
    )
    doubled = cluster.trigger("short")
    cluster.until(
        lambda: cluster.rows("SELECT heartbeat_at FROM occurrences_occurrence WHERE id = %s", doubled)[0][0],
        what="the first message to wait in the busy worker",
    )
    cluster.start(WORKER)
    cluster.workers_registered(2)
    order = contracts.Dispatch(
        id=doubled, job_id="j", job_name="n", worker="faults", job_type="short", attempt=1, max_attempts=1
    )
    # As a relay does whose confirm got lost; once for each of the two workers, which take turns.
    with pika.BlockingConnection(pika.URLParameters(cluster.environment["BROKER_URL"])) as connection:
        channel = connection.channel()
        for _ in range(2):
            channel.basic_publish(
                topology.JOBS,
                topology.job_key("faults", "short", doubled),
                contracts.encode(order),
                pika.BasicProperties(headers={contracts.HEADER_MAYBE_DUPLICATE: 1}),
            )
    cluster.reaches(doubled, COMPLETED)
    assert cluster.status(busy) == RUNNING
    cluster.open_gate()
    cluster.reaches(busy, COMPLETED)
    after = cluster.trigger("short")
    cluster.reaches(after, COMPLETED)
    assert cluster.effects("start", doubled) == [(doubled, 1)]


def test_a_worker_that_dies_after_its_message_has_expired_is_replaced(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"SCHEDULER_DEFAULT_QUEUE_TTL_SECONDS": "2"})
    cluster.start_all(worker=0)
    (first,) = cluster.start(WORKER)
    cluster.workers_registered(1)
    identifier = cluster.trigger_gated()
    cluster.until(lambda: cluster.effects("start"), what="the job to be at work")
    cluster.start(WORKER)
    cluster.until(
        lambda: cluster.rows("SELECT now() - queued_at > interval '3 s' FROM occurrences_occurrence") == [(True,)],
        what="the message's time to be over",
    )
    first.kept = False
    first.kill()
    cluster.open_gate()
    cluster.reaches(identifier, COMPLETED)
    assert cluster.effects("end", identifier) == [(identifier, 1)], "the same attempt, by the other worker"
