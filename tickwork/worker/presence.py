"""What an instance says about itself: who it is and what it can run, that it lives, how it is, that it leaves.

Called by the runtime and by the heartbeat's thread. Says it to the scheduler, and to the health file.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import tickwork
from tickwork.broker import topology
from tickwork.config import WorkerSettings
from tickwork.contracts import Heartbeat, Registered, Stopped
from tickwork.logs import get_logger
from tickwork.worker.execution import Executor
from tickwork.worker.heartbeat import BLOCKED_SECONDS, Health, write_health
from tickwork.worker.holding import Holding
from tickwork.worker.jobs import Worker
from tickwork.worker.reporting import Reporter

log = get_logger("tickwork.worker")


class Presence:
    """See the module. `consuming`: whether deliveries are being taken."""

    def __init__(
        self,
        worker: Worker,
        settings: WorkerSettings,
        *,
        instance: str,
        reporter: Reporter,
        executor: Executor,
        holding: Holding,
        consuming: Callable[[], bool],
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._instance = instance
        self._reporter = reporter
        self._executor = executor
        self._holding = holding
        self._consuming = consuming
        self.draining = False

    def register(self) -> None:
        """Tell who this is: at every connection, and when the broker is back after it was away."""
        self._reporter.event(
            Registered(
                at=datetime.now(UTC),
                host=socket.gethostname(),
                pid=os.getpid(),
                version=tickwork.__version__,
                concurrency=self._settings.concurrency,
                job_types=[job.info() for job in self._worker.jobs.values()],
            )
        )
        self._reporter.kick()

    def beat(self) -> None:
        """Tell that this instance lives and what it holds, and write the health file."""
        held = self._holding.keys()
        pending = self._reporter.pending_count
        self._reporter.event(Heartbeat(at=datetime.now(UTC), running=held, pending_events=pending))
        blocked = self._executor.loop_blocked_seconds()
        if blocked > BLOCKED_SECONDS:
            log.error("loop.blocked", seconds=round(blocked), hint="an async job blocks: make it a sync job")
        if self._settings.health_file:
            confirmed = self._reporter.last_confirmed_at
            health = Health(
                at=time.time(),
                instance=self._instance,
                consuming=self._consuming(),
                draining=self.draining,
                confirmed_seconds_ago=None if confirmed is None else time.monotonic() - confirmed,
                running=self._holding.running_count,
                held=len(held),
                pending_events=pending,
                store_full=self._reporter.full,
                abandoned=self._executor.abandoned,
                loop_blocked_seconds=blocked,
            )
            write_health(Path(self._settings.health_file), health)

    def leave(self) -> None:
        """Tell that everything is finished or given back. Nothing may be said after it: a heartbeat would deny it."""
        self._reporter.event(Stopped(at=datetime.now(UTC)))


def instance_name(worker: str) -> str:
    """`{worker}-{host}-{pid}-{4 hex}`, of at most 64 characters that a routing key may have."""
    tail = f"-{os.getpid()}-{secrets.token_hex(2)}"
    host = "".join(letter if topology.NAME.match(f"x{letter}") else "-" for letter in socket.gethostname())
    return f"{worker}-{host}"[: 64 - len(tail)] + tail
