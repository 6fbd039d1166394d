"""What only the broker file has: several processes on it, leases, its own schema, and its address."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.broker.stage import Stage, collect, job_queue, nothing_comes, numbers, to
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.broker import topology
from tickwork.broker.base import Death
from tickwork.broker.connect import connect
from tickwork.broker.topology import Queue
from tickwork.errors import BrokerError, BrokerUnavailable, ConfigurationError


def file_of(stage: Stage) -> Path:
    return Path(stage.url.removeprefix("sqlite:///"))


def child(environment: dict[str, str], stage: Stage, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.broker.embedded_child", stage.url, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_share_a_new_file_and_each_message_is_taken_once(
    file_stage: Stage, child_environment: dict[str, str]
) -> None:
    # All start at the same moment on a file that does not exist yet.
    consumers = [child(child_environment, file_stage, "consume", "w") for _ in range(2)]
    producers = [child(child_environment, file_stage, "publish", "w", f"p{number}", "500") for number in range(3)]

    published = [line for one in producers for line in one.communicate(timeout=PATIENCE_SECONDS)[0].split()]
    queue = topology.job_queue("w", "Work", delivery_limit=topology.DELIVERY_LIMIT)
    file_stage.publisher().publish([to(queue, number="end")])
    taken = [line for one in consumers for line in one.communicate(timeout=PATIENCE_SECONDS)[0].split()]

    assert [one.returncode for one in [*producers, *consumers]] == [0] * 5
    assert len(published) == 1500
    assert Counter(taken) == Counter(published)
    assert file_stage.broker.depth(queue) == 1


def test_what_a_killed_process_held_returns_after_its_lease(
    file_stage: Stage, child_environment: dict[str, str]
) -> None:
    queue = Queue(**{**vars(topology.job_queue("w", "Work")), "single_active": True})
    file_stage.publisher(queue).publish([to(queue, number=1), to(queue, number=2)])
    with child(child_environment, file_stage, "hold", "w") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "1"
        consumer = file_stage.consumer(queue)
        assert nothing_comes(consumer)

        holder.kill()

        taken = collect(consumer, 2)
    assert numbers(taken) == ["1", "2"]
    assert [delivery.redelivered for delivery in taken] == [True, False]


def test_a_consumer_that_lost_its_lease_starts_over_and_its_acks_are_stale(file_stage: Stage) -> None:
    queue = job_queue()
    file_stage.publisher(queue).publish([to(queue, number=1)])
    events: list[str] = []
    consumer = file_stage.consumer(
        queue, on_connect=lambda: events.append("on"), on_disconnect=lambda: events.append("off")
    )
    held = collect(consumer, 1)
    # As if this process had been stopped for longer than a lease, and another one had swept the file.
    with sqlite3.connect(file_of(file_stage)) as connection:
        connection.execute("UPDATE message SET consumer = NULL")
        connection.execute("DELETE FROM consumer")
    connection.close()

    (again,) = collect(consumer, 1)

    assert again.redelivered
    consumer.ack(held)
    consumer.reject(held, requeue=False)
    assert nothing_comes(consumer)
    eventually(lambda: events == ["on", "off", "on"], what="the callbacks were called")
    consumer.close()
    assert file_stage.broker.depth(queue) == 1


def test_any_living_consumer_sweeps_queues_that_have_none(file_stage: Stage) -> None:
    abandoned = job_queue()
    file_stage.consumer(job_queue())

    file_stage.publisher(abandoned).publish([to(abandoned, number=1, expiration_seconds=0.05)])

    eventually(lambda: file_stage.broker.depth(topology.dead_letter_queue()) == 1, what="the message was swept")


def test_a_dead_letter_that_dies_again_keeps_its_history(file_stage: Stage) -> None:
    first = job_queue()
    second = job_queue(exchange=topology.DEAD_LETTERS, bindings=first.bindings)
    file_stage.publisher(first, second).publish([to(first, number=1)])
    consumer = file_stage.consumer(first, second)
    (delivery,) = collect(consumer, 1)
    consumer.reject([delivery], requeue=False)
    (dead,) = collect(consumer, 1)
    assert dead.queue == second.name

    consumer.reject([dead], requeue=False)

    (twice,) = collect(consumer, 1)
    assert twice.deaths == (
        Death(queue=second.name, reason="rejected", count=1),
        Death(queue=first.name, reason="rejected", count=1),
    )
    consumer.reject([twice], requeue=False)
    (thrice,) = collect(consumer, 1)
    assert thrice.deaths[0] == Death(queue=second.name, reason="rejected", count=2)


def test_a_file_that_was_deleted_between_runs_is_made_anew(file_stage: Stage) -> None:
    queue = job_queue()
    publisher = file_stage.publisher()
    publisher.publish([to(queue, number=1)])
    publisher.close()
    for left in file_of(file_stage).parent.glob("broker.db*"):
        left.unlink()

    file_stage.publisher().publish([to(queue, number=2)])

    assert numbers(collect(file_stage.consumer(queue), 1)) == ["2"]


def test_a_file_of_another_version_is_refused_with_advice(file_stage: Stage) -> None:
    file_stage.broker.check()
    with sqlite3.connect(file_of(file_stage)) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(BrokerError, match=r"schema 99.*delete the file"):
        file_stage.broker.check()


def test_a_path_that_cannot_be_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    stage = Stage(f"sqlite:///{tmp_path}/taken")

    with pytest.raises(BrokerUnavailable, match="taken"):
        stage.broker.check()
    with pytest.raises(BrokerUnavailable, match="taken"):
        stage.publisher().publish([to(job_queue())])
    consumer = stage.consumer(job_queue(), ready=False)
    assert consumer.take(1, wait=0.1) == []
    assert not consumer.connected
    stage.close()


def test_a_locked_file_is_unavailable_after_the_time_limit_and_serves_again_afterwards(file_stage: Stage) -> None:
    queue = job_queue()
    publisher = file_stage.publisher(queue)
    publisher.publish([to(queue, number=1)])
    lock = sqlite3.connect(file_of(file_stage), isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")

    with pytest.raises(BrokerUnavailable, match="locked"):
        publisher.publish([to(queue, number=2)], timeout=0.1)

    lock.rollback()
    lock.close()
    assert publisher.publish([to(queue, number=3)]) == [None]
    assert numbers(collect(file_stage.consumer(queue), 2)) == ["1", "3"]


def test_a_relative_address_names_a_file_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    connect("sqlite:///a%20folder/broker.db").check()

    assert (tmp_path / "a folder" / "broker.db").is_file()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///folder/", "sqlite:///file?mode=ro"])
def test_an_address_without_a_file_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        connect(url)
