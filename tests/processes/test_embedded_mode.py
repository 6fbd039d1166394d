"""`manage.py run_scheduler` as somebody new starts it: one command, one folder, nothing else."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.processes.cluster import ROOT
from tests.servers.base import free_port, process_tree
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.slow
T = TypeVar("T")


class Embedded:
    """One data folder, and the program that is started on it again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self.seen: set[int] = set()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process = self.launch()
        eventually(self.answers, what="the web server to answer")

    def launch(self, log_name: str = "log", **settings: str) -> subprocess.Popen[str]:
        """Start it with these settings."""
        foreign = ("DATABASE_URL", "BROKER_URL", "REDIS_URL", "SCHEDULER_", "TICKWORK_", "DJANGO_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        with (self.folder / log_name).open("a") as log:
            return subprocess.Popen(
                [sys.executable, "manage.py", "run_scheduler", "--port", str(self.port)],
                cwd=ROOT,
                env={**environment, "TICKWORK_DATA_DIR": str(self.folder / "data"), **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def answers(self) -> bool:
        """Whether the web server lives; notes every process that it has."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        self.seen.update(process_tree(self.process.pid))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/live", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def worker_pid(self) -> int:
        """The worker's process; 0 when there is none now."""
        assert self.process is not None
        found = [
            pid
            for pid in process_tree(self.process.pid)
            if "tickwork" in command_of(pid) and "worker" in command_of(pid)
        ]
        self.seen.update(found)
        return found[0] if found else 0

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Rows of the database file."""
        with sqlite3.connect(f"file:{self.folder / 'data' / 'tickwork.sqlite3'}?mode=ro", uri=True) as connection:
            found = connection.execute(query).fetchall()
        connection.close()
        return found

    def hasten(self) -> None:
        """Have the samples that ask the server's health page and count occurrences fire every second."""
        with sqlite3.connect(self.folder / "data" / "tickwork.sqlite3", timeout=PATIENCE_SECONDS) as connection:
            hastened = connection.execute(
                "UPDATE jobs_job SET cron = '* * * * * *', next_run_at = created_at WHERE name <> 'Nightly report'"
            )
            assert hastened.rowcount == 2
        connection.close()

    def completed(self) -> int:
        """How many occurrences have completed."""
        ((count,),) = self.rows("SELECT count(*) FROM occurrences_occurrence WHERE status = 2")
        assert isinstance(count, int)
        return count

    def log(self) -> str:
        """What it wrote."""
        return (self.folder / "log").read_text()

    def close(self) -> None:
        """End whatever is left of it."""
        if self.process is not None and self.process.poll() is None:
            self.seen.update(process_tree(self.process.pid))
        for pid in self.seen:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process is not None:
            self.process.wait()


def command_of(pid: int) -> list[str]:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    """An empty folder to start in."""
    made = Embedded(tmp_path)
    yield made
    made.close()


def awaited(condition: Callable[[], T], what: str) -> T:
    """`eventually`, at a pace that leaves the processor to the program."""
    return eventually(condition, every=0.1, what=what)


def test_one_command_runs_samples_survives_kills_keeps_its_data_and_stops(embedded: Embedded) -> None:
    embedded.start()
    embedded.hasten()
    awaited(embedded.completed, "a sample job to complete")

    worker = awaited(embedded.worker_pid, "the worker")
    os.kill(worker, signal.SIGKILL)
    awaited(lambda: embedded.worker_pid() not in (0, worker), "another worker")
    before = embedded.completed()
    awaited(lambda: embedded.completed() > before, "a job of the new worker")

    worker = embedded.worker_pid()
    assert embedded.process is not None
    embedded.process.kill()
    embedded.process.wait()
    awaited(lambda: not command_of(worker), "the worker to leave when its parent is gone")

    before = embedded.completed()
    passwords = embedded.log().count("password")
    embedded.port = free_port()  # the sample that asks the server's health page follows it
    embedded.start()
    assert embedded.completed() >= before
    awaited(lambda: embedded.completed() > before, "a job after the restart")
    assert embedded.log().count("password") == passwords, "the account is made once"
    ((lost,),) = embedded.rows("SELECT count(*) FROM occurrences_occurrence WHERE status IN (3, 4, 5)")
    assert lost == 0, embedded.log()[-3000:]

    refused = embedded.launch("log of the second")
    assert refused.wait(PATIENCE_SECONDS) == 1
    last = (embedded.folder / "log of the second").read_text().rstrip().splitlines()[-1]
    assert f"127.0.0.1:{embedded.port} cannot be used" in last
    assert "--port" in last

    worker = embedded.worker_pid()
    embedded.process.send_signal(signal.SIGTERM)
    assert embedded.process.wait(PATIENCE_SECONDS) == 0, embedded.log()[-3000:]
    assert not command_of(worker)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", embedded.port)) != 0


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("TICKWORK_WORKER_CONCURRENCY", "0", {}),
        ("TICKWORK_SHELL_ENABLED", "perhaps", {}),
        ("DATABASE_URL", "postgres://tickwork:hush@127.0.0.1:1/tickwork", {"DJANGO_SECRET_KEY": "k" * 60}),
    ],
)
def test_what_the_start_cannot_do_with_ends_it_by_name(
    embedded: Embedded, name: str, value: str, others: dict[str, str]
) -> None:
    embedded.process = embedded.launch(**{name: value}, **others)
    assert embedded.process.wait(PATIENCE_SECONDS) == 1
    assert name in embedded.log()
    assert "Traceback" not in embedded.log()
    assert "hush" not in embedded.log()
