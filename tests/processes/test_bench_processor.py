"""CPU time of process trees: living children, children that came and went, and nothing of others."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.processor import cpu_seconds
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def tree(code: str) -> subprocess.Popen[str]:
    """A process that runs the code, prints a line and waits for its input to end."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys\nBURN = {BURN!r}\n{code}\nprint('done', flush=True)\nsys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to end afterwards."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.communicate(timeout=PATIENCE_SECONDS)


def when_done(process: subprocess.Popen[str], started: list[subprocess.Popen[str]]) -> int:
    """The pid, once it has printed its line."""
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    return process.pid


def test_a_child_that_has_ended_is_counted_by_its_parent(started: list[subprocess.Popen[str]]) -> None:
    pid = when_done(tree("subprocess.run([sys.executable, '-c', BURN])"), started)
    assert cpu_seconds([pid]) >= 0.2  # the system counts in steps


def test_a_living_child_is_counted_unless_it_is_left_out(started: list[subprocess.Popen[str]]) -> None:
    child = (
        "child = subprocess.Popen([sys.executable, '-c', BURN + 'print(1, flush=True); input()'], stdin=-1, stdout=-1)"
    )
    process = tree(f"{child}\nchild.stdout.readline()\nprint(child.pid, flush=True)")
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())
    pid = when_done(process, started)
    assert cpu_seconds([pid]) >= 0.2  # the system counts in steps
    assert cpu_seconds([pid], without=[child_pid]) < cpu_seconds([pid])


def test_a_process_that_is_gone_costs_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert cpu_seconds([ended.pid]) == 0.0
