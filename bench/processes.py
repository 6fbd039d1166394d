"""The processes of the system that is measured: started with a clean environment, logged to files, ended by pid.

Called by `bench.measure`. Knows nothing of what the processes do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from bench.systems import ROOT, WORKERS, System
from tests.servers import Server


class MeasurementFailed(Exception):
    """A system did not record all runs; the text says what is missing, with the end of its processes' logs."""


class Processes:
    """The system's own processes: logs in files, each in a session of its own, ended by pid."""

    def __init__(self, system: System, python: Path, servers: Mapping[str, Server], folder: Path, workers: int) -> None:
        self._system, self._python, self._folder, self._workers = system, python, folder, workers
        urls = {"PostgreSQL": "DATABASE_URL", "RabbitMQ": "BROKER_URL", "Redis": "REDIS_URL"}
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join([str(system.folder), str(ROOT)]),
            **{urls[name]: server.url for name, server in servers.items()},
            **system.environment,
            **{name: str(folder / name.lower()) for name in system.folders},
        }
        self._running: list[tuple[str, subprocess.Popen[str]]] = []

    def complete(self, command: tuple[str, ...]) -> None:
        """Run a command to its end."""
        process = self._spawn("prepare", command, None)
        if process.wait(timeout=120) != 0:
            raise MeasurementFailed(f"{' '.join(command)} failed:\n{self._tails()}")
        self._running.clear()

    def start_roles(self) -> dict[str, list[int]]:
        """Start every role; returns its pids by name."""
        pids: dict[str, list[int]] = {}
        for role in self._system.roles:
            for _ in range(self._workers if role.per_worker else 1):
                pids.setdefault(role.name, []).append(self._spawn(role.name, role.command, None).pid)
        return pids

    def start_producer(self) -> subprocess.Popen[str]:
        """Start the producer and wait until it is connected."""
        process = self._spawn("producer", self._system.produce, subprocess.PIPE)
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise MeasurementFailed(f"the producer did not start:\n{self._tails()}")
        return process

    def _spawn(self, name: str, command: tuple[str, ...], pipe: int | None) -> subprocess.Popen[str]:
        words = [str(self._workers) if word == WORKERS else word for word in command]
        with self._log(len(self._running), name).open("a") as log:
            output: int | IO[str] = log if pipe is None else pipe
            process = subprocess.Popen(
                [str(self._python), *words],
                cwd=self._system.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL if pipe is None else pipe,
                stdout=output,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._running.append((name, process))
        return process

    def _log(self, number: int, name: str) -> Path:
        return self._folder / f"{number}-{name.replace(' ', '-')}.log"

    def check(self) -> None:
        """Raise MeasurementFailed when a process is gone."""
        for name, process in self._running:
            if process.poll() is not None:
                raise MeasurementFailed(f"the {name} ended with status {process.returncode}")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Add the ends of the logs to a failure."""
        try:
            yield
        except MeasurementFailed as error:
            raise MeasurementFailed(f"{error}\n{self._tails()}") from None

    def _tails(self) -> str:
        parts = []
        for log in sorted(self._folder.glob("*.log")):
            if lines := log.read_text(errors="replace").splitlines()[-12:]:
                parts.append("\n".join([f"--- {log.stem}", *lines]))
        return "\n".join(parts)

    def end(self) -> None:
        """Ask every process to leave, then make it."""
        for _, process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for _, process in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
