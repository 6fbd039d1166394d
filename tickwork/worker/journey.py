"""How a delivery travels through a worker, in order: it arrives, begins, ends, is told and is acknowledged.

    arrived    taken from its queue; held, and asked about when it is doubtful       reading, holding
    begin      as many as there are free slots                                       execution
    _on_end    its report goes out, its slot is free for the next                    reporting
    settled    the broker has the report: only now is the delivery acknowledged
    look       what time asks for: questions, deliveries that got old

Called by the runtime's threads, the executor's, and the reporter's; decides nothing by itself. What the scheduler says
meanwhile is carried out in `commands`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from tickwork.broker.base import Consumer, Delivery
from tickwork.config import WorkerSettings
from tickwork.contracts import Finished, Inquiry, Started
from tickwork.errors import StoreFull
from tickwork.logs import get_logger
from tickwork.worker.attempt import Attempt
from tickwork.worker.context import JobContext
from tickwork.worker.continuity import Continuity
from tickwork.worker.execution import Executor
from tickwork.worker.gathering import ENDS
from tickwork.worker.held import Held
from tickwork.worker.holding import Holding
from tickwork.worker.jobs import Worker
from tickwork.worker.outcome import Ended
from tickwork.worker.reporting import Reporter
from tickwork.worker.store import Key, LocalStore

log = get_logger("tickwork.worker")

REMEMBERED_AT_START = 10_000
_read_end = msgspec.json.Decoder(Finished).decode


class Journey:
    """See the module. `connect` it before anything arrives."""

    def __init__(
        self,
        worker: Worker,
        settings: WorkerSettings,
        *,
        store: LocalStore,
        reporter: Reporter,
        executor: Executor,
        continuity: Continuity,
    ) -> None:
        self.holding = Holding(
            worker.jobs,
            slots=settings.concurrency,
            lease_after_seconds=settings.lease_after_seconds,
            make_attempt=self._make_attempt,
            ends_of=self._ends_of,
            untold=self._untold,
            recent=store.recent(REMEMBERED_AT_START),
        )
        self._settings = settings
        self._store = store
        self._reporter = reporter
        self._executor = executor
        self._continuity = continuity

    def connect(self, jobs: Consumer, *, heard_since: Callable[[], float]) -> None:
        """Where deliveries come from and are acknowledged. `heard_since`: see `reading.read`."""
        self._jobs = jobs
        self._heard_since = heard_since

    # ── 1: it arrives ──────────────────────────────────────────────────────────────────────────────

    def arrived(self, deliveries: Sequence[Delivery], *, losses: int) -> None:
        """These were taken from their queues. `losses`: what `holding.losses` was before."""
        now = time.monotonic()
        arrived = self.holding.arrive(deliveries, now=now, heard_since=self._heard_since(), losses=losses)
        if arrived.ack:
            self._jobs.ack(arrived.ack)
        if arrived.refuse:
            self._jobs.reject(arrived.refuse, requeue=False)
        if arrived.give_back:
            self._jobs.reject(arrived.give_back, requeue=True)
        self.begin()
        if arrived.must_ask or arrived.ended_before:
            self.look()

    # ── 2: it begins ───────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Start what is ready, as far as there are free slots."""
        attempts = self.holding.next_to_run(gap_at=self._continuity.gap_at(time.monotonic()))
        if attempts:
            self._executor.start(attempts)

    def _make_attempt(self, held: Held) -> Attempt:
        dispatch, job = held.dispatch, held.job
        timeout = dispatch.timeout_seconds if dispatch.timeout_seconds is not None else job.timeout_seconds
        context = JobContext(
            dispatch, self._reporter, timeout_seconds=timeout, max_log_lines=self._settings.max_log_lines
        )
        return Attempt(
            job, context, dispatch.data, timeout_seconds=timeout, on_start=self._on_start, on_end=self._on_end
        )

    def _on_start(self, attempt: Attempt) -> None:
        context = attempt.context
        assert context.started_at is not None
        self._reporter.event(Started(id=context.id, attempt=context.attempt, at=context.started_at))

    # ── 3: it ends, and is told ────────────────────────────────────────────────────────────────────

    def _on_end(self, attempt: Attempt, ended: Ended) -> None:
        context = attempt.context
        self.holding.ended((context.id, context.attempt), for_good=ended.outcome in ENDS)
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
        self.holding.slot_is_free()
        self.begin()

    def tell_again(self, end: bytes) -> None:
        """An attempt that may run here did so before: send the report of its end instead of running it again."""
        report = _read_end(end)
        log.info("attempt.told_again", occurrence=report.id, attempt=report.attempt, outcome=report.outcome)
        self._reporter.event(report)

    # ── 4: it is acknowledged ──────────────────────────────────────────────────────────────────────

    def settled(self, keys: Sequence[Key]) -> None:
        """The broker has the reports of these ends."""
        self._jobs.ack(self.holding.settled(keys))

    # ── the passing of time ────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Ask what is due, give back what waited too long, acknowledge what ended here before and has been told."""
        now = time.monotonic()
        self._continuity.turn(now)
        due = self.holding.due(now=now)
        for (identifier, attempt), question in due.ask:
            self._reporter.event(Inquiry(id=identifier, attempt=attempt, at=datetime.now(UTC), question=question))
        if due.give_back:
            log.warning("deliveries.given_back", count=len(due.give_back), hint="no free slot, or no answer, in time")
            self._jobs.reject(due.give_back, requeue=True)
        if ended := self.holding.ended_before():
            untold = self._untold()
            self.settled([key for key in ended if key not in untold])

    # ── what the store knows ───────────────────────────────────────────────────────────────────────

    def _ends_of(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        try:
            return self._store.ends_of(keys)
        except StoreFull as error:
            log.error("store.not_read", reason=str(error))
            return {}  # then the scheduler is asked

    def _untold(self) -> set[Key]:
        try:
            return self._store.waiting()
        except StoreFull as error:
            log.error("store.not_read", reason=str(error))
            return set()
