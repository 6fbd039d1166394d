"""Whatever happens in whatever order, the promises about an occurrence hold after every step.

Hypothesis plays dispatcher, relay, intake, sweeps, operators, a bad broker and mortal workers against the real
database; `life_model.World` is what is around the scheduler. At the end all workers are gone and the clock runs on:
everything that is left must come to its end by itself.

The examples are the same in every run. `TEST_LIFE_EXAMPLES=1000` looks for new ones, as many.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from jobs.errors import NotPossibleNow
from jobs.models import Job
from occurrences import messages, operations, sql
from occurrences.hearing import Hearing
from occurrences.lifecycle.dead_letters import DeadLetters
from occurrences.lifecycle.dispatch import Dispatcher
from occurrences.lifecycle.intake import Intake
from occurrences.lifecycle.relay import _message
from occurrences.lifecycle.zombies import Zombies
from occurrences.models import FailedOccurrence, Occurrence, OutboxMessage
from occurrences.states import FINAL, LEGAL, LIVE, Status
from tests.db.conftest import SetConf
from tests.db.life_model import Hand, World
from tests.db.reports import LONG_AGO, listens
from tests.factories import NOON, make_job, make_operator
from tickwork.contracts import Outcome
from workers_app.models import WorkerInstance

T = TypeVar("T")
STALE_SECONDS = 60
LOST_AFTER_SECONDS = 30
MOST_LIVE = 5
EXAMPLES = os.environ.get("TEST_LIFE_EXAMPLES", "")
NUMBERS = st.integers(0, 7)
ENDS: list[Outcome] = ["failed", "completed", "failed", "failed", "timed_out", "cancelled", "interrupted"]


def pick(things: list[T], number: int) -> T | None:
    """One of the things; a small number is easy to shrink."""
    return things[number % len(things)] if things else None


class Life(RuleBasedStateMachine):
    """One history of two jobs. `intake` and `dead_letters` are set by the test: their broker is never used."""

    intake: Intake
    dead_letters: DeadLetters

    def __init__(self) -> None:
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.world = World(NOON)
        self.olga = make_operator()
        self.ended: dict[UUID, tuple[Any, ...]] = {}
        self.checked: dict[UUID, int] = {}
        minute = {
            "cron": "*/10 * * * *",
            "now": NOON - timedelta(seconds=60),
            "retry_preset": "milvaion",
            "timeout_seconds": 30,
        }
        make_job(**minute, concurrent_execution_policy=Job.Overlap.ALLOW, max_attempts=2)
        make_job(
            **minute, max_attempts=3, retry_on_zombie=True, retry_on_timeout=True, on_worker_unavailable="redispatch",
            misfire_policy="catch_up",
        )  # fmt: skip
        Dispatcher().tick(now=self.now)

    @property
    def now(self) -> datetime:
        return self.world.now

    # ── what may happen next; few rules, so that histories get somewhere ───────────────────────────

    @rule(
        who=NUMBERS,
        wanted=st.integers(0, 2),
        fate=st.sampled_from(["confirmed", "confirmed", "unconfirmed", "not arrived"]),
        taken=st.sampled_from([4, 1, 9]),
        heard=st.sampled_from([9, 1, 3, 0]),
    )
    def the_ordinary_way(self, who: int, wanted: int, fate: str, taken: int, heard: int) -> None:
        """Runs are asked for, the relay sends, workers take and are heard, commands reach them."""
        room = MOST_LIVE - Occurrence.objects.filter(status__in=sorted(LIVE)).count()
        for _ in range(min(wanted, room)):
            operations.trigger(Job.objects.order_by("name")[who % 2], now=self.now)
        self._send(fate)
        for number in range(min(taken, len(self.world.copies))):
            self.world.take(self._hand(who + number), self.world.copies[0])
        self._hear(heard)
        self._send("confirmed")
        for hand in self.world.living:
            self.world.listen(hand)

    @rule(ends=st.lists(st.tuples(NUMBERS, st.sampled_from(ENDS)), min_size=1, max_size=3))
    def jobs_end(self, ends: list[tuple[int, Outcome]]) -> None:
        """As the job's code will have it; a job that was told to stop does."""
        for number, outcome in ends:
            if found := pick(self.world.running(), number):
                hand, task = found
                self.world.finish(hand, task, "cancelled" if task.cancelled else outcome)

    @rule(seconds=st.sampled_from([31, 61, 1, 121, 200]), beating=st.integers(0, 2), swept=st.booleans())
    def time_passes(self, seconds: float, beating: int, swept: bool) -> None:
        """Some of the workers say that they live, and the zombie detector may come by."""
        self.world.pass_time(seconds)
        Dispatcher().tick(now=self.now)
        for hand in self.world.living[:beating]:
            self.world.beat(hand)
        if swept:
            self._sweep()

    @rule(action=st.sampled_from(["bury", "no ack", "again"]), number=NUMBERS)
    def the_scheduler_works(self, action: str, number: int) -> None:
        match action:
            case "bury":
                self._hear(len(self.world.reports))  # first, as its tick sees to
                while self.world.dead:
                    hearing = Hearing(LONG_AGO, self.world.heard_until())
                    self.dead_letters._handle(self.world.dead.pop(0), self.now, hearing)
            case "no ack":  # it dies after the commit, and its successor gets the same messages
                self.intake.apply(self.world.reports[: number + 1], now=self.now)
            case "again":
                if report := pick(self.world.heard[::-1], number):
                    self.intake.apply([report], now=self.now)

    @rule(number=NUMBERS, seconds=st.sampled_from([31, 1, 61]), heard=st.sampled_from([50, 1]))
    def a_worker_is_cut_off(self, number: int, seconds: float, heard: int) -> None:
        """It works on, and the broker hands what it runs to another one, which asks."""
        if found := pick(self.world.running(), number):
            hand, task = found
            self._hear(50)
            self.world.disconnect(hand)
            self.world.pass_time(seconds)
            for copy in [copy for copy in self.world.copies if copy.key == task.copy.key]:
                self.world.take(self._hand(self.world.living.index(hand) + 1), copy)
            self._hear(heard)

    @rule(action=st.sampled_from(["double", "lose", "reject"]), number=NUMBERS)
    def the_broker_fails(self, action: str, number: int) -> None:
        copy = pick(self.world.copies, number)
        if copy is None:
            return
        if action == "double":
            self.world.double(copy)
            return
        self.world.copies.remove(copy)
        if action == "reject":
            self.world.dead.append(copy.buried("rejected"))

    @rule(action=st.sampled_from(["crash", "reconnect", "leave", "disconnect", "reconnect", "lease"]), number=NUMBERS)
    def workers_come_and_go(self, action: str, number: int) -> None:
        busy = pick(self.world.running(), number)
        hand = busy[0] if busy else self._hand(number)
        match action:
            case "crash":
                self.world.crash(hand)
            case "leave":
                self.world.leave(hand)
            case "disconnect":
                self.world.disconnect(hand)
            case "reconnect":
                for other in self.world.hands:
                    self.world.reconnect(other)
            case "lease":
                if busy:
                    self.world.ask(*busy, "lease")

    @rule(action=st.sampled_from(["retry", "retry_now", "cancel"]), number=NUMBERS)
    def the_operator_acts(self, action: str, number: int) -> None:
        rows = list(Occurrence.objects.exclude(status=Status.SKIPPED).order_by("-created_at", "job__name", "status"))
        row = pick(sorted(rows, key=lambda row: row.is_final != (action == "retry")), number)
        if row is None:
            return
        try:
            match action:
                case "cancel":
                    operations.cancel(row.pk, by="olga", now=self.now)
                case "retry":
                    operations.retry(row.pk, by=self.olga, now=self.now)
                    del self.ended[row.pk]
                case "retry_now":
                    operations.retry_now(row.pk, by="olga", now=self.now)
        except NotPossibleNow:
            assert row.is_final if action == "cancel" else action == "retry_now" or not row.is_final

    def _send(self, fate: str) -> None:
        rows = sql.claim_outbox(now=self.now, limit=50, until=self.now + timedelta(seconds=30))
        if fate != "not arrived":
            for row in rows:
                self.world.arrive(_message(row))
        if fate == "confirmed":
            sql.settle_outbox([row["id"] for row in rows])

    def _hear(self, number: int) -> None:
        reports = self.world.reports[:number]
        if not reports:
            return
        self.intake._ear.hearing = Hearing(LONG_AGO, self.world.heard_until())
        self.intake.apply(reports, now=self.now)
        del self.world.reports[:number]
        self.world.heard += reports

    def _sweep(self) -> None:
        """What workers said, heard or not yet, is never taken for silence."""
        unknown = Occurrence.objects.filter(status=Status.UNKNOWN)
        before, until = set(unknown.values_list("pk", flat=True)), self.world.heard_until()
        listens(until=until)
        Zombies().tick(now=self.now)
        for row in unknown.exclude(pk__in=before):
            stale = until - timedelta(seconds=STALE_SECONDS)
            assert not self.world.beat_between(stale, until, row.instance, (str(row.pk), row.attempt))

    def _hand(self, number: int) -> Hand:
        hand = pick(self.world.living, number)
        assert hand is not None
        return hand

    # ── the promises ───────────────────────────────────────────────────────────────────────────────

    @invariant()
    def promises_hold(self) -> None:
        assert not self.world.begun_twice
        rows = list(Occurrence.objects.all())
        ticks = Counter((row.job_id, row.scheduled_for) for row in rows if row.scheduled_for)
        assert set(ticks.values()) == {1}
        waiting = Counter(
            OutboxMessage.objects.filter(event_type=messages.DISPATCH).values_list("occurrence_id", flat=True)
        )
        failures = Counter(FailedOccurrence.objects.filter(resolved_at=None).values_list("occurrence", flat=True))
        assert None not in failures, "something that the scheduler or a worker sent could not be used"
        for row in rows:
            self._is_consistent(row, waiting[row.pk])
            self._moved_legally(row)
            self._stays_ended(row)
            assert failures[row.pk] == (row.status in (Status.FAILED, Status.TIMED_OUT))

    def _is_consistent(self, row: Occurrence, messages_waiting: int) -> None:
        assert (row.ended_at is not None) == (row.status in FINAL)
        if row.status == Status.QUEUED:
            assert (row.instance, row.started_at, row.cancel_requested_at) == ("", None, None)
            if row.next_attempt_at and row.next_attempt_at > self.now:
                assert messages_waiting, "it waits for a time, and nothing will send it then"
        if row.is_started:
            assert row.instance
        if row.status == Status.COMPLETED:
            assert row.result == {"attempt": row.attempt, "by": row.instance}, "the result of somebody else"

    def _moved_legally(self, row: Occurrence) -> None:
        known, self.checked[row.pk] = self.checked.get(row.pk, 1), len(row.history)
        if known == len(row.history) > 1:
            return
        changes = row.status_changes
        assert (changes[-1].status, changes[-1].attempt) == (row.status, row.attempt)
        holder = ""
        for number, (before, after) in enumerate(pairwise(changes), start=2):
            a_note = before.status == after.status and before.attempt == after.attempt
            assert a_note or after.status in LEGAL[before.status]
            assert 0 <= after.attempt - before.attempt <= 1
            if after.reason.startswith("taken over from"):
                assert number <= known or self._is_gone(holder)
            elif holder and not a_note and after.by in self.world.names:
                assert after.by == holder, "moved by somebody who does not hold it"
            if after.status == Status.RUNNING and after.by in self.world.names and "ignored" not in after.reason:
                holder = after.by
            elif after.status == Status.QUEUED:
                holder = ""

    def _is_gone(self, instance: str) -> bool:
        lost = self.now - timedelta(seconds=LOST_AFTER_SECONDS)
        return not WorkerInstance.objects.filter(pk=instance, stopped_at=None, last_heartbeat_at__gt=lost).exists()

    def _stays_ended(self, row: Occurrence) -> None:
        if row.status in FINAL:
            end = (row.status, row.attempt, row.ended_at, row.result, row.error, row.instance)
            assert self.ended.setdefault(row.pk, end) == end
        else:
            assert row.pk not in self.ended, "it had come to its end, and nobody asked for another try"

    # ── the end ────────────────────────────────────────────────────────────────────────────────────

    def teardown(self) -> None:
        """Every worker dies. The clock runs on, and everything comes to its end by itself."""
        try:
            for hand in self.world.living:
                hand.alive = False
            Job.objects.update(is_active=False)
            for number in range(40):
                if not Occurrence.objects.filter(status__in=sorted(LIVE)).exists():
                    break
                self._hear(len(self.world.reports))
                self._send("confirmed")
                self.world.pass_time(200 if number % 2 else 61)
                self.the_scheduler_works("bury", 0)
                self._sweep()
            self.promises_hold()
            assert not Occurrence.objects.filter(status__in=sorted(LIVE)).exists()
        finally:
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)


@pytest.mark.django_db
@pytest.mark.timeout(600)
def test_the_promises_about_an_occurrence_hold_whatever_happens(
    intake: Intake, dead_letters: DeadLetters, set_conf: SetConf
) -> None:
    set_conf(
        default_queue_ttl_seconds=100, queued_backstop_seconds=150, heartbeat_stale_seconds=STALE_SECONDS,
        zombie_timeout_seconds=120, worker_lost_after_seconds=LOST_AFTER_SECONDS, redispatch_limit=2,
        auto_disable_threshold=0,
    )  # fmt: skip
    Life.intake, Life.dead_letters = intake, dead_letters
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=int(EXAMPLES or 60),
            stateful_step_count=50,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
