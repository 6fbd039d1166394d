"""One worker instance, from start to end: it connects, takes deliveries and commands, and drains when told to stop.

Started by `tickwork worker` and `Worker.run`. It wires the parts together and owns the threads that listen; what
happens to a delivery is told in `journey`. Job code never runs on a thread that owns a broker connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tickwork import logs
from tickwork.broker import topology
from tickwork.broker.base import Broker
from tickwork.broker.connect import connect
from tickwork.config import LogSettings, WorkerSettings
from tickwork.errors import ConfigurationError
from tickwork.loop import Backoff, Stop, stop_on_signals, stop_with_parent
from tickwork.worker.commands import Commands
from tickwork.worker.context import ForwardingHandler
from tickwork.worker.continuity import STILL_SECONDS, Continuity
from tickwork.worker.execution import GRACE_SECONDS, Executor
from tickwork.worker.heartbeat import Heartbeat
from tickwork.worker.jobs import Worker
from tickwork.worker.journey import Journey
from tickwork.worker.outcome import StopKind
from tickwork.worker.presence import Presence, instance_name
from tickwork.worker.reporting import Reporter
from tickwork.worker.store_folder import open_store

log = logs.get_logger("tickwork.worker")

TAKE_WAIT_SECONDS = 0.25
CONTROL_PREFETCH = 100
CLOCK_SECONDS = 2.0
"""How far the scheduler's clock may be ahead of this machine's."""
REPORT_SECONDS = 10.0
STUCK_SECONDS = 30.0


class Runtime:
    """One instance of a worker. `run` blocks until `stop` is set and everything is in order."""

    def __init__(self, worker: Worker, settings: WorkerSettings, *, stop: Stop, broker: Broker | None = None) -> None:
        if not worker.jobs:
            raise ConfigurationError(f"worker {worker.name!r} has no jobs")
        isolated = any(job.isolation == "process" for job in worker.jobs.values())
        target = worker.find_target() if isolated else ""
        self.worker = worker
        self.settings = settings
        self.instance = instance_name(worker.name)
        self._stop = stop
        self._ended = threading.Event()
        self._last_turn_at = time.monotonic()
        self._broker = broker if broker is not None else connect(settings.broker_url)
        self._store = open_store(Path(settings.store_directory), worker.name, settings.store_max_bytes)
        self._publisher = self._broker.publisher()
        self._reporter = Reporter(
            self._publisher,
            self._store,
            worker=worker.name,
            instance=self.instance,
            on_settled=lambda keys: self._journey.settled(keys),
            on_return=lambda: self._presence.register(),
        )
        self._executor = Executor(
            threads=settings.concurrency, max_result_bytes=settings.max_result_bytes, target=target
        )
        continuity = Continuity(
            silence_seconds=max(STILL_SECONDS, 2 * settings.heartbeat_seconds),
            last_heard_at=lambda: self._reporter.last_confirmed_at,
            now=time.monotonic(),
        )
        self._journey = Journey(
            worker,
            settings,
            store=self._store,
            reporter=self._reporter,
            executor=self._executor,
            continuity=continuity,
        )
        self._holding = self._journey.holding
        self._presence = Presence(
            worker,
            settings,
            instance=self.instance,
            reporter=self._reporter,
            executor=self._executor,
            holding=self._holding,
            consuming=self._is_consuming,
        )
        self._heartbeat = Heartbeat(
            seconds=settings.heartbeat_seconds, beat=self._presence.beat, check=self._journey.look
        )

    def run(self) -> int:
        """Work until told to stop, then drain. Returns the exit status."""
        name, settings = self.worker.name, self.settings
        log.info("worker.starting", worker=name, instance=self.instance, jobs=len(self.worker.jobs))
        forwarding = ForwardingHandler()
        logging.getLogger().addHandler(forwarding)
        self._control = self._broker.consumer([topology.control_queue(name, self.instance)], prefetch=CONTROL_PREFETCH)
        self._jobs = self._broker.consumer(
            [topology.job_queue(name, job_type) for job_type in self.worker.jobs],
            prefetch=settings.prefetch,
            on_connect=self._connected,
            on_disconnect=self._holding.connection_lost,
        )
        self._journey.connect(self._jobs, heard_since=self._heard_since)
        self._commands = Commands(
            self._journey,
            instance=self.instance,
            executor=self._executor,
            reporter=self._reporter,
            jobs=self._jobs,
        )
        self._reporter.start()
        self._heartbeat.start()
        listening = self._repeat("control", self._listen, until=self._ended.is_set)
        taking = self._repeat("intake", self._take, until=self._stop.is_set)
        try:
            self._stop.wait()
            self._drain(taking)
        finally:
            self._ended.set()
            self._heartbeat.close()
            self._executor.close()
            self._jobs.close()
            self._control.close()
            listening.join(5)
            self._publisher.close()
            self._store.close()
            logging.getLogger().removeHandler(forwarding)
        log.info("worker.stopped", worker=name, instance=self.instance)
        return 0

    # ── while it runs ──────────────────────────────────────────────────────────────────────────────

    def _take(self) -> None:
        """Take deliveries in, unless their reports could not be kept."""
        self._last_turn_at = time.monotonic()
        if self._reporter.full:
            self._stop.wait(1.0)
            return
        losses = self._holding.losses
        if deliveries := self._jobs.take(self.settings.prefetch, wait=TAKE_WAIT_SECONDS):
            self._journey.arrived(deliveries, losses=losses)

    def _listen(self) -> None:
        """Carry out what the scheduler says."""
        if deliveries := self._control.take(CONTROL_PREFETCH, wait=TAKE_WAIT_SECONDS):
            self._commands.arrived(deliveries)
            self._control.ack(deliveries)

    def _connected(self) -> None:
        """Say who this is. The broker may be another than before, or have lost what it had, so some is told again."""
        self._presence.register()
        self._reporter.repeat()

    def _heard_since(self) -> float:
        since = self._control.connected_since
        return float("inf") if since is None else time.time() - (time.monotonic() - since) + CLOCK_SECONDS

    def _is_consuming(self) -> bool:
        return self._jobs.connected and time.monotonic() - self._last_turn_at < STUCK_SECONDS

    def _repeat(self, role: str, turn: Callable[[], None], *, until: Callable[[], bool]) -> threading.Thread:
        """A thread that takes one turn after the other; errors are logged, and it goes on."""

        def run() -> None:
            backoff = Backoff()
            while not until():
                try:
                    turn()
                    backoff.reset()
                except Exception:
                    log.exception(f"{role}.failed")
                    self._ended.wait(backoff.next())

        thread = threading.Thread(target=run, name=f"tickwork-{role}", daemon=True)
        thread.start()
        return thread

    # ── at the end ─────────────────────────────────────────────────────────────────────────────────

    def _drain(self, taking: threading.Thread) -> None:
        """Take nothing new, give back what was not begun, let the rest finish or interrupt it, and tell it all."""
        self._presence.draining = True
        self._holding.close()
        self._jobs.pause()
        taking.join(REPORT_SECONDS)
        given_back = self._holding.give_back()
        self._jobs.reject(given_back, requeue=True)
        log.info("worker.draining", running=self._holding.running_count, given_back=len(given_back))
        if not self._holding.wait_idle(self.settings.shutdown_seconds):
            for attempt in self._holding.running():
                self._executor.stop(attempt, StopKind.SHUTDOWN, "the worker is shutting down")
            self._holding.wait_idle(2 * GRACE_SECONDS)
        self._heartbeat.close()
        self._presence.leave()
        if not self._reporter.close(REPORT_SECONDS):
            log.warning("worker.reports_left", pending=self._reporter.pending_count, hint="sent at the next start")


def run_until_signal(
    worker: Worker,
    settings: WorkerSettings,
    *,
    log_settings: LogSettings | None = None,
    exit_with_parent: bool = False,
) -> int:
    """Run an instance in this process until a signal stops it; returns the exit status."""
    log_settings = log_settings or LogSettings.from_environment()
    logs.configure(log_settings.format, log_settings.level)
    stop = Stop()
    runtime = Runtime(worker, settings, stop=stop)
    stop_on_signals(stop)
    if exit_with_parent:
        stop_with_parent(stop)
    return runtime.run()
