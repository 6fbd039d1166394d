"""A rolling restart of every process under load: nothing is lost, nothing happens twice, no attempt is used up."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.processes.cluster import COMPLETED, ROLES, WORKER
from tests.processes.conftest import MakeCluster

pytestmark = pytest.mark.slow


def test_a_rolling_restart_of_everything_loses_nothing_and_doubles_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"TICKWORK_WORKER_SHUTDOWN_SECONDS": "0.5"})
    cluster.start_all(worker=2, consume_events=2)
    # A signal that comes before a process has set up how to deal with it just ends it.
    roles = "SELECT count(DISTINCT role), (SELECT count(*) FROM workers_app_workerinstance) FROM occurrences_looppass"
    cluster.until(lambda: cluster.rows(roles) == [(len(ROLES), 2)], what="every loop to turn")
    fields = {"worker": "faults", "max_attempts": 1}
    short = cluster.hand.do("create_job", fields={**fields, "name": "short", "job_type": "short"})
    long = cluster.hand.do("create_job", fields={**fields, "name": "long", "job_type": "works", "data": {"seconds": 1}})
    ids: list[str] = []
    for old in [*cluster.of(WORKER, *ROLES)]:
        ids += cluster.hand.do("trigger", job=short, datas=[None] * 40)
        ids += cluster.hand.do("trigger", job=long, datas=[None] * 2)
        if old.role == WORKER:  # the workers take turns: each gets some of these
            ids += [cluster.trigger_gated(max_attempts=1) for _ in range(4)]
            cluster.until(
                lambda pid=old.pid: pid in cluster.at_work("gated"),  # type: ignore[misc]
                what="the worker to have a job that is not done before it leaves",
            )
        cluster.start(old.role)
        cluster.stop([old])
    cluster.open_gate()
    cluster.all_final(len(ids))
    assert cluster.counts() == {COMPLETED: len(ids)}
    assert cluster.rows("SELECT DISTINCT attempt FROM occurrences_occurrence") == [(1,)]
    assert Counter(Counter(cluster.effects("end")).values()) == {1: len(ids)}
    ((interrupted,),) = cluster.rows("SELECT count(*) FROM occurrences_attempt WHERE outcome = 'interrupted'")
    assert interrupted >= 2, "the restarts hit running jobs"


def test_a_second_signal_ends_a_process_at_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster({"TICKWORK_WORKER_SHUTDOWN_SECONDS": "600"})
    cluster.start_all()
    cluster.trigger("works", data={"seconds": 60})
    cluster.until(lambda: cluster.effects("start"), what="the job to be at work")
    (worker,) = cluster.of(WORKER)
    worker.kept = False
    worker.send(signal.SIGTERM)
    cluster.until(lambda: "worker.draining" in worker.log_tail(), what="the first signal to be heard")
    worker.send(signal.SIGTERM)
    cluster.until(lambda: not worker.alive, what="the second signal to end it")
