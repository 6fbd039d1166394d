"""Cancelling and timing out: what waits, what runs on the loop, in a thread, in a child process that has children."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes.cluster import CANCELLED, QUEUED, TIMED_OUT, WORKER, Cluster
from tests.servers.base import is_running

pytestmark = pytest.mark.slow
RUNNING_JOBS = ("waits", "works", "isolated")


def test_what_waits_is_cancelled_at_once_and_never_begins(cluster: Cluster) -> None:
    cluster.start_all(worker=0)
    queued = cluster.trigger("short")
    cluster.until(
        lambda: cluster.rows("SELECT count(*) FROM occurrences_outboxmessage") == [(0,)], what="it to reach the broker"
    )
    assert cluster.hand.do("cancel", occurrence=queued) == "cancelled"
    cluster.start(WORKER)
    between = cluster.trigger("flaky", data={"failures": 9}, max_attempts=9, retry_base_seconds=3600)
    cluster.until(lambda: cluster.history(between)[-1][:2] == (QUEUED, 2), what="it to wait for its second attempt")
    assert cluster.hand.do("cancel", occurrence=between) == "cancelled"
    assert cluster.status(queued) == cluster.status(between) == CANCELLED
    after = cluster.trigger("short")
    cluster.until(lambda: cluster.effects("end", after), what="a job sent later to end")
    assert cluster.effects("start", queued) == []
    assert cluster.rows("SELECT count(*) FROM occurrences_outboxmessage WHERE event_type = 'job.dispatch'") == [(0,)]


def test_what_runs_is_cancelled_with_all_its_processes(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_all()
    pid_file = tmp_path / "pid"
    ids = [cluster.trigger(job_type, data={"seconds": 600}) for job_type in RUNNING_JOBS]
    ids.append(cluster.trigger("parent", data={"pid_file": str(pid_file), "seconds": 600}))
    cluster.until(lambda: len(cluster.effects("start")) == len(ids) and pid_file.exists(), what="all to be at work")
    grandchild = cluster.until(lambda: int(pid_file.read_text() or 0), what="the job's own process")
    for identifier in ids:
        cluster.until(
            lambda one=identifier: cluster.history(one)[-1][0] == 1,  # type: ignore[misc]
            what="its start to be recorded",
        )
        assert cluster.hand.do("cancel", occurrence=identifier) == "requested"
    for identifier in ids:
        cluster.reaches(identifier, CANCELLED)
        assert cluster.history(identifier)[-1][2] == "cancelled by a test"
    cluster.until(lambda: not is_running(grandchild), what="the job's own process to be gone")
    assert cluster.effects("end") == []
    (worker,) = cluster.of(WORKER)
    cluster.stop([worker])


def test_what_takes_too_long_times_out_whatever_way_it_runs(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_all()
    pid_file = tmp_path / "pid"
    limits = {"timeout_seconds": 6, "max_attempts": 5}  # in which a child process has begun
    ids = [cluster.trigger(job_type, data={"seconds": 600}, **limits) for job_type in RUNNING_JOBS]
    ids.append(cluster.trigger("parent", data={"pid_file": str(pid_file), "seconds": 600}, **limits))
    for identifier in ids:
        cluster.reaches(identifier, TIMED_OUT)
    assert cluster.rows("SELECT kind, count(*) FROM occurrences_failedoccurrence GROUP BY 1") == [
        ("timed_out", len(ids))
    ]
    cluster.until(lambda: not is_running(int(pid_file.read_text())), what="the job's own process to be gone")
    assert cluster.effects("end") == []
    assert sorted(cluster.effects("start")) == sorted((identifier, 1) for identifier in ids), (
        "no retry unless asked for"
    )


def test_a_thread_that_does_not_listen_is_reported_and_left_behind(cluster: Cluster) -> None:
    cluster.start_all()
    identifier = cluster.trigger("deaf", data={"seconds": 600}, timeout_seconds=1)
    cluster.reaches(identifier, TIMED_OUT)
    (worker,) = cluster.of(WORKER)
    cluster.stop([worker])
    assert not os.path.exists(f"/proc/{worker.pid}")
