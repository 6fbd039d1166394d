"""The broker, the database or both stores of messages are gone for a while, under load."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import Counter

import pytest

from tests.faults import jobs
from tests.processes.cluster import COMPLETED, RUNNING, Cluster
from tests.processes.conftest import MakeCluster
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow
LINES = 20
SHORT = {"name": "short", "worker": "faults", "job_type": "short"}
STURDY = {"worker": "faults", "max_attempts": 1, "timeout_seconds": 10}


def test_while_the_broker_is_away_jobs_finish_and_are_told_in_order_when_it_is_back(make_cluster: MakeCluster) -> None:
    patient = {  # a worker that is slow to come back is not lost: what it held would rightly be run by the other one
        "SCHEDULER_WORKER_LOST_AFTER_SECONDS": "120",
        "SCHEDULER_HEARTBEAT_STALE_SECONDS": "150",
        "SCHEDULER_ZOMBIE_TIMEOUT_SECONDS": "600",
    }
    cluster = make_cluster({"SCHEDULER_DEFAULT_QUEUE_TTL_SECONDS": "3", **patient})
    cluster.start_all(worker=2)
    cluster.workers_registered(2)
    data = {"lines": LINES, "seconds": 1, "gate": str(cluster.gate)}
    ids = [cluster.trigger("talks", data=data, max_attempts=1) for _ in range(8)]
    cluster.until(lambda: len(cluster.effects("start")) == len(ids), what="all jobs to be at work")
    cluster.servers.rabbitmq.stop()
    away_since = time.time()
    cluster.open_gate()
    cluster.until(lambda: len(cluster.effects("end")) == len(ids), what="all jobs to end while the broker is away")
    cluster.until(  # what ran must not count as never taken
        lambda: cluster.rows("SELECT now() - max(queued_at) > interval '4 s' FROM occurrences_occurrence") == [(True,)],
        what="the outage to be longer than messages live",
    )
    cluster.servers.rabbitmq.start()
    back_at = time.time()
    cluster.all_final(len(ids))
    assert cluster.counts() == {COMPLETED: len(ids)}
    assert Counter(cluster.effects("start")) == Counter((identifier, 1) for identifier in ids)
    assert all(away_since < at < back_at for kind, _, _, _, at, _ in jobs.read(cluster.effects_file) if kind == "end")
    logs = cluster.rows(
        "SELECT occurrence_id, array_agg(sequence ORDER BY id), array_agg((fields->>'number')::int ORDER BY logged_at) "
        "FROM occurrences_occurrencelog GROUP BY 1"
    )
    assert len(logs) == len(ids)
    for _, sequences, numbers in logs:
        assert sequences == numbers == list(range(1, LINES + 1)), "kept in the order in which they were written"


def load(cluster: Cluster) -> int:
    """Work of every length, for two workers; returns how many occurrences."""
    cluster.workers_registered(2)
    count = 0
    for job_type, data, number in (("short", {}, 60), ("waits", {"seconds": 2.5}, 10), ("works", {"seconds": 1}, 10)):
        fields = {**STURDY, "name": job_type, "job_type": job_type, "data": data, "retry_on_zombie": True}
        fields |= {"max_attempts": 5, "retry_base_seconds": 0.5, "on_worker_unavailable": "redispatch"}
        job = cluster.hand.do("create_job", fields=fields)
        count += len(cluster.hand.do("trigger", job=job, datas=[None] * number))
    return count


def test_a_database_that_is_killed_under_load_loses_nothing(cluster: Cluster) -> None:
    cluster.start_all(dispatch=2, worker=2)
    ticking = {"name": "t", "worker": "faults", "job_type": "short", "cron": "* * * * * *"}
    job = cluster.hand.do("create_job", fields={**ticking, "misfire_policy": "catch_up", "misfire_limit": 100})
    count = load(cluster) + 1
    outlasting = cluster.trigger_gated()
    cluster.until(lambda: cluster.effects("start", outlasting), what="a job that outlasts the database to be at work")
    cluster.until(lambda: len(cluster.effects("end")) > 10, what="work to be under way")
    cluster.servers.postgres.kill()
    cluster.open_gate()
    cluster.until(lambda: cluster.effects("end", outlasting), what="workers to go on without it")
    cluster.servers.postgres.start()
    cluster.until(
        lambda: cluster.rows("SELECT count(*) FROM occurrences_occurrence WHERE trigger = 'schedule'")[0][0] >= 8,
        what="ticks after the outage",
    )
    (line,) = cluster.hand.do("end_schedules")
    assert line.startswith(job)
    ((ticks, seconds),) = cluster.rows(
        "SELECT count(*), extract(epoch FROM max(scheduled_for) - min(scheduled_for))::int + 1 "
        "FROM occurrences_occurrence WHERE trigger = 'schedule'"
    )
    cluster.all_final(count + ticks)
    counts = cluster.counts()
    assert counts.pop(COMPLETED) + sum(counts.values()) == count + ticks
    assert ticks == seconds, "no tick is missing"
    assert cluster.rows("SELECT count(*) FROM occurrences_occurrence WHERE trigger = 'manual' AND status <> 2") == [
        (0,)
    ]
    assert set(Counter(cluster.effects("end")).values()) == {1}
    assert all("consume_events.recovered" in member.log.read_text() for member in cluster.of("consume_events"))


def test_everything_reaches_its_end_after_rabbitmq_and_redis_lost_all_they_had(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        {
            "SCHEDULER_DEFAULT_QUEUE_TTL_SECONDS": "4",
            "SCHEDULER_QUEUED_BACKSTOP_SECONDS": "8",
            "SCHEDULER_HEARTBEAT_STALE_SECONDS": "3",
            "SCHEDULER_ZOMBIE_TIMEOUT_SECONDS": "6",
            "TICKWORK_WORKER_CONCURRENCY": "4",
        }
    )
    cluster.start_all(worker=2)
    count = load(cluster)
    cluster.until(lambda: len(cluster.effects("end")) > 10, what="work to be under way")
    cluster.wipe_broker()
    cluster.servers.redis.wipe()
    cluster.all_final(count)
    assert cluster.counts() == {COMPLETED: count}
    assert len({identifier for identifier, _ in cluster.effects("end")}) == count


def test_ends_that_only_rabbitmq_knew_when_it_lost_everything_are_told_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"SCHEDULER_DEFAULT_QUEUE_TTL_SECONDS": "4", "SCHEDULER_QUEUED_BACKSTOP_SECONDS": "8"})
    cluster.start_all()
    cluster.until(lambda: begins_without_asking(cluster), what="a worker that has heard commands for a while")
    known_to_run = cluster.trigger_gated()
    cluster.reaches(known_to_run, RUNNING)
    cluster.stop(cluster.of("consume_events"))
    cluster.open_gate()
    cluster.hand.do("trigger", job=cluster.hand.do("create_job", fields=SHORT), datas=[None] * 20)
    count = sum(cluster.counts().values())
    cluster.until(lambda: confirmed_ends(cluster) == count, what="RabbitMQ to have all reports")
    cluster.wipe_broker()
    cluster.start("consume_events")
    cluster.all_final(count)
    assert cluster.counts() == {COMPLETED: count}
    starts = Counter(cluster.effects("start"))
    assert (len(starts), set(starts.values())) == (count, {1})


def begins_without_asking(cluster: Cluster) -> bool:
    """Whether a new run needs no answer of the event consumer to begin."""
    run = cluster.trigger("short")
    cluster.reaches(run, COMPLETED)
    return not any(reason for status, _, reason in cluster.history(run) if status == RUNNING)


def confirmed_ends(cluster: Cluster) -> int:
    """How many ends of attempts the only worker has told and the broker has confirmed."""
    query = "SELECT count(*) FROM reports, confirmed WHERE seq <= up_to AND ends"
    with contextlib.closing(
        sqlite3.connect(cluster.folder / "store" / "faults-0.sqlite", timeout=PATIENCE_SECONDS)
    ) as store:
        return int(store.execute(query).fetchone()[0])
