"""One worker instance: takes deliveries, has them run, reports, and drains when it is told to stop.

Started by `tickwork worker` and `Worker.run`. It wires the parts together and decides nothing by itself: what may
run is `holding`'s word, how it ends is `execution`'s, what leaves is `reporting`'s. Job code never runs on a thread
that owns a broker connection.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import tickwork
from tickwork import contracts, logs
from tickwork.broker import topology
from tickwork.broker.base import Broker, Consumer, Delivery
from tickwork.broker.connect import connect
from tickwork.config import LogSettings, WorkerSettings
from tickwork.contracts import (
    Cancel,
    CommandMessage,
    ErrorInfo,
    Finished,
    Granted,
    Inquiry,
    Registered,
    Started,
    Stopped,
)
from tickwork.errors import ConfigurationError, ContractError, StoreFull
from tickwork.loop import Backoff, Stop, stop_on_signals, stop_with_parent
from tickwork.worker.context import ForwardingHandler, JobContext
from tickwork.worker.continuity import STILL_SECONDS, Continuity
from tickwork.worker.execution import GRACE_SECONDS, Attempt, Executor
from tickwork.worker.gathering import ENDS
from tickwork.worker.heartbeat import BLOCKED_SECONDS, Health, Heartbeat, write_health
from tickwork.worker.holding import Held, Holding
from tickwork.worker.jobs import Worker
from tickwork.worker.outcome import Ended, StopKind
from tickwork.worker.reporting import Reporter
from tickwork.worker.store import Key, LocalStore

log = logs.get_logger("tickwork.worker")

TAKE_WAIT_SECONDS = 0.25
CONTROL_PREFETCH = 100
CLOCK_SECONDS = 2.0
"""How far the scheduler's clock may be ahead of this machine's."""
REPORT_SECONDS = 10.0
STUCK_SECONDS = 30.0
REMEMBERED_AT_START = 10_000


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
        self._draining = False
        self._last_turn_at = time.monotonic()
        self._broker = broker if broker is not None else connect(settings.broker_url)
        self._store = LocalStore.open(Path(settings.store_directory), worker.name, settings.store_max_bytes)
        self._publisher = self._broker.publisher()
        self._reporter = Reporter(
            self._publisher,
            self._store,
            worker=worker.name,
            instance=self.instance,
            on_settled=self._settled,
            on_return=self._register,
        )
        self._executor = Executor(
            threads=settings.concurrency, max_result_bytes=settings.max_result_bytes, target=target
        )
        self._holding = Holding(
            worker.jobs,
            slots=settings.concurrency,
            lease_after_seconds=settings.lease_after_seconds,
            make_attempt=self._make_attempt,
            was_finished=self._was_finished,
            untold=self._untold,
            recent=self._store.recent(REMEMBERED_AT_START),
        )
        self._continuity = Continuity(
            silence_seconds=max(STILL_SECONDS, 2 * settings.heartbeat_seconds),
            last_heard_at=lambda: self._reporter.last_confirmed_at,
            now=time.monotonic(),
        )
        self._heartbeat = Heartbeat(seconds=settings.heartbeat_seconds, beat=self._beat, check=self._check)

    def run(self) -> int:
        """Work until told to stop, then drain. Returns the exit status."""
        name, settings = self.worker.name, self.settings
        log.info("worker.starting", worker=name, instance=self.instance, jobs=len(self.worker.jobs))
        forwarding = ForwardingHandler()
        logging.getLogger().addHandler(forwarding)
        self._control = self._broker.consumer([topology.control_queue(name, self.instance)], prefetch=CONTROL_PREFETCH)
        queues = [topology.job_queue(name, job_type) for job_type in self.worker.jobs]
        self._jobs = self._broker.consumer(
            queues,
            prefetch=settings.prefetch,
            on_connect=self._register,
            on_disconnect=self._holding.connection_lost,
        )
        self._reporter.start()
        self._heartbeat.start()
        listening = self._thread("control", self._control, CONTROL_PREFETCH, self._commanded)
        taking = self._thread("intake", self._jobs, settings.prefetch, self._arrived)
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

    def _drain(self, taking: threading.Thread) -> None:
        """Take nothing new, give back what was not begun, let the rest finish or interrupt it, and tell it all."""
        self._draining = True
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
        self._reporter.event(Stopped(at=datetime.now(UTC)))
        if not self._reporter.close(REPORT_SECONDS):
            log.warning("worker.reports_left", pending=self._reporter.pending_count, hint="sent at the next start")

    # ── deliveries and commands in ─────────────────────────────────────────────────────────────────

    def _thread(
        self, role: str, consumer: Consumer, limit: int, handle: Callable[[list[Delivery]], None]
    ) -> threading.Thread:
        """A thread that hands what a consumer takes to `handle`; errors are logged, and it goes on."""
        over = self._stop.is_set if role == "intake" else self._ended.is_set

        def run() -> None:
            backoff = Backoff()
            while not over():
                try:
                    if role == "intake" and not self._may_take():
                        self._stop.wait(1.0)
                    elif deliveries := consumer.take(limit, wait=TAKE_WAIT_SECONDS):
                        handle(deliveries)
                    backoff.reset()
                except Exception:
                    log.exception(f"{role}.failed")
                    self._ended.wait(backoff.next())

        thread = threading.Thread(target=run, name=f"tickwork-{role}", daemon=True)
        thread.start()
        return thread

    def _may_take(self) -> bool:
        self._last_turn_at = time.monotonic()
        return not self._reporter.full

    def _arrived(self, deliveries: list[Delivery]) -> None:
        arrived = self._holding.arrive(deliveries, now=time.monotonic(), heard_since=self._heard_since())
        if arrived.ack:
            self._jobs.ack(arrived.ack)
        if arrived.refuse:
            self._jobs.reject(arrived.refuse, requeue=False)
        if self._jobs.connected_since is None:  # lost between taking them and now
            self._holding.connection_lost()
        self._start_ready()
        if arrived.asking or arrived.ended_before:
            self._check()

    def _heard_since(self) -> float:
        since = self._control.connected_since
        return float("inf") if since is None else time.time() - (time.monotonic() - since) + CLOCK_SECONDS

    def _commanded(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                command = contracts.decode(CommandMessage, delivery.body).command
            except ContractError as error:
                log.error("command.unreadable", reason=str(error))
                continue
            if isinstance(command, Cancel):
                self._cancel(command)
                continue
            if isinstance(command, Granted):
                self._granted(command)
                continue
            acks, taken_away = self._holding.verdict(command, now=time.monotonic())
            self._jobs.ack(acks)
            if taken_away is not None:
                self._executor.stop(taken_away, StopKind.CANCEL, f"no longer held: {command.reason}")
            self._start_ready()
        self._control.ack(deliveries)

    def _granted(self, command: Granted) -> None:
        if command.instance == self.instance:
            return
        taken_away = self._holding.granted_elsewhere((command.id, command.attempt), now=time.monotonic())
        if taken_away is not None:
            self._executor.stop(taken_away, StopKind.CANCEL, f"taken over by {command.instance}")

    def _cancel(self, command: Cancel) -> None:
        attempt, unbegun = self._holding.cancel((command.id, command.attempt), for_good=command.for_good)
        if attempt is not None:
            self._executor.stop(attempt, StopKind.CANCEL, command.reason or "cancelled")
        if unbegun is not None:
            error = ErrorInfo(type="Cancelled", message=command.reason)
            self._reporter.event(
                Finished(id=command.id, attempt=command.attempt, at=datetime.now(UTC), outcome="cancelled", error=error)
            )

    # ── attempts through ───────────────────────────────────────────────────────────────────────────

    def _make_attempt(self, held: Held) -> Attempt:
        dispatch, job = held.dispatch, held.job
        timeout = dispatch.timeout_seconds if dispatch.timeout_seconds is not None else job.timeout_seconds
        context = JobContext(
            dispatch, self._reporter, timeout_seconds=timeout, max_log_lines=self.settings.max_log_lines
        )
        return Attempt(
            job, context, dispatch.data, timeout_seconds=timeout, on_start=self._on_start, on_end=self._on_end
        )

    def _start_ready(self) -> None:
        attempts = self._holding.next_to_run(gap_at=self._continuity.gap_at(time.monotonic()))
        if attempts:
            self._executor.start(attempts)

    def _on_start(self, attempt: Attempt) -> None:
        context = attempt.context
        assert context.started_at is not None
        self._reporter.event(Started(id=context.id, attempt=context.attempt, at=context.started_at))

    def _on_end(self, attempt: Attempt, ended: Ended) -> None:
        context = attempt.context
        self._holding.ended((context.id, context.attempt), for_good=ended.outcome in ENDS)
        self._reporter.event(
            Finished(
                id=context.id,
                attempt=context.attempt,
                at=datetime.now(UTC),
                outcome=ended.outcome,
                started_at=context.started_at,
                result=ended.result,
                error=ended.error,
            )
        )
        self._start_ready()

    def _settled(self, keys: list[Key]) -> None:
        self._jobs.ack(self._holding.settled(keys))

    def _was_finished(self, keys: Sequence[Key]) -> set[Key]:
        try:
            return self._store.is_finished(keys)
        except StoreFull as error:
            log.error("store.not_read", reason=str(error))
            return set()  # then the scheduler is asked

    def _untold(self) -> set[Key]:
        try:
            return self._store.waiting()
        except StoreFull as error:
            log.error("store.not_read", reason=str(error))
            return set()

    # ── the passing of time ────────────────────────────────────────────────────────────────────────

    def _register(self) -> None:
        """Tell who this is: at every connection, and when the broker is back after it was away."""
        self._reporter.event(
            Registered(
                at=datetime.now(UTC),
                host=socket.gethostname(),
                pid=os.getpid(),
                version=tickwork.__version__,
                concurrency=self.settings.concurrency,
                job_types=[job.info() for job in self.worker.jobs.values()],
            )
        )
        self._reporter.kick()

    def _check(self) -> None:
        """Ask what is due; answer deliveries of attempts that ended here before."""
        now = time.monotonic()
        self._continuity.turn(now)
        due = self._holding.due(now=now)
        for (identifier, attempt), question in due.ask:
            self._reporter.event(Inquiry(id=identifier, attempt=attempt, at=datetime.now(UTC), question=question))
        if due.give_back:
            log.warning("deliveries.given_back", count=len(due.give_back), hint="no free slot, or no answer, in time")
            self._jobs.reject(due.give_back, requeue=True)
        ended = self._holding.ended_before()
        if ended:
            self._settled([key for key in ended if key not in self._store.waiting()])

    def _beat(self) -> None:
        now = time.monotonic()
        held = self._holding.keys()
        pending = self._reporter.pending_count
        self._reporter.event(contracts.Heartbeat(at=datetime.now(UTC), running=held, pending_events=pending))
        blocked = self._executor.loop_blocked_seconds()
        if blocked > BLOCKED_SECONDS:
            log.error("loop.blocked", seconds=round(blocked), hint="an async job blocks: make it a sync job")
        if self.settings.health_file:
            confirmed = self._reporter.last_confirmed_at
            health = Health(
                at=time.time(),
                instance=self.instance,
                consuming=self._jobs.connected and now - self._last_turn_at < STUCK_SECONDS,
                draining=self._draining,
                confirmed_seconds_ago=None if confirmed is None else now - confirmed,
                running=self._holding.running_count,
                held=len(held),
                pending_events=pending,
                store_full=self._reporter.full,
                abandoned=self._executor.abandoned,
                loop_blocked_seconds=blocked,
            )
            write_health(Path(self.settings.health_file), health)


def instance_name(worker: str) -> str:
    """`{worker}-{host}-{pid}-{4 hex}`, of at most 64 characters that a routing key may have."""
    tail = f"-{os.getpid()}-{secrets.token_hex(2)}"
    host = "".join(letter if topology.NAME.match(f"x{letter}") else "-" for letter in socket.gethostname())
    return f"{worker}-{host}"[: 64 - len(tail)] + tail


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
