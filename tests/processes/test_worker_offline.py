"""A worker whose RabbitMQ goes away: it finishes what it has, keeps every report, and repeats nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.broker.proxy import Proxy
from tests.processes.worker_stage import WorkerStage
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.contracts import Finished, Heartbeat, Log, Registered, Started
from tickwork.worker.store_folder import try_open


@pytest.fixture
def proxy(fresh_rabbitmq_url: str) -> Iterator[Proxy]:
    """The network between the worker and RabbitMQ."""
    parts = urlsplit(fresh_rabbitmq_url)
    assert parts.hostname is not None
    with Proxy(parts.hostname, parts.port or 5672) as proxy:
        yield proxy.open()


@pytest.fixture
def stage(tmp_path: Path, fresh_rabbitmq_url: str, proxy: Proxy) -> Iterator[WorkerStage]:
    """The scheduler's side, which reaches RabbitMQ directly; the worker goes through the proxy."""
    parts = urlsplit(fresh_rabbitmq_url)
    login = "".join(parts.netloc.rpartition("@")[:2])
    worker_url = urlunsplit(parts._replace(netloc=f"{login}127.0.0.1:{proxy.port}"))
    stage = WorkerStage(tmp_path, fresh_rabbitmq_url, worker_url)
    yield stage
    stage.close()


def stored(folder: Path) -> set[tuple[str, int]]:
    """The ends that wait in the store of a worker that is gone."""
    store = try_open(folder / "store" / "staged-0.sqlite", 1024**2)
    if store is None:
        return set()
    try:
        return store.waiting()
    finally:
        store.close()


def test_reports_made_while_the_broker_is_away_arrive_in_order_and_nothing_runs_twice(
    stage: WorkerStage, proxy: Proxy, tmp_path: Path
) -> None:
    stage.start()
    orders = [stage.order("wait_for", path=str(tmp_path / f"go-{number}")) for number in range(3)]
    eventually(lambda: all(stage.heard(Started, order) for order in orders))
    proxy.shut()
    proxy.cut()
    for number in range(3):
        (tmp_path / f"go-{number}").touch()
    proxy.open()
    for order in orders:
        assert stage.finished(order).outcome == "completed"
    eventually(lambda: len(stage.heard(Registered)) >= 2, what="it registers again")
    eventually(
        lambda: [beat.running for beat in stage.heard(Heartbeat)][-1:] == [[]],
        what="all deliveries are settled",
    )
    assert stage.finished(stage.order("add", a=1)).outcome == "completed"
    assert [stage.runs(f"wait_for {order.id}") for order in orders] == [1, 1, 1]
    for order in orders:
        events = [
            type(event)
            for batch in stage.batches
            for event in batch.events
            if isinstance(event, Started | Log | Finished) and event.id == order.id
        ]
        assert list(dict.fromkeys(events)) == [Started, Log, Finished], "what was not confirmed for certain comes again"


def test_a_report_survives_a_worker_that_is_killed_while_the_broker_is_away(
    stage: WorkerStage, proxy: Proxy, tmp_path: Path
) -> None:
    worker = stage.start()
    order = stage.order("wait_for", path=str(tmp_path / "go"))
    eventually(lambda: stage.heard(Started, order))
    proxy.shut()
    proxy.cut()
    (tmp_path / "go").touch()
    eventually(lambda: stored_now(tmp_path, order.id), what="the end is in the store")
    worker.kill()
    worker.wait(PATIENCE_SECONDS)
    assert stored(tmp_path) == {(order.id, 1)}
    proxy.open()
    stage.start()
    assert stage.finished(order).outcome == "completed"
    eventually(lambda: stage.depth("wait_for") == 0)
    eventually(lambda: [beat.running for beat in stage.heard(Heartbeat)][-1:] == [[]])
    assert stage.runs(f"wait_for {order.id}") == 1


def stored_now(folder: Path, identifier: str) -> bool:
    """Whether the end of this attempt stands in the store of a living worker."""
    connection = sqlite3.connect(folder / "store" / "staged-0.sqlite", timeout=PATIENCE_SECONDS)
    try:
        return bool(connection.execute("SELECT 1 FROM reports WHERE id = ? AND kind = 2", (identifier,)).fetchone())
    finally:
        connection.close()
