"""The whole program as somebody new starts it, with an account and a worker of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.base import free_port
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
USER, PASSWORD = "operator", "a password of the tests"


@contextmanager
def _process(arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health/ready", timeout=5) as answer:
            return bool(json.load(answer)["status"] == "ready")
    except (OSError, urllib.error.URLError):
        return False


@contextmanager
def running_program(folder: Path) -> Iterator[str]:
    """Address of a running program with the account USER and the worker of `slow_jobs`; its data go to `folder`."""
    ours = ("DATABASE_URL", "BROKER_URL", "REDIS_URL")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(("SCHEDULER_", "PYTEST_"))
    }
    environment = {**kept, "TICKWORK_DATA_DIR": str(folder), "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
    for command in (
        ["migrate", "-v0"],
        ["createsuperuser", "--noinput", "--username", USER, "--email", "o@example.org"],
    ):
        subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=ROOT,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    broker = f"sqlite:///{folder / 'broker.sqlite3'}"
    program = ["manage.py", "run_scheduler", "--port", str(port), "--no-worker", "--no-samples"]
    worker = [
        "-m",
        "tickwork",
        "worker",
        "tests.web.slow_jobs:worker",
        "--broker",
        broker,
        "--store",
        str(folder / "store"),
    ]
    with ExitStack() as stack:
        server = stack.enter_context(_process(program, environment, folder / "program.log"))
        stack.enter_context(_process(worker, environment, folder / "worker.log"))

        def is_up() -> bool:
            assert server.poll() is None, (folder / "program.log").read_text()
            return _is_ready(address)

        eventually(is_up, every=0.1, what="the program is ready")
        yield address
