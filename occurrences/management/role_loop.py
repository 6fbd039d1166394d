"""Makes a daemon of a role: repeats its tick, sleeps until it is due or woken, proves progress, survives errors.

Called by each role's command and, for all of them in one process, by `run_scheduler`. A role knows nothing of this.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from django.conf import settings
from django.db import close_old_connections, connection
from django.utils import timezone

from jobs.conf import conf
from occurrences import sql
from occurrences.lifecycle.dead_letters import DeadLetters
from occurrences.lifecycle.dispatch import Dispatcher
from occurrences.lifecycle.intake import Intake
from occurrences.lifecycle.relay import Relay
from occurrences.lifecycle.retention import Retention
from occurrences.lifecycle.zombies import Zombies
from occurrences.management.wake import wake_on_commit
from occurrences.models import LoopPass
from tickwork.broker.base import Broker
from tickwork.broker.connect import connect
from tickwork.loop import Loop, Stop

RECORD_SECONDS = 3.0
LONGEST_IDLE_SECONDS = 10.0
SMALL_PASS = 100
PACED = (Relay.role, Intake.role)
HELD_ELSEWHERE_SECONDS = 0.02


class Role(Protocol):
    """What a chapter of the lifecycle offers a loop. It may also have `sleep_until()` and `hearing`."""

    role: str

    def tick(self, *, now: datetime) -> int: ...

    def close(self) -> None: ...


def _broker() -> Broker:
    return connect(settings.BROKER_URL)


ROLES: dict[str, Callable[[], Role]] = {
    Dispatcher.role: Dispatcher,
    Relay.role: lambda: Relay(_broker()),
    Intake.role: lambda: Intake(_broker()),
    DeadLetters.role: lambda: DeadLetters(_broker()),
    Zombies.role: Zombies,
    Retention.role: Retention,
}
"""How to make each role; the names are also the names of the commands."""

CHANNELS = {Dispatcher.role: sql.JOBS_CHANNEL, Relay.role: sql.OUTBOX_CHANNEL}
"""The roles that a commit wakes."""


def interval_seconds(role: str) -> float:
    """How long this role's loop sleeps when nothing wakes it and nothing is due, in seconds."""
    return {
        Dispatcher.role: conf().dispatch_poll_seconds,
        Relay.role: conf().relay_poll_seconds,
        Zombies.role: conf().zombie_interval_seconds,
        Retention.role: conf().purge_interval_seconds,
    }.get(role, 0.05)  # the consumers wait inside their tick


class RoleLoop:
    """One role, running in the calling thread until `stop`."""

    def __init__(self, name: str, *, stop: Stop) -> None:
        self.name = name
        self._stop = stop
        self._role = ROLES[name]()
        self._process = f"{socket.gethostname()}-{os.getpid()}"[:100]
        self._started_at = timezone.now()
        self._done = 0
        self._recorded = 0.0
        self._next_at = 0.0
        self._small_pass_at: float | None = None
        self._loop = Loop(
            name,
            self._tick,
            stop=stop,
            idle_seconds=min(interval_seconds(name), LONGEST_IDLE_SECONDS),
            on_error=self._failed,
        )

    def run(self) -> None:
        """Work until told to stop, then release what the role holds."""
        if channel := CHANNELS.get(self.name):
            wake_on_commit(self._loop.wake, channel=channel, stop=self._stop)
        try:
            self._loop.run()
        finally:
            try:
                self._role.close()
                LoopPass.objects.filter(role=self.name, process=self._process).delete()
            finally:
                connection.close()

    def once(self) -> int:
        """One pass, for `--once`; returns how much it did."""
        try:
            return self._role.tick(now=timezone.now())
        finally:
            self._role.close()

    def _tick(self) -> int:
        """One pass; a role with a long interval only proves progress in between. A pause until something is due is
        taken here.
        """
        done = 0
        self._keep_pace()
        moment = time.monotonic()
        if moment >= self._next_at:
            done = self._role.tick(now=timezone.now())
            interval = interval_seconds(self.name)
            if not done and interval > LONGEST_IDLE_SECONDS and self.name not in CHANNELS:
                self._next_at = moment + interval
        self._done += done
        self._small_pass_at = time.monotonic() if 0 < done < SMALL_PASS else None
        self._record()
        if not done:
            self._sleep_until_due()
        return done

    def _keep_pace(self) -> None:
        """After a small pass, let some more messages gather; after a large one, or none, go on at once."""
        if self._small_pass_at is not None and self.name in PACED:
            self._stop.wait(max(0.0, self._small_pass_at + conf().pace_seconds - time.monotonic()))

    def _sleep_until_due(self) -> None:
        due_at: datetime | None = getattr(self._role, "sleep_until", lambda: None)()
        if due_at is None:
            return
        seconds = (due_at - timezone.now()).total_seconds()
        if seconds < interval_seconds(self.name):
            # Due, and yet nothing was done: another process has it in hand.
            self._loop.pause_at_most(max(seconds, HELD_ELSEWHERE_SECONDS))

    def _record(self, error: Exception | None = None) -> None:
        """Prove progress, every few seconds; a broken database must not hide the first error."""
        if error is None and time.monotonic() - self._recorded < RECORD_SECONDS:
            return
        self._recorded = time.monotonic()
        now = timezone.now()
        said: dict[str, Any] = {"done_count": self._done}
        if error is None:
            since, until = getattr(self._role, "hearing", None) or (None, None)
            said |= {"last_pass_at": now, "hearing_since": since, "heard_until": until}
        else:
            said |= {"last_error": f"{type(error).__name__}: {error}"[:1000], "last_error_at": now}
        LoopPass.objects.update_or_create(
            role=self.name,
            process=self._process,
            defaults=said,
            create_defaults={"started_at": self._started_at, "last_pass_at": now, **said},
        )

    def _failed(self, error: Exception) -> None:
        close_old_connections()
        try:
            self._record(error)
        except Exception:
            close_old_connections()
