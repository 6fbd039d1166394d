"""One measurement: fresh servers, the system's processes, a warm-up, then N runs from first enqueue to last outcome.

The clock starts when the producer makes its first call and stops when PostgreSQL holds the outcome of the last run,
read by polling. Only then is every run's record checked. Called by `bench.__main__`; prints nothing.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from bench.processes import MeasurementFailed, Processes
from bench.processor import cpu_seconds
from bench.systems import Shape, System
from tests.servers import Postgres, RabbitMQ, Redis, Server

WARM_UP_RUNS = 200
STALLED_SECONDS = 60.0
SETTLE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """`cpu`: CPU seconds by process name, servers included, from the first call until just after the last outcome."""

    system: System
    shape: Shape
    runs: int
    elapsed_seconds: float
    enqueue_seconds: float
    cpu: Mapping[str, float]

    @property
    def runs_per_second(self) -> float:
        """Tracked throughput."""
        return self.runs / self.elapsed_seconds

    @property
    def cpu_seconds_per_1000(self) -> float:
        """CPU seconds of all its processes and servers per 1,000 runs."""
        return sum(self.cpu.values()) / self.runs * 1000


def measure(system: System, shape: Shape, python: Path, *, runs: int) -> Measurement:
    """Measure `runs` no-op runs, enqueued as `shape` says. Raises MeasurementFailed."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {"PostgreSQL": Postgres(fsync=True)}
        if system.broker:
            servers["RabbitMQ"] = RabbitMQ()
        if system.redis:
            servers["Redis"] = Redis()
        for server in servers.values():
            stack.callback(server.close)
            server.launch()
        for server in servers.values():
            server.wait_until_ready()
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tickwork-bench-")))
        processes = Processes(system, python, servers, folder, system.workers[shape])
        stack.callback(processes.end)
        for command in system.prepare:
            processes.complete(command)
        watch = stack.enter_context(psycopg.connect(servers["PostgreSQL"].url, autocommit=True))
        _check_durability(watch)
        pids = {name: [server.pid] for name, server in servers.items()} | processes.start_roles()
        producer = processes.start_producer()
        pids["producer"] = [producer.pid]

        def spent() -> dict[str, float]:
            own = (watch.info.backend_pid,)
            return {name: cpu_seconds(roots, without=own) for name, roots in pids.items()}

        with processes.explained():
            order(producer, WARM_UP_RUNS, 1)
            _wait(watch, system, WARM_UP_RUNS, processes)
            answer(producer)
            time.sleep(2 * SETTLE_SECONDS)
            before = spent()
            order(producer, runs, shape.batch)
            ended = _wait(watch, system, WARM_UP_RUNS + runs, processes)
            times = answer(producer)
            time.sleep(SETTLE_SECONDS)  # acks and clean-up that follow the last outcome belong to the bill
            after = spent()
            _prove(watch, system, WARM_UP_RUNS + runs)
        return Measurement(
            system=system,
            shape=shape,
            runs=runs,
            elapsed_seconds=ended - times["began"],
            enqueue_seconds=times["ended"] - times["began"],
            cpu={name: after[name] - before[name] for name in pids},
        )


def order(producer: subprocess.Popen[str], runs: int, batch: int) -> None:
    """Tell the producer to begin."""
    assert producer.stdin is not None
    producer.stdin.write(f"{runs} {batch}\n")
    producer.stdin.flush()


def answer(producer: subprocess.Popen[str]) -> dict[str, float]:
    """The producer's two instants, once it has enqueued all."""
    assert producer.stdout is not None
    line = producer.stdout.readline()
    if not line:
        raise MeasurementFailed("the producer ended early")
    times: dict[str, float] = json.loads(line)
    return times


def _check_durability(watch: psycopg.Connection) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        row = watch.execute(f"SHOW {setting}").fetchone()
        if row != ("on",):
            raise MeasurementFailed(f"PostgreSQL runs with {setting} {row}: figures would mean nothing")


def _wait(watch: psycopg.Connection, system: System, expected: int, processes: Processes) -> float:
    """The monotonic instant at which `expected` outcomes were seen.

    Counting costs more the more rows there are, so the pauses are long at first and get short when, at the speed
    seen so far, the end is near: at most half of the time that is left, and 10 ms at least.
    """
    last, speed, moved_at = 0, 0.0, time.monotonic()
    seen_at = moved_at
    while True:
        (count,) = watch.execute(system.recorded.encode()).fetchone() or (0,)
        now = time.monotonic()
        if count >= expected:
            return now
        if count > last:
            speed = (count - last) / (now - seen_at) if now > seen_at else speed
            last, moved_at = count, now
        seen_at = now
        processes.check()
        if now - moved_at > STALLED_SECONDS:
            missing = f"{expected - count} of {expected} outcomes are missing"
            raise MeasurementFailed(f"{missing} and none came for {STALLED_SECONDS:.0f} s")
        time.sleep(min(0.5, max(0.01, (expected - count) / speed / 2)) if speed else 0.1)


def _prove(watch: psycopg.Connection, system: System, expected: int) -> None:
    row = watch.execute(system.proven.encode()).fetchone()
    if row != (expected,) * 4:
        raise MeasurementFailed(
            f"expected {expected} runs, each once, with start and end; "
            f"on record are {row} (done, with start and end, distinct, rows)"
        )
