"""The distributed mode as real processes on private servers: every role and worker its own process, started again when
it dies, all ended by pid.

Used by the process tests beside this file and by `tests.faults`. Everything is started on the main thread, so that the
kernel takes the processes along when the test run itself is killed. Jobs are those of `tests.faults.jobs`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, LiteralString, Self, TypeVar

import msgspec
import psycopg

from tests.faults import jobs
from tests.processes.witness import WITNESS
from tests.servers import Postgres, RabbitMQ, Redis
from tests.servers.base import ends_with_parent, process_tree
from tests.servers.rabbitmq import create_vhosts
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
TEMPLATE = "tickwork_template"
QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED, TIMED_OUT, UNKNOWN, SKIPPED = range(8)
ROLES = ("dispatch", "relay_outbox", "consume_events", "consume_dead_letters", "detect_zombies")
WORKER = "worker"
BRISK = {
    "SCHEDULER_WORKER_LOST_AFTER_SECONDS": "4",
    "SCHEDULER_HEARTBEAT_STALE_SECONDS": "5",
    "SCHEDULER_ZOMBIE_TIMEOUT_SECONDS": "12",
    "SCHEDULER_ZOMBIE_INTERVAL_SECONDS": "1",
    "SCHEDULER_DEFAULT_QUEUE_TTL_SECONDS": "30",
    "SCHEDULER_QUEUED_BACKSTOP_SECONDS": "40",
    "SCHEDULER_OUTBOX_LEASE_SECONDS": "5",
    "SCHEDULER_AUTO_DISABLE_THRESHOLD": "0",
    "TICKWORK_WORKER_HEARTBEAT_SECONDS": "1",
    "TICKWORK_WORKER_SHUTDOWN_SECONDS": "10",
}
"""Settings that make recovery take seconds where the defaults take minutes."""
RESTART_SECONDS = 0.5
SPARE_VHOSTS = 6
T = TypeVar("T")


class Servers:
    """PostgreSQL, RabbitMQ and Redis of one test run, and a database that every cluster's own is copied from."""

    def __init__(self) -> None:
        # Commit times tell what was committed when, whatever the processes under test say.
        self.postgres = Postgres(settings={"track_commit_timestamp": "on", "max_connections": "200"})
        self.rabbitmq = RabbitMQ()
        self.redis = Redis()
        self.all = (self.postgres, self.rabbitmq, self.redis)
        self._spare_vhosts: list[str] = []

    def start(self) -> Self:
        """Start all side by side, and migrate the template."""
        for server in self.all:
            server.launch()
        for server in self.all:
            server.wait_until_ready()
        self._sql(f"CREATE DATABASE {TEMPLATE}")
        url = self.postgres.database_url(TEMPLATE)
        environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SECRET_KEY": "only-for-tests"}
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "--verbosity", "0"], cwd=ROOT, env=environment, check=True
        )
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(WITNESS)
        return self

    def new_database(self, name: str) -> None:
        """An empty, migrated database."""
        self._sql(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')

    def drop_database(self, name: str) -> None:
        """Remove it, whoever is connected."""
        self._sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def new_vhost(self) -> str:
        """The name of a virtual host that nobody has used; made in sets, see `create_vhosts`."""
        if not self._spare_vhosts:
            self._spare_vhosts = [f"v_{uuid.uuid4().hex[:10]}" for _ in range(SPARE_VHOSTS)]
            create_vhosts(self.rabbitmq.home, *self._spare_vhosts)
        return self._spare_vhosts.pop()

    def wipe_broker(self) -> None:
        """RabbitMQ loses everything, its virtual hosts too, and comes back empty."""
        self._spare_vhosts = []
        self.rabbitmq.wipe()

    def close(self) -> None:
        """End all servers."""
        for server in self.all:
            with contextlib.suppress(Exception):
                server.close()

    def _sql(self, statement: str) -> None:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(statement.encode())


@dataclass(kw_only=True)
class Member:
    """One process of the cluster. `kept`: started again when it dies."""

    name: str
    role: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    kept: bool = True
    frozen: bool = False
    starts: int = 0
    died_at: float | None = None

    def start(self) -> None:
        """Start it (again)."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=ends_with_parent(signal.SIGKILL),
            )
        self.starts += 1
        self.frozen = False
        self.died_at = None

    @property
    def pid(self) -> int:
        """Of the process that runs now or ran last."""
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs (a frozen one does)."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to its children."""
        if self.alive:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """SIGKILL, awaited; returns the pid that was. What it started is left to find out by itself."""
        pid = self.pid
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(PATIENCE_SECONDS)
        return pid

    def freeze(self) -> None:
        """SIGSTOP: it does nothing, its connections stay open."""
        self.send(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        self.send(signal.SIGCONT)

    def log_tail(self, lines: int = 15) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


class Hand:
    """See `tests.processes.hand`. One question at a time, from any thread."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._lock = threading.Lock()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.hand"],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                preexec_fn=ends_with_parent(signal.SIGKILL),
            )

    def do(self, name: str, **arguments: Any) -> Any:
        """Have it done and return the answer. Raises RuntimeError with the error's text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode({"do": name, **arguments}) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        said = msgspec.json.decode(line) if line else {"error": "the hand is gone"}
        if "error" in said:
            raise RuntimeError(f"{name}: {said['error']}")
        return said["answer"]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Cluster:
    """A distributed installation with a database and a virtual host of its own.

    `settings`: environment variables beside BRISK. `database_port`, `broker_port`: where the processes connect to when
    it is not the servers' own ports (a proxy).
    """

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        *,
        name: str,
        settings: Mapping[str, str] | None = None,
        database_port: int | None = None,
        broker_port: int | None = None,
    ) -> None:
        self.servers = servers
        self.name = name
        self.folder = folder
        self.effects_file = folder / "effects"
        self.gate = folder / "gate"
        self.members: list[Member] = []
        folder.mkdir(parents=True, exist_ok=True)
        servers.new_database(name)
        self.vhost = servers.new_vhost()
        self._settings = BRISK | dict(settings or {})
        self.environment = self._environment(database_port, broker_port)
        self.hand = Hand(self._environment(None, None), folder / "hand.log")
        self._connection: psycopg.Connection | None = None

    def _environment(self, database_port: int | None, broker_port: int | None) -> dict[str, str]:
        database, broker = self.servers.postgres, self.servers.rabbitmq
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
            "DJANGO_SECRET_KEY": "only-for-tests",
            "DATABASE_URL": database.database_url(self.name).replace(
                f":{database.port}/", f":{database_port or database.port}/"
            ),
            "BROKER_URL": broker.vhost_url(self.vhost).replace(f":{broker.port}/", f":{broker_port or broker.port}/")
            + "?heartbeat=4",
            "REDIS_URL": self.servers.redis.url,
            "TICKWORK_DATA_DIR": str(self.folder / "data"),
            "TICKWORK_WORKER_STORE": str(self.folder / "store"),
            **jobs.environment(self.effects_file),
            **self._settings,
        }

    # ── processes ──────────────────────────────────────────────────────────────────────────────────

    def start(self, role: str, count: int = 1, *, settings: Mapping[str, str] | None = None) -> list[Member]:
        """Start processes of a role (one of ROLES, or WORKER)."""
        command = (
            [sys.executable, "-m", "tickwork", "worker", "tests.faults.jobs:worker"]
            if role == WORKER
            else [sys.executable, "manage.py", role]
        )
        started = []
        for _ in range(count):
            name = f"{role}-{sum(member.role == role for member in self.members) + 1}"
            member = Member(
                name=name,
                role=role,
                command=command,
                environment={**self.environment, **(settings or {})},
                log=self.folder / f"{name}.log",
            )
            member.start()
            self.members.append(member)
            started.append(member)
        return started

    def start_all(self, **counts: int) -> None:
        """Start every role and a worker: one of each, or as many as `counts` says."""
        for role in (*ROLES, WORKER):
            self.start(role, counts.get(role, 1))

    def of(self, *roles: str) -> list[Member]:
        """The members with these roles."""
        return [member for member in self.members if member.role in roles]

    def tend(self) -> None:
        """Start again what died."""
        for member in self.members:
            if not member.kept or member.alive:
                continue
            now = time.monotonic()
            if member.died_at is None:
                member.died_at = now
            elif now - member.died_at >= RESTART_SECONDS:
                member.start()

    def stop(self, members: Iterable[Member], *, timeout: float = PATIENCE_SECONDS) -> None:
        """SIGTERM, side by side; each must leave with status 0 within `timeout` seconds."""
        leaving = list(members)
        for member in leaving:
            member.kept = False
            member.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        for member in leaving:
            assert member.process is not None
            try:
                status = member.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{member.name} did not leave in {timeout} s:\n{member.log_tail()}") from None
            assert status == 0, f"{member.name} left with {status}:\n{member.log_tail()}"

    def close(self) -> None:
        """End everything that was started here, and remove the database."""
        for member in self.members:
            member.kept = False
            if member.alive:
                for pid in process_tree(member.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                assert member.process is not None
                member.process.wait()
        self.hand.close()
        if self._connection is not None:
            self._connection.close()
        if self.servers.postgres.running:
            self.servers.drop_database(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ── work ───────────────────────────────────────────────────────────────────────────────────────

    def trigger(self, job_type: str, **fields: Any) -> str:
        """One occurrence of a new job of this type; returns its id. `fields`: of the job's definition."""
        job = self.hand.do("create_job", fields={"name": job_type, "worker": "faults", "job_type": job_type, **fields})
        (identifier,) = self.hand.do("trigger", job=job, datas=[None])
        return str(identifier)

    def trigger_gated(self, **fields: Any) -> str:
        """One occurrence of a job that runs until `open_gate`; returns its id."""
        return self.trigger("gated", data={"gate": str(self.gate)}, **fields)

    def open_gate(self) -> None:
        """Let what `trigger_gated` began come to its end."""
        self.gate.touch()

    def workers_registered(self, count: int) -> None:
        """Wait until this many workers have said that they are there."""
        query: LiteralString = "SELECT count(*) FROM workers_app_workerinstance"
        self.until(lambda: self.rows(query) == [(count,)], what=f"{count} workers registered")

    # ── waiting and looking ────────────────────────────────────────────────────────────────────────

    def until(
        self, condition: Callable[[], T], *, timeout: float = PATIENCE_SECONDS, what: str, every: float = 0.05
    ) -> T:
        """Tend the processes until the condition is true, and return what it returned.

        Raises AssertionError that says what was awaited, where the occurrences stand, and what the logs end with.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.tend()
            value: T | None = None
            with contextlib.suppress(psycopg.OperationalError):
                value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:g} s: {what}; last value {value!r}\n{self.describe()}")
            time.sleep(every)

    def all_final(self, count: int, *, timeout: float = PATIENCE_SECONDS) -> None:
        """Wait until this many occurrences exist and each is at its end."""

        def condition() -> bool:
            counts = self.counts()
            final = sum(number for status, number in counts.items() if status not in (QUEUED, RUNNING, UNKNOWN))
            return final == count == sum(counts.values())

        self.until(condition, timeout=timeout, what=f"{count} occurrences at their end", every=0.1)

    def rows(self, query: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, read past the processes under test. Raises psycopg.OperationalError while away."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self.servers.postgres.database_url(self.name), autocommit=True, connect_timeout=2
            )
        try:
            return self._connection.execute(query, parameters).fetchall()
        except psycopg.OperationalError:
            self._connection.close()
            raise

    def counts(self) -> dict[int, int]:
        """How many occurrences have each status."""
        return dict(self.rows("SELECT status, count(*) FROM occurrences_occurrence GROUP BY 1"))

    def status(self, occurrence: str) -> int:
        """One occurrence's status."""
        ((status,),) = self.rows("SELECT status FROM occurrences_occurrence WHERE id = %s", occurrence)
        return int(status)

    def reaches(self, occurrence: str, status: int, *, timeout: float = PATIENCE_SECONDS) -> None:
        """Wait until one occurrence has this status."""
        self.until(lambda: self.status(occurrence) == status, timeout=timeout, what=f"{occurrence} has status {status}")

    def history(self, occurrence: str) -> list[tuple[int, int, str]]:
        """(status, attempt, reason) of each entry of one occurrence's history."""
        ((history,),) = self.rows("SELECT history FROM occurrences_occurrence WHERE id = %s", occurrence)
        return [(status, attempt, reason) for status, attempt, _, _, reason in history]

    def effects(self, kind: str, occurrence: str | None = None) -> list[tuple[str, int]]:
        """(occurrence, attempt) of each `start` or `end` that the jobs wrote, in order."""
        return [
            (identifier, attempt)
            for found, identifier, attempt, *_ in jobs.read(self.effects_file)
            if found == kind and occurrence in (None, identifier)
        ]

    def at_work(self, job_type: str) -> list[int]:
        """The pids of the workers that have started a job of this type, once for each start."""
        return [
            pid for kind, _, _, pid, _, found in jobs.read(self.effects_file) if (kind, found) == ("start", job_type)
        ]

    def doubles_without(self, killed: set[int]) -> list[tuple[str, int]]:
        """Attempts that started more than once although the worker that started them first was not killed.

        A second start by the same process counts too. `killed`: pids of the killed workers.
        """
        first: dict[tuple[str, int], int] = {}
        found = []
        for kind, identifier, attempt, pid, _, _ in jobs.read(self.effects_file):
            if kind == "start":
                if (identifier, attempt) in first and first[identifier, attempt] not in killed:
                    found.append((identifier, attempt))
                first[identifier, attempt] = pid
        return found

    def describe(self) -> str:
        """Where the occurrences stand and what each process said last, for a failing test."""
        parts = []
        with contextlib.suppress(psycopg.Error):
            parts.append(f"statuses: {self.counts()}")
            stuck = self.rows(
                "SELECT id, status, attempt, instance, reason, history FROM occurrences_occurrence "
                "WHERE status IN (0, 1, 6) ORDER BY id LIMIT 3"
            )
            parts += [f"not final: {row}" for row in stuck]
            parts.append(f"outbox: {self.rows('SELECT count(*), min(next_attempt_at) FROM occurrences_outboxmessage')}")
        parts += [f"── {member.name}\n{member.log_tail()}" for member in self.members]
        return "\n".join(parts)

    # ── servers ────────────────────────────────────────────────────────────────────────────────────

    def wipe_broker(self) -> None:
        """RabbitMQ loses everything and comes back empty."""
        self.servers.wipe_broker()
        create_vhosts(self.servers.rabbitmq.home, self.vhost)
