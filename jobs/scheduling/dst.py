"""What a schedule does in the missing and in the doubled hour: wall-clock times to instants; pure.

Called by `policy.py`. Three kinds of schedule meet a clock change in three ways:

    every_hour  (`*/15 * * * *`)  real rhythm: each half of an overlap fires, a gap holds nothing
    stepped     (`0 */2 * * *`)   a missing time is left out, nothing extra; a doubled one follows `overlap`
    named       (`30 2 * * *`)    each named time once a day: a missing one follows `gap`, a doubled one `overlap`

`gap` is `run_after` (the first instant after the gap; several times in one gap are one fire) or `skip`. `overlap` is
`once` (the first pass) or `twice`. All results are in UTC and strictly ordered. It never reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobs.scheduling.cron import Cron

Gap = Literal["run_after", "skip"]
Overlap = Literal["once", "twice"]

_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
# Files of the system's zone folder that are no zones: a machine's own setting, and clocks that count leap seconds.
_NO_ZONES = re.compile(r"localtime$|posixrules$|Factory$|posix/|right/")
# The longest known jump of a zone (a whole day at the date line), and a little more.
_LONGEST_JUMP = timedelta(hours=25)
# Python's calendar is the years 1-9999; nothing fires at its edges, where an offset would fall out of it.
_YEARS = range(2, 9998)


@dataclass(frozen=True, slots=True)
class Change:
    """A zone's offset changes at `at` (naive UTC): a gap when `after` is larger than `before`, else an overlap."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def last_wall_before(self) -> datetime:
        """What the clock would show at the change had it not changed: the end of an overlap, the start of a gap."""
        return self.at + self.before

    @property
    def first_wall_after(self) -> datetime:
        """What the clock shows at the change: the start of an overlap, the end of a gap."""
        return self.at + self.after


def zone(name: str) -> ZoneInfo:
    """The IANA time zone of this name. Raises ValueError for an unknown one, and for names that mean something else
    on each machine.
    """
    try:
        if not _NO_ZONES.match(name):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        pass
    raise ValueError(f"time zone {name!r} is not known; give an IANA name such as Europe/Berlin or UTC")


def next_after(
    cron: Cron, tz: ZoneInfo, after: datetime, *, gap: Gap = "run_after", overlap: Overlap = "once"
) -> datetime | None:
    """The first fire later than `after` (aware), in UTC, or None when the calendar ends first."""
    if after.year not in _YEARS:
        return None
    at = after.astimezone(UTC).replace(tzinfo=None, microsecond=0)
    run_after_gap, once = _rules(cron, gap, overlap)
    offset = _offset(tz, at)
    wall = at + offset
    if once:
        for change in _changes(tz, at - _LONGEST_JUMP, at):
            wall = max(wall, change.last_wall_before - _SECOND)
    while (fire_wall := cron.next_wall(wall)) is not None:
        fire = fire_wall - offset
        crossed = next(_changes(tz, at, fire), None)
        if crossed is None:
            return fire.replace(tzinfo=UTC)
        if run_after_gap and fire_wall < crossed.first_wall_after:
            return crossed.at.replace(tzinfo=UTC)
        at, offset = crossed.at, crossed.after
        wall = (max(crossed.first_wall_after, crossed.last_wall_before) if once else crossed.first_wall_after) - _SECOND
    return None


def previous_before(
    cron: Cron, tz: ZoneInfo, before: datetime, *, gap: Gap = "run_after", overlap: Overlap = "once"
) -> datetime | None:
    """The last fire earlier than `before` (aware), in UTC, or None when the calendar begins first."""
    if before.year not in _YEARS:
        return None
    exact = before.astimezone(UTC).replace(tzinfo=None)
    at = exact if exact.microsecond == 0 else exact.replace(microsecond=0) + _SECOND
    run_after_gap, once = _rules(cron, gap, overlap)
    offset = _offset(tz, at - _SECOND)
    wall = at + offset
    while (fire_wall := cron.previous_wall(wall)) is not None:
        fire = fire_wall - offset
        change = max(_changes(tz, fire - _LONGEST_JUMP, at - _SECOND), key=lambda change: change.at, default=None)
        if change is None or (fire >= change.at and not (once and fire_wall < change.last_wall_before)):
            return fire.replace(tzinfo=UTC)
        if run_after_gap and fire < change.at and fire_wall >= change.last_wall_before:
            return change.at.replace(tzinfo=UTC)
        at, offset, wall = change.at, change.before, change.last_wall_before
    return None


def fires_after(
    cron: Cron, tz: ZoneInfo, after: datetime, *, gap: Gap = "run_after", overlap: Overlap = "once"
) -> Iterator[datetime]:
    """Every fire later than `after`, in UTC, ascending."""
    fire = next_after(cron, tz, after, gap=gap, overlap=overlap)
    while fire is not None:
        yield fire
        fire = next_after(cron, tz, fire, gap=gap, overlap=overlap)


def _rules(cron: Cron, gap: Gap, overlap: Overlap) -> tuple[bool, bool]:
    """Whether a missing time runs after the gap, and whether only the first pass of a doubled time fires."""
    return cron.rhythm == "named" and gap == "run_after", cron.rhythm != "every_hour" and overlap == "once"


def _offset(tz: ZoneInfo, at: datetime) -> timedelta:
    return at.replace(tzinfo=UTC).astimezone(tz).replace(tzinfo=None) - at


def _changes(tz: ZoneInfo, after: datetime, until: datetime) -> Iterator[Change]:
    """The zone's changes later than `after`, at the latest at `until`, ascending."""
    for year in range(after.year, until.year + 1):
        for change in _changes_of_year(tz, year):
            if after < change.at <= until:
                yield change


@lru_cache(maxsize=2048)
def _changes_of_year(tz: ZoneInfo, year: int) -> tuple[Change, ...]:
    """zoneinfo keeps its table to itself: compare the offsets of each two days and narrow the difference down.

    The offset of a wall-clock time costs a fiftieth of that of an instant: where it is the same for days around, the
    days themselves are not looked at.
    """
    if tz.key == "UTC" or year not in _YEARS:
        return ()
    changes = []
    first = datetime(year, 1, 1)
    around = [tz.utcoffset(first + number * _DAY) for number in range(-2, 370)]
    for number in range((datetime(year + 1, 1, 1) - first).days):
        if len(set(around[number : number + 6])) == 1:
            continue
        day, tomorrow = first + number * _DAY, first + (number + 1) * _DAY
        before, after = _offset(tz, day), _offset(tz, tomorrow)
        if before != after:
            changes.append(Change(_moment_of_change(tz, day, tomorrow), before, after))
    return tuple(changes)


def _moment_of_change(tz: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The first second with the new offset, between a moment with the old one and a moment with the new one."""
    before = _offset(tz, low)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        low, high = (middle, high) if _offset(tz, middle) == before else (low, middle)
    return high
