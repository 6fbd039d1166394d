"""What a worker machine installs: the wheel without extras, in an environment that has never heard of Django."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.left_out import leave_out

ROOT = Path(__file__).parents[2]
JOBS = """
from tickwork import JobContext, Worker

worker = Worker("smoke")

@worker.job()
def add(ctx: JobContext, a: int, b: int = 2) -> dict:
    return {"sum": a + b}
"""
SCHEDULER = """
import importlib.util, subprocess, sys, time
from tickwork import contracts
from tickwork.broker import connect, topology
from tickwork.broker.base import Message

assert importlib.util.find_spec("django") is None
url = "sqlite:///" + sys.argv[1]
broker = connect.connect(url)
worker = subprocess.Popen([sys.argv[2], "worker", "smoke_jobs:worker", "--broker", url])
try:
    order = contracts.Dispatch(
        id="0198c0de-0000-7000-8000-000000000001", job_id="j", job_name="sum", worker="smoke", job_type="add",
        attempt=1, max_attempts=1, data={"a": 1},
    )
    key = topology.job_key("smoke", "add", order.id)
    broker.publisher().publish([Message(exchange=topology.JOBS, routing_key=key, body=contracts.encode(order))])
    events = broker.consumer([topology.events_queue()], prefetch=10)
    deadline = time.monotonic() + 180
    finished = None
    while finished is None and worker.poll() is None and time.monotonic() < deadline:
        for delivery in events.take(10, wait=1.0):
            for event in contracts.decode(contracts.EventBatch, delivery.body).events:
                if isinstance(event, contracts.Finished):
                    finished = event
            events.ack([delivery])
    print(finished.outcome, bytes(finished.result).decode())
finally:
    worker.terminate()
    print("worker left with", worker.wait(timeout=60))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run to the end; the output is the error message when it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build writes beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "tickwork", source / "tickwork", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    try:
        run(sys.executable, "-m", "build", "--wheel", "-o", folder, source, cwd=folder)
    except AssertionError as error:
        if "No matching distribution found" in str(error) or "Connection" in str(error):
            leave_out("building the wheel needs the package registry")
        raise
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_only_the_worker_half_with_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"tickwork"}
    for needed in ("tickwork/py.typed", "tickwork/broker/embedded.sql", "tickwork/builtin/__init__.py"):
        assert needed in names


@pytest.mark.slow
def test_a_worker_runs_from_the_wheel_without_django(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=tmp_path)
    (tmp_path / "smoke_jobs.py").write_text(JOBS)
    program = tmp_path / "venv" / "bin" / "tickwork"
    output = run(python, "-c", SCHEDULER, tmp_path / "broker.sqlite3", program, cwd=tmp_path)
    assert 'completed {"sum":3}' in output
    assert "worker left with 0" in output
    refused = subprocess.run(
        [program, "worker", "tickwork.builtin:worker", "--broker", f"sqlite:///{tmp_path}/other.sqlite3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "[builtin]" in refused.stderr
