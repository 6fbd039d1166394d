"""Born: due jobs become occurrences.

One pass is one transaction: claim due jobs (rows that another dispatcher has locked are skipped), work out which
ticks are owed, write occurrences and outbox messages, advance each job. Any number of dispatchers may run: a tick
has one occurrence because the job's `last_tick_at` only grows and (job, scheduled_for) is unique.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from django.db import DatabaseError, IntegrityError, transaction

from jobs import announcer
from jobs.conf import conf
from jobs.models import Job
from jobs.schedules import schedule_of
from jobs.scheduling.policy import MAX_COUNTED, Misfire, Owed, jittered, owed
from occurrences import births, sql
from occurrences.models import Occurrence
from tickwork.logs import get_logger

log = get_logger("tickwork.dispatch")
Ticks = frozenset[datetime]
UNFINISHED = "an earlier occurrence of this job was not finished"


class Dispatcher:
    """The dispatcher's passes; holds nothing between them."""

    role = "dispatch"

    def tick(self, *, now: datetime) -> int:
        """Dispatch up to `dispatch_batch` due jobs; returns how many jobs were handled."""
        try:
            return self._pass(now, limit=conf().dispatch_batch)
        except IntegrityError:
            # A tick that has its occurrence although the job was not advanced (a restored backup, a hand-made row).
            return sum(self._one(job, now) for job in Job.objects.due(now)[: conf().dispatch_batch])

    def sleep_until(self) -> datetime | None:
        """When the next job is due."""
        next_run_at: datetime | None = (
            Job.objects.filter(is_active=True, next_run_at__isnull=False)
            .order_by("next_run_at")
            .values_list("next_run_at", flat=True)
            .first()
        )
        return next_run_at

    def close(self) -> None:
        """Nothing to release."""

    @transaction.atomic
    def _pass(self, now: datetime, *, limit: int) -> int:
        jobs = list(Job.objects.due(now).select_for_update(skip_locked=True, no_key=True)[:limit])
        if jobs:
            self._dispatch(jobs, now)
        return len(jobs)

    @transaction.atomic
    def _one(self, job: Job, now: datetime) -> int:
        """One job of a set that met such a tick: its other ticks are dispatched, that one is passed over."""
        jobs = list(Job.objects.due(now).select_for_update(no_key=True).filter(pk=job.pk))
        rows = Occurrence.objects.filter(job=job.pk, scheduled_for__range=(job.next_run_at, now))
        existing = frozenset(tick for tick in rows.values_list("scheduled_for", flat=True) if tick)
        if existing:
            log.error("dispatch.tick_exists", job=str(job.pk), ticks=[str(tick) for tick in sorted(existing)[:10]])
        self._dispatch(jobs, now, existing)
        return 1

    def _dispatch(self, jobs: Sequence[Job], now: datetime, existing: Ticks = frozenset()) -> None:
        busy = sql.live_jobs([job.pk for job in jobs if job.concurrent_execution_policy == Job.Overlap.SKIP])
        born: list[births.Birth] = []
        advanced = []
        for job in jobs:
            try:
                due = owed(
                    schedule_of(job),
                    next_run_at=job.next_run_at,
                    now=now,
                    policy=cast(Misfire, job.misfire_policy),
                    limit=job.misfire_limit,
                    grace_seconds=conf().misfire_grace_seconds,
                    start_deadline_seconds=job.start_deadline_seconds,
                )
                template = births.template(job)
            except DatabaseError:
                raise
            except Exception as error:  # one bad schedule must never stop the loop
                log.exception("dispatch.job_broken", job=str(job.pk))
                self._set_aside(job, error, now)
                continue
            born += self._births(job, template, due, busy=job.pk in busy, existing=existing)
            last = max([*due.ticks, *filter(None, [due.dropped_until, job.last_tick_at])], default=job.next_run_at)
            advanced.append((job.pk, job.next_run_at, due.next_run_at, last))
        births.create(born, now=now)
        sql.advance_jobs(advanced)

    def _births(
        self, job: Job, template: births.Template, due: Owed, *, busy: bool, existing: Ticks
    ) -> list[births.Birth]:
        def is_new(tick: datetime) -> bool:
            return tick not in existing and (job.last_tick_at is None or tick > job.last_tick_at)

        dropped = _dropped_words(job, due)
        ticks = [tick for tick in due.ticks if is_new(tick)]
        born = []
        told_by_the_run = ticks and job.misfire_policy == Job.Misfire.FIRE_ONCE
        if due.dropped_until and is_new(due.dropped_until) and not told_by_the_run:
            born.append(
                births.Birth(
                    template=template, trigger="schedule", scheduled_for=due.dropped_until, skipped_because=dropped
                )
            )
            dropped = ""
        for tick in ticks:
            skipped = "; ".join(filter(None, [UNFINISHED, dropped])) if busy else ""
            born.append(
                births.Birth(
                    template=template,
                    trigger="schedule",
                    scheduled_for=tick,
                    not_before=jittered(tick, job.jitter_seconds, str(job.pk)) if job.jitter_seconds else None,
                    reason=dropped,
                    skipped_because=skipped,
                )
            )
            busy = busy or job.concurrent_execution_policy == Job.Overlap.SKIP
            dropped = ""
        return born

    def _set_aside(self, job: Job, error: Exception, now: datetime) -> None:
        Job.objects.filter(pk=job.pk).update(
            is_active=False,
            disabled_by=Job.DisabledBy.SCHEDULE,
            disabled_at=now,
            disabled_reason=f"its schedule or policy cannot be used: {error}"[:1000],
        )
        transaction.on_commit(lambda: announcer.announce_job(job.pk))


def _dropped_words(job: Job, due: Owed) -> str:
    if not due.dropped_from:
        return ""
    count = f"{due.dropped_count}" if due.dropped_count is not None else f"more than {MAX_COUNTED}"
    return (
        f"{count} missed tick{'' if due.dropped_count == 1 else 's'} from {due.dropped_from:%Y-%m-%d %H:%M:%S} to "
        f"{due.dropped_until:%Y-%m-%d %H:%M:%S} UTC not run (misfire policy {job.misfire_policy})"
    )
