"""5,000 jobs due in one second: each runs once, also while every kind of process is killed. Effects are counted in the
file that the jobs write.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tests.processes.cluster import COMPLETED, ROLES, WORKER, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

COUNT = 5_000


def make_due(cluster: Cluster, count: int = COUNT) -> None:
    """One-time jobs, all due in the same second shortly from now."""
    due_at = cluster.hand.do("soon", seconds=1.0)
    fields = {"name": "once", "worker": "faults", "job_type": "short"}
    cluster.hand.do("create_due_jobs", count=count, execute_at=due_at, fields=fields)


def start(cluster: Cluster) -> None:
    """Two dispatchers and two workers, one of each other role."""
    cluster.start_all(dispatch=2, worker=2)
    cluster.until(
        lambda: cluster.rows("SELECT count(*) FROM workers_app_workerinstance") == [(2,)], what="two workers registered"
    )


def test_5000_jobs_of_one_second_each_run_once(cluster: Cluster) -> None:
    start(cluster)
    make_due(cluster)
    cluster.all_final(COUNT)
    assert cluster.counts() == {COMPLETED: COUNT}
    ends = Counter(cluster.effects("end"))
    assert len(ends) == COUNT
    assert set(ends.values()) == {1}
    assert cluster.rows("SELECT count(*) FROM occurrences_outboxmessage") == [(0,)]


@pytest.mark.parametrize("seed", [1, 2])
def test_5000_jobs_of_one_second_all_complete_while_every_kind_of_process_is_killed(
    cluster: Cluster, seed: int
) -> None:
    chance = random.Random(seed)
    start(cluster)
    make_due(cluster)
    victims = [*ROLES[:3], WORKER] * 2
    chance.shuffle(victims)
    killed: list[tuple[str, int]] = []
    for role in victims:
        pause = time.monotonic() + chance.uniform(0.1, 0.7)
        cluster.until(lambda until=pause: time.monotonic() >= until, what="the moment of the next kill")  # type: ignore[misc]
        alive = [member for member in cluster.of(role) if member.alive]
        if alive:
            killed.append((role, chance.choice(alive).kill()))
    cluster.all_final(COUNT, timeout=90)
    assert cluster.counts() == {COMPLETED: COUNT}, "every tick has its occurrence, and each is Completed"
    assert {role for role, _ in killed} >= {"dispatch", "relay_outbox", "consume_events", WORKER}
    ends = Counter(identifier for identifier, _ in cluster.effects("end"))
    assert len(ends) == COUNT
    # Twice is explained only by a worker that was killed before its report of the first run was confirmed.
    unexplained = cluster.doubles_without({pid for role, pid in killed if role == WORKER})
    assert unexplained == []
