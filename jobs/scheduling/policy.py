"""Given the last tick and now: which ticks are owed. Bounds, misfire, deadline and jitter; pure.

The dispatcher calls `owed` for each due job, the definitions call `next_fire`, the pages call `upcoming`. A *tick* is a
due time; it is the identity of a run (`scheduled_for`), and jitter never changes it. Everything here finds its ticks
from `now` backwards or forwards, a bounded number of them: a month of missed seconds costs as much as an hour. It never
reads a clock and never writes anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from jobs.scheduling import dst
from jobs.scheduling.cron import Cron

Misfire = Literal["fire_once", "skip", "catch_up"]

# Most ticks that one call of `owed` hands out (further on-time ones wait for the next call), and most that catch_up
# keeps whatever its limit says.
MAX_TICKS = 500
# Dropped ticks are counted up to here; more are reported as None.
MAX_COUNTED = 200

_MICROSECOND = timedelta(microseconds=1)
# Thirty years: a longer grace or deadline is the same as none, and would leave the calendar.
_LONGEST_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a job is due: by cron, once at `execute_at`, or, with neither, only on call.

    `starts_at` and `ends_at` bound its ticks and are themselves included. All datetimes are aware.
    Raises ValueError (CronError for the cron text) when it is made of values that are not allowed.
    """

    cron: str | None = None
    execute_at: datetime | None = None
    timezone: str = "UTC"
    dst_gap: dst.Gap = "run_after"
    dst_overlap: dst.Overlap = "once"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter_seconds: float = 0.0
    _cron: Cron | None = field(init=False, repr=False, compare=False)
    _once: datetime | None = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.cron and self.execute_at:
            raise ValueError("a schedule has a cron or an execute_at, not both")
        for name in ("execute_at", "starts_at", "ends_at"):
            value = getattr(self, name)
            if value is not None and value.utcoffset() is None:
                raise ValueError(f"{name} needs a UTC offset")
        if self.starts_at and self.ends_at and self.ends_at <= self.starts_at:
            raise ValueError("ends_at must be later than starts_at")
        if self.execute_at and not (self.starts_at or self.execute_at) <= self.execute_at <= (
            self.ends_at or self.execute_at
        ):
            raise ValueError("execute_at lies outside starts_at and ends_at; it would never run")
        _one_of("dst_gap", self.dst_gap, get_args(dst.Gap))
        _one_of("dst_overlap", self.dst_overlap, get_args(dst.Overlap))
        if not 0 <= self.jitter_seconds < float("inf"):
            raise ValueError(f"jitter_seconds: {self.jitter_seconds} must be 0 or more")
        object.__setattr__(self, "_once", self.execute_at.astimezone(UTC) if self.execute_at else None)
        object.__setattr__(self, "_zone", dst.zone(self.timezone))
        object.__setattr__(self, "_cron", Cron.parse(self.cron) if self.cron else None)


@dataclass(frozen=True)
class Owed:
    """What one look at a job came to.

    `ticks` are to run now, ascending. `next_run_at` is the tick to store, later than each of them; it may be due
    already when there were more than MAX_TICKS. `dropped_from` and `dropped_until` are the first and the last dropped
    tick, None when none was; `dropped_count` is None when they are more than MAX_COUNTED.
    """

    ticks: list[datetime]
    next_run_at: datetime | None
    dropped_count: int | None = 0
    dropped_from: datetime | None = None
    dropped_until: datetime | None = None


def next_fire(schedule: Schedule, after: datetime) -> datetime | None:
    """The first tick later than `after`, in UTC, or None when there is none."""
    if schedule.starts_at is not None:
        after = max(after, schedule.starts_at - _MICROSECOND)
    if schedule._cron is not None:
        tick = dst.next_after(schedule._cron, schedule._zone, after, gap=schedule.dst_gap, overlap=schedule.dst_overlap)
    else:
        tick = schedule._once if schedule._once is not None and schedule._once > after else None
    return None if tick is None or (schedule.ends_at is not None and tick > schedule.ends_at) else tick


