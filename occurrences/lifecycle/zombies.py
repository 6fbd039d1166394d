"""Lost: what fell silent is found.

    Running, no heartbeat for `heartbeat_stale_seconds`             ─▶ Unknown
    Running or Unknown, silent beyond the zombie timeout            ─▶ Failed "Zombie detected", or retried
    Queued, sent, and neither run nor expired beyond the backstop   ─▶ sent again, a bounded number of times
    a disabled job whose cool-down is over                          ─▶ one probe run

All times of silence count up to the moment until which an event consumer has heard everything, and only when it has
listened for `heartbeat_stale_seconds` at least: without one, and while what workers said still waits in the queue,
nothing is declared lost. Safe to run on several instances at once, since every move is guarded.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from jobs import auto_disable
from jobs.conf import conf
from occurrences import births, messages, sql, transitions
from occurrences.failures import REFUSED
from occurrences.hearing import Hearing
from occurrences.models import Occurrence, OutboxMessage
from occurrences.run import Run, change
from occurrences.states import STARTED, Status
from tickwork.logs import get_logger

log = get_logger("tickwork.zombies")

BATCH = 500


class Zombies:
    """The zombie detector's passes; holds nothing between them."""

    role = "detect_zombies"

    def tick(self, *, now: datetime) -> int:
        """One sweep; returns how many occurrences it moved."""
        hearing = Hearing.newest()
        lost = self._silent(hearing, now) + self._unsent(hearing, now) if hearing else 0
        return lost + self._probes(now)

    def close(self) -> None:
        """Nothing to release."""

    def _silent(self, hearing: Hearing, now: datetime) -> int:
        settings = conf()
        stale_seconds = settings.heartbeat_stale_seconds

        def decide(run: Run) -> bool:
            heard_at = run.state.heartbeat_at or run.state.started_at or run.state.queued_at
            if run.status not in STARTED or hearing.silence_seconds(heard_at) <= stale_seconds:
                return False
            silence = (hearing.until - heard_at).total_seconds()
            if silence > max(settings.zombie_timeout_seconds, run.timeout_seconds):
                transitions.zombie(run, now=now, reason=f"no heartbeat for {silence:.0f} s")
            elif run.status is Status.RUNNING:
                transitions.fell_silent(run, now=now)
            else:
                return False
            return True

        stale_before = hearing.until - timedelta(seconds=stale_seconds)
        silent = Occurrence.objects.with_status(STARTED).exclude(heartbeat_at__gte=stale_before)
        return self._sweep(silent, decide, now)

    def _unsent(self, hearing: Hearing, now: datetime) -> int:
        settings = conf()

        def decide(run: Run) -> bool:
            # A retry that waits for its time leaves then, not when it was queued. One that a worker names in its
            # heartbeats has arrived and waits there for a free slot.
            state = run.state
            seen_at = max(filter(None, (state.queued_at, state.next_attempt_at, state.heartbeat_at)))
            if run.status is not Status.QUEUED or hearing.silence_seconds(seen_at) <= settings.heartbeat_stale_seconds:
                return False
            margin = settings.queued_backstop_seconds - settings.default_queue_ttl_seconds
            backstop = max(settings.queued_backstop_seconds, run.policy["queue_ttl_seconds"] + margin)
            if (hearing.until - seen_at).total_seconds() <= backstop:
                return False
            transitions.lost_by_broker(run, now=now, limit=settings.redispatch_limit)
            return True

        unpublished = OutboxMessage.objects.filter(occurrence_id=OuterRef("pk"), event_type=messages.DISPATCH)
        waiting = (
            Occurrence.objects.with_status([Status.QUEUED])
            .filter(queued_at__lt=hearing.until - timedelta(seconds=settings.queued_backstop_seconds))
            .exclude(Exists(unpublished))
        )
        return self._sweep(waiting, decide, now)

    def _sweep(self, rows: QuerySet[Occurrence], decide: Callable[[Run], bool], now: datetime) -> int:
        moved, after = 0, UUID(int=0)
        while ids := list(rows.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:BATCH]):
            try:
                moved += sum(change(ids, decide, now=now).values())
            except REFUSED:
                moved += sum(self._one(identifier, decide, now) for identifier in ids)
            after = ids[-1]
        return moved

    def _one(self, identifier: UUID, decide: Callable[[Run], bool], now: datetime) -> int:
        """One of a set in which something is wrong: that must not keep the others from being found."""
        try:
            return sum(change([identifier], decide, now=now).values())
        except REFUSED:
            log.exception("zombies.run_broken", occurrence=str(identifier))
            return 0

    @transaction.atomic
    def _probes(self, now: datetime) -> int:
        jobs = auto_disable.claim_probes(now=now)
        busy = sql.live_jobs([job.pk for job in jobs])  # what still runs is probe enough
        born = []
        for job in jobs:
            if job.pk in busy:
                continue
            try:
                template = births.template(job)
            except ValueError:
                log.exception("zombies.probe_impossible", job=str(job.pk))
                continue
            born.append(births.Birth(template=template, trigger="probe", reason="probe run after a cool-down"))
        births.create(born, now=now)
        return len(born)
