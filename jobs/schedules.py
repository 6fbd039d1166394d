"""From a job's columns to the pure Schedule, and its coming ticks."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any, cast

from jobs.models import Job
from jobs.scheduling.policy import Schedule, next_fire, upcoming


def schedule_of(job: Job) -> Schedule:
    """The job's schedule as a value. Raises ValueError when its columns do not make one."""
    return _schedule(
        job.cron,
        job.execute_at,
        job.timezone,
        job.dst_gap,
        job.dst_overlap,
        job.starts_at,
        job.ends_at,
        job.jitter_seconds,
    )


@lru_cache(maxsize=10_000)
def _schedule(cron: str, execute_at: datetime | None, zone: str, gap: str, overlap: str, *bounds: Any) -> Schedule:
    starts_at, ends_at, jitter_seconds = bounds
    return Schedule(
        cron=cron or None,
        execute_at=execute_at,
        timezone=zone,
        dst_gap=cast(Any, gap),
        dst_overlap=cast(Any, overlap),
        starts_at=starts_at,
        ends_at=ends_at,
        jitter_seconds=jitter_seconds,
    )


def first_tick(job: Job, *, after: datetime) -> datetime | None:
    """The next tick of an active job: later than `after` and than every tick it already had.

    A one-time job whose time has passed unfired is due at once.
    """
    if job.execute_at is not None:
        return job.execute_at if job.last_tick_at is None or job.execute_at > job.last_tick_at else None
    return next_fire(schedule_of(job), max(after, job.last_tick_at) if job.last_tick_at else after)


def coming_ticks(job: Job, *, after: datetime, count: int) -> list[datetime]:
    """The next `count` ticks, in UTC; empty for a paused job or one that runs only on call."""
    return upcoming(schedule_of(job), after, count) if job.is_active and job.schedule_kind != "manual" else []
