"""Proof of life, and what the passing of time asks for: heartbeats, the health file, inquiries that are due.

One thread, started by the runtime; it goes on while the worker drains and ends last. It never waits for the
broker and never runs job code.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tickwork.errors import ConfigurationError
from tickwork.logs import get_logger

log = get_logger("tickwork.heartbeat")

CHECK_SECONDS = 0.5
BLOCKED_SECONDS = 10.0


class Health(msgspec.Struct, kw_only=True):
    """What the health file says; `at` is Unix time, the rest as of then."""

    at: float
    instance: str
    consuming: bool
    draining: bool
    confirmed_seconds_ago: float | None
    running: int
    held: int
    pending_events: int
    store_full: bool
    abandoned: int
    loop_blocked_seconds: float

    def problem(self, *, max_age: float, now: float) -> str:
        """Why this worker is not well, empty when it is."""
        age = now - self.at
        if age > max_age:
            return f"its last sign of life is {age:.0f} s old, more than {max_age:g} s"
        if self.draining:
            return ""
        if not self.consuming:
            return "it is not consuming: the broker is away, or the consumer is stuck"
        if self.confirmed_seconds_ago is None or self.confirmed_seconds_ago > max_age:
            return f"the broker has confirmed nothing for more than {max_age:g} s"
        if self.loop_blocked_seconds > max_age:
            return f"a job has blocked the loop of async jobs for {self.loop_blocked_seconds:.0f} s"
        return ""


def write_health(path: Path, health: Health) -> None:
    """Replace the file in one step. An error is logged, not raised: health must not break the worker."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(health))
        os.replace(draft, path)
    except OSError as error:
        log.error("health.not_written", file=str(path), reason=str(error))


def read_health(path: Path) -> Health:
    """The file's content. Raises ConfigurationError when it is not there or something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Health)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path} is no health file of a worker: {error}") from error


class Heartbeat:
    """Calls `check` every half second and `beat` every `seconds`, on its own thread; errors are logged."""

    def __init__(self, *, seconds: float, beat: Callable[[], None], check: Callable[[], None]) -> None:
        self._seconds = seconds
        self._beat = beat
        self._check = check
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tickwork-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(RuntimeError):  # not started
            self._thread.join(5)

    def _run(self) -> None:
        next_beat = 0.0
        while not self._ended.wait(min(CHECK_SECONDS, self._seconds)):
            try:
                self._check()
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + self._seconds
                    self._beat()
            except Exception:
                log.exception("heartbeat.failed")