def previous_fire(schedule: Schedule, before: datetime) -> datetime | None:
    """The last tick earlier than `before`, in UTC, or None when there is none."""
    if schedule.ends_at is not None:
        before = min(before, schedule.ends_at + _MICROSECOND)
    if schedule._cron is not None:
        tick = dst.previous_before(
            schedule._cron, schedule._zone, before, gap=schedule.dst_gap, overlap=schedule.dst_overlap
        )
    else:
        tick = schedule._once if schedule._once is not None and schedule._once < before else None
    return None if tick is None or (schedule.starts_at is not None and tick < schedule.starts_at) else tick


def upcoming(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """The first `count` ticks later than `after`, in UTC; fewer when the schedule ends."""
    return list(islice(_ticks_after(schedule, after), count))


def jittered(tick: datetime, jitter_seconds: float, seed: str) -> datetime:
    """When the tick's run is sent: at the tick or up to `jitter_seconds` later, the same for each (seed, tick).

    `seed` is the job's id, so that jobs with one cron text spread out.
    """
    if jitter_seconds <= 0:
        return tick
    digest = hashlib.blake2b(f"{seed}|{tick.astimezone(UTC).isoformat()}".encode(), digest_size=8).digest()
    return tick + timedelta(seconds=jitter_seconds * (int.from_bytes(digest, "big") / 2**64))


def owed(
    schedule: Schedule,
    *,
    next_run_at: datetime | None,
    now: datetime,
    policy: Misfire,
    limit: int = 10,
    grace_seconds: float = 5.0,
    start_deadline_seconds: float | None = None,
) -> Owed:
    """Which ticks from `next_run_at` (the stored one) until `now` are to run, and where to go on.

    1. A tick at most `grace_seconds` late is on time and always runs; an older one is missed.
    2. Of the missed ones, fire_once runs the latest, skip none, catch_up the latest `limit` (at most MAX_TICKS).
    3. A tick later than `start_deadline_seconds` is dropped whatever else is said, also an on-time one.

    No tick earlier than `next_run_at` is ever returned. Raises ValueError for an unknown policy or a negative number.
    """
    _one_of("policy", policy, get_args(Misfire))
    if not min(limit, grace_seconds, start_deadline_seconds or 0) >= 0:
        raise ValueError("limit, grace_seconds and start_deadline_seconds must be 0 or more")
    if next_run_at is None or next_run_at > now:
        return Owed([], next_run_at)
    first = next_fire(schedule, next_run_at - _MICROSECOND)
    if first is None or first > now:
        return Owed([], first)

    earliest = first if start_deadline_seconds is None else max(first, _earlier(now, start_deadline_seconds))
    on_time_from = max(earliest, _earlier(now, grace_seconds))
    most_missed = {"fire_once": 1, "skip": 0, "catch_up": min(limit, MAX_TICKS)}[policy]
    ticks: list[datetime] = []
    following: datetime | None = first
    if first < on_time_from:
        ticks += reversed(list(islice(_ticks_back(schedule, on_time_from, earliest), most_missed)))
        following = next_fire(schedule, on_time_from - _MICROSECOND)
    while following is not None and following <= now and len(ticks) < MAX_TICKS:
        ticks.append(following)
        following = next_fire(schedule, following)
    return Owed(ticks, following, *_dropped(schedule, first, ticks[0] if ticks else now + _MICROSECOND))


def _dropped(
    schedule: Schedule, first: datetime, kept_from: datetime
) -> tuple[int | None, datetime | None, datetime | None]:
    """Count, first and last of the ticks from `first` (a tick) up to `kept_from`, not included."""
    if first >= kept_from:
        return 0, None, None
    gone = takewhile(lambda tick: tick < kept_from, _ticks_after(schedule, first - _MICROSECOND))
    count = sum(1 for _ in islice(gone, MAX_COUNTED + 1))
    return (count if count <= MAX_COUNTED else None), first, previous_fire(schedule, kept_from)


def _ticks_after(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    tick = next_fire(schedule, after)
    while tick is not None:
        yield tick
        tick = next_fire(schedule, tick)


def _ticks_back(schedule: Schedule, before: datetime, earliest: datetime) -> Iterator[datetime]:
    """Ticks earlier than `before`, latest first, none earlier than `earliest`."""
    tick = previous_fire(schedule, before)
    while tick is not None and tick >= earliest:
        yield tick
        tick = previous_fire(schedule, tick)


def _earlier(now: datetime, seconds: float) -> datetime:
    return now - timedelta(seconds=min(seconds, _LONGEST_SECONDS))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is not known; allowed are {', '.join(allowed)}")
