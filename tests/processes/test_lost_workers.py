"""Workers that vanish for good, and workers that come back from the dead."""

from __future__ import annotations

import pytest

from tests.processes.cluster import COMPLETED, FAILED, RUNNING, UNKNOWN, WORKER, Cluster
from tests.processes.conftest import MakeCluster

pytestmark = pytest.mark.slow


def unacknowledged(cluster: Cluster) -> int:
    """How many job messages workers hold."""
    listing = cluster.servers.rabbitmq.control("list_queues", "-p", cluster.vhost, "name", "messages_unacknowledged")
    lines = [line.split() for line in listing.splitlines() if line.startswith("tickwork.jobs.")]
    return sum(int(count) for _, count in lines)


def test_under_a_lease_a_killed_worker_is_found_by_its_silence(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        {
            "TICKWORK_WORKER_LEASE_AFTER_SECONDS": "0.5",
            "SCHEDULER_HEARTBEAT_STALE_SECONDS": "3",
            "SCHEDULER_ZOMBIE_TIMEOUT_SECONDS": "6",
        }
    )
    cluster.start_all()
    lost = cluster.trigger_gated(max_attempts=3)
    again = cluster.trigger_gated(max_attempts=3, retry_on_zombie=True, retry_base_seconds=0.1)
    cluster.until(lambda: len(cluster.effects("start")) == 2, what="both jobs to be at work")
    cluster.until(lambda: unacknowledged(cluster) == 0, what="both messages to be exchanged for leases")
    (worker,) = cluster.of(WORKER)
    worker.kept = False
    worker.kill()
    cluster.open_gate()
    # A job may be silent for as long as it may run, which takes too long for a test.
    cluster.rows("UPDATE occurrences_occurrence SET timeout_seconds = 5 RETURNING id")
    cluster.reaches(lost, UNKNOWN)
    cluster.reaches(lost, FAILED)
    assert cluster.rows("SELECT kind FROM occurrences_failedoccurrence") == [("zombie",)]
    assert "Zombie detected" in cluster.history(lost)[-1][2]
    cluster.start(WORKER)
    cluster.reaches(again, COMPLETED)
    assert cluster.effects("start", again) == [(again, 1), (again, 2)]
    assert cluster.effects("end", again) == [(again, 2)]


def test_a_frozen_worker_is_replaced_and_its_late_result_changes_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"SCHEDULER_WORKER_LOST_AFTER_SECONDS": "2"})
    cluster.start_all()
    (frozen,) = cluster.of(WORKER)
    identifier = cluster.trigger_gated()
    cluster.reaches(identifier, RUNNING)
    cluster.until(lambda: cluster.effects("start"), what="the job to be at work")
    frozen.freeze()
    cluster.start(WORKER)
    cluster.until(lambda: len(cluster.effects("start")) == 2, what="another worker to have taken it over")
    cluster.open_gate()
    cluster.reaches(identifier, COMPLETED)
    ((result_of, ended_at),) = cluster.rows("SELECT instance, ended_at FROM occurrences_occurrence")
    assert f"-{cluster.of(WORKER)[1].pid}-" in result_of
    frozen.thaw()
    cluster.until(
        lambda: [reason for _, _, reason in cluster.history(identifier) if "late report ignored" in reason],
        what="the late report to be noted",
    )
    assert cluster.rows("SELECT status, instance, ended_at FROM occurrences_occurrence") == [
        (COMPLETED, result_of, ended_at)
    ]
    assert cluster.effects("end", identifier) == [(identifier, 1)] * 2, "which is why jobs have an idempotency key"
    after = cluster.trigger("short")
    cluster.reaches(after, COMPLETED)
