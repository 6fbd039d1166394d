"""The job type shell_command: runs a program of the worker's machine and keeps its output.

Registered by `tickwork.builtin`; off unless the worker's owner allows it. The command gets a process group
and a minimal environment of its own: it never sees the worker's settings, and nothing of it stays behind.
"""

import contextlib
import errno
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta

from tickwork import JobContext
from tickwork.builtin import settings
from tickwork.builtin.output import Capture
from tickwork.builtin.text import MULTILINE
from tickwork.errors import JobError, PermanentError, RetryableError

# What a program needs to find its way; everything else of the worker's environment stays with the worker.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")

TERMINATE_GRACE_SECONDS = 3.0
_LOOK_SECONDS = 0.1
# Reasons why a process cannot be started now, but later.
_PASSING = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}
_DRAIN_SECONDS = 1.0


def shell_command(
    ctx: JobContext,
    command: Annotated[
        str | list[str],
        Meta(description="Program and arguments as a list, or one text that /bin/sh runs"),
    ],
    cwd: Annotated[str | None, Meta(description="Folder to run in; without it: the worker's")] = None,
    env: Annotated[dict[str, str] | None, Meta(description="Environment variables to add")] = None,
    stdin: Annotated[str, Meta(description="Text for the command's standard input", extra_json_schema=MULTILINE)] = "",
    expected_exit_codes: Annotated[
        list[int] | None, Meta(description="Exit codes that count as success; without it: 0")
    ] = None,
) -> dict[str, Any]:
    """Run a command on the worker's machine and keep its exit code and output."""
    if not settings.flag(settings.SHELL_ENABLED):
        raise PermanentError(
            f"shell_command is off on this worker; whoever runs the worker can set {settings.SHELL_ENABLED}=true"
        )
    if not command:
        raise PermanentError("command: is empty")
    started = time.monotonic()
    with _started(command, cwd, _environment(ctx, env or {}), stdin) as process, Capture(process, ctx.log) as capture:
        try:
            while process.poll() is None and not ctx.cancelled:
                capture.read(wait_seconds=_LOOK_SECONDS)
        finally:
            was_stopped = _end_group(process, capture)
        capture.read_rest(within_seconds=_DRAIN_SECONDS)
        stdout, stderr = capture.finish()
    if was_stopped:
        ctx.raise_if_cancelled()
    if process.returncode not in (expected_exit_codes or [0]):
        said = (stderr.text or stdout.text)[-2000:].strip()
        raise JobError(f"the command {_ending(process.returncode)}" + (f": {said}" if said else ""))
    return {
        "exit_code": process.returncode,
        "stdout": stdout.text,
        "stdout_truncated": stdout.truncated,
        "stderr": stderr.text,
        "stderr_truncated": stderr.truncated,
        "elapsed_ms": round((time.monotonic() - started) * 1000),
    }


def _environment(ctx: JobContext, additions: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    inherited.setdefault("PATH", os.defpath)
    return inherited | {"TICKWORK_OCCURRENCE_ID": ctx.id, "TICKWORK_ATTEMPT": str(ctx.attempt)} | dict(additions)


@contextlib.contextmanager
def _started(
    command: str | list[str], cwd: str | None, environment: dict[str, str], stdin: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """The running command, leader of a session and process group of its own; its input comes from a file."""
    arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    with tempfile.TemporaryFile() as source:
        source.write(stdin.encode())
        source.seek(0)
        try:
            process = subprocess.Popen(
                arguments,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            kind = RetryableError if error.errno in _PASSING else PermanentError
            raise kind(f"the command cannot be started: {error.strerror}: {error.filename}") from error
        except ValueError as error:
            raise PermanentError(f"the command, its folder or its environment is not valid: {error}") from error
    yield process


def _end_group(process: "subprocess.Popen[bytes]", capture: Capture) -> bool:
    """Leave nothing behind: a running command is asked to end and then killed; its children are killed.

    True if the command was still running, so that what it has done is not the whole.
    """
    was_running = process.poll() is None
    if was_running:
        _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_GRACE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            capture.read(wait_seconds=_LOOK_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
    return was_running


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
