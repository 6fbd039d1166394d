"""The jobs of fault tests: each writes to a file when it starts and when it ends, so that effects are counted where
they happen and not in the database that is under test.

Loaded by `python -m tickwork worker tests.faults.jobs:worker`; imports no Django. One line per effect, written with
one O_APPEND write, which the kernel keeps whole:

    start|end <occurrence> <attempt> <pid of the worker> <Unix time> <job type>
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tickwork import JobContext, PermanentError, RetryableError, Worker

EFFECTS = "FAULTS_EFFECTS"
"""The environment variable that names the file."""

worker = Worker("faults")


def note(kind: str, ctx: JobContext, *, pid: int | None = None) -> None:
    """One line in the effects file."""
    line = f"{kind} {ctx.id} {ctx.attempt} {pid or os.getpid()} {time.time():.6f} {ctx.dispatch.job_type}\n"
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@worker.job
async def short(ctx: JobContext, number: int = 0) -> dict[str, int]:
    """Start and end at once."""
    note("start", ctx)
    note("end", ctx)
    return {"number": number}


@worker.job
async def waits(ctx: JobContext, seconds: float) -> None:
    """Take a while on the loop of async jobs."""
    note("start", ctx)
    await asyncio.sleep(seconds)
    note("end", ctx)


@worker.job
def works(ctx: JobContext, seconds: float) -> None:
    """Take a while in a thread, and listen to cancellation."""
    note("start", ctx)
    ctx.sleep(seconds)
    note("end", ctx)


@worker.job(isolation="process")
def isolated(ctx: JobContext, seconds: float) -> None:
    """Take a while in a child process."""
    note("start", ctx, pid=os.getppid())
    time.sleep(seconds)
    note("end", ctx, pid=os.getppid())


@worker.job
def flaky(ctx: JobContext, failures: int, seconds: float = 0.0) -> None:
    """Fail in the first `failures` attempts."""
    note("start", ctx)
    ctx.sleep(seconds)
    if ctx.attempt <= failures:
        raise RetryableError(f"attempt {ctx.attempt} of those that fail")
    note("end", ctx)


@worker.job
async def fails(ctx: JobContext) -> None:
    """Fail for good."""
    note("start", ctx)
    raise PermanentError("this job always fails")


@worker.job
def gated(ctx: JobContext, gate: str) -> None:
    """Go on when a file is there."""
    note("start", ctx)
    while not Path(gate).exists():
        ctx.sleep(0.02)
    note("end", ctx)


@worker.job
async def talks(ctx: JobContext, lines: int, seconds: float = 0.0, gate: str = "") -> None:
    """Write numbered log lines and progress, evenly over some seconds; half way, wait for a file."""
    note("start", ctx)
    for number in range(1, lines + 1):
        ctx.log.info("line", number=number)
        ctx.progress(number / lines)
        await asyncio.sleep(seconds / lines)
        while gate and number == lines // 2 and not Path(gate).exists():
            await asyncio.sleep(0.02)
    note("end", ctx)


@worker.job
def deaf(ctx: JobContext, seconds: float) -> None:
    """Take a while in a thread, and listen to nothing."""
    note("start", ctx)
    time.sleep(seconds)
    note("end", ctx)


@worker.job
async def deadly(ctx: JobContext) -> None:
    """Kill the worker that runs it."""
    note("start", ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@worker.job(isolation="process")
def parent(ctx: JobContext, pid_file: str, seconds: float) -> None:
    """Start a process of its own, say which in `pid_file`, and wait for it."""
    note("start", ctx, pid=os.getppid())
    child = subprocess.Popen(["sleep", str(seconds)])
    Path(pid_file).write_text(str(child.pid))
    child.wait()
    note("end", ctx, pid=os.getppid())


def read(path: Path) -> list[tuple[str, str, int, int, float, str]]:
    """The lines of the effects file: (kind, occurrence, attempt, pid, time, job type)."""
    if not path.exists():
        return []
    found: list[tuple[str, str, int, int, float, str]] = []
    for line in path.read_text().splitlines():
        kind, identifier, attempt, pid, at, job_type = line.split()
        found.append((kind, identifier, int(attempt), int(pid), float(at), job_type))
    return found


def environment(path: Path) -> dict[str, Any]:
    """What a worker's environment needs so that its jobs write to this file."""
    return {EFFECTS: str(path)}
