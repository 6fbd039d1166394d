"""Cron text to fields to the next and previous wall-clock time; pure, no time zones.

Called by `dst.py`, which turns wall-clock times into instants, and by whoever validates what a person typed. croniter
finds the matching times; the text that it gets is written anew from the fields that were read here, so what is
checked is what fires. It never knows about clocks, zones or missed ticks.

Five fields are `minute hour day month weekday`; six are the same with the second first. Day and weekday are OR-ed
when both are given (neither is `*` or `?`), also when one is a step. `@hourly`, `@daily` and so on are five fields.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Literal

from croniter import croniter

from jobs.scheduling.fields import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, CronError, Field, FieldValues, parse_field

__all__ = ["MAX_LENGTH", "Cron", "CronError", "Rhythm"]

MAX_LENGTH = 200
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIVE = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)
SIX = (SECOND, *FIVE)
_LONGEST_MONTH = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
_EPOCH = datetime(1970, 1, 1)

Rhythm = Literal["every_hour", "stepped", "named"]


@dataclass(frozen=True)
class Cron:
    """A valid cron text, made by `Cron.parse` only. Two are equal when their normalised `text` is."""

    text: str
    second: FieldValues = field(compare=False, repr=False)
    minute: FieldValues = field(compare=False, repr=False)
    hour: FieldValues = field(compare=False, repr=False)
    day: FieldValues = field(compare=False, repr=False)
    month: FieldValues = field(compare=False, repr=False)
    weekday: FieldValues = field(compare=False, repr=False)
    _matcher: croniter = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Read a cron text; the same text gives the same object.

        Raises CronError, which names the field to blame, for anything that is not understood, is longer than 200
        characters, or would never fire.
        """
        if not isinstance(text, str):
            raise CronError(f"cron must be a text, not {type(text).__name__}")
        if len(text) > MAX_LENGTH:
            raise CronError(f"cron has {len(text)} characters; at most {MAX_LENGTH} are allowed")
        return _parse(" ".join(text.split()).upper())

    @property
    def rhythm(self) -> Rhythm:
        """How the schedule meets a clock change.

        `every_hour` covers all 24 hours. `stepped` counts hours (`*/2`). `named` names wall-clock times (02:30).
        """
        if len(self.hour.numbers) == 24:
            return "every_hour"
        return "stepped" if self.hour.is_open_step and len(self.hour.numbers) > 1 else "named"

    def next_wall(self, wall: datetime) -> datetime | None:
        """The first matching wall-clock time after `wall` (both naive, in whole seconds); None past year 9999."""
        return self._find(wall, forwards=True)

    def previous_wall(self, wall: datetime) -> datetime | None:
        """The last matching wall-clock time before `wall` (both naive, in whole seconds); None before year 1."""
        return self._find(wall, forwards=False)

    def _find(self, wall: datetime, *, forwards: bool) -> datetime | None:
        # croniter keeps its position in the object: a copy per call makes this safe for threads.
        matcher = copy.copy(self._matcher)
        start = (wall - _EPOCH).total_seconds()
        try:
            found: datetime = (matcher.get_next if forwards else matcher.get_prev)(datetime, start_time=start)
        except (ValueError, OverflowError):
            return None
        return found


@lru_cache(maxsize=4096)
def _parse(text: str) -> Cron:
    if text.startswith("@"):
        alias = ALIASES.get(text.lower())
        if alias is None:
            raise CronError(f"{text.lower()} is not known; allowed are {', '.join(ALIASES)}")
        parts = alias.split()
    else:
        parts = text.split()
    kinds = _kinds(len(parts))
    values = {kind: parse_field(kind, part) for kind, part in zip(kinds, parts, strict=True)}
    values.setdefault(SECOND, FieldValues("0", (0,)))
    _check_days(values[DAY], values[MONTH], values[WEEKDAY])
    return Cron(
        text=text.lower() if text.startswith("@") else text,
        second=values[SECOND],
        minute=values[MINUTE],
        hour=values[HOUR],
        day=values[DAY],
        month=values[MONTH],
        weekday=values[WEEKDAY],
        _matcher=croniter(_plain_text(values, kinds), 0.0, second_at_beginning=True),
    )


def _kinds(count: int) -> tuple[Field, ...]:
    if count == 5:
        return FIVE
    if count == 6:
        return SIX
    if count == 0:
        raise CronError("cron is empty; give 5 fields (minute hour day month weekday) or 6 (second first)")
    if count == 7:
        raise CronError("cron has 7 fields; a year is not supported, set the job's start and end instead", field="year")
    plural = "" if count == 1 else "s"
    raise CronError(f"cron has {count} field{plural}; give 5 (minute hour day month weekday) or 6 (second first)")


def _check_days(day: FieldValues, month: FieldValues, weekday: FieldValues) -> None:
    """Refuse what would never fire, and the one mix of day and weekday that cannot be OR-ed."""
    if weekday.nth and not day.is_any:
        raise CronError(
            "# and L weekdays cannot be combined with a day of the month; make two jobs", field=WEEKDAY.name
        )
    if weekday.is_any and not _day_can_occur(day, month):
        raise CronError(
            f"day {day.text} does not occur in month {month.text}: this cron would never fire", field=DAY.name
        )


def _day_can_occur(day: FieldValues, month: FieldValues) -> bool:
    return day.last_day or any(day.numbers[0] <= _LONGEST_MONTH.get(number, 31) for number in month.numbers)


def _plain_text(values: dict[Field, FieldValues], kinds: tuple[Field, ...]) -> str:
    """The fields as plain numbers. A day that cannot occur is left out: each search would look for it in 50 years."""
    day = values[DAY]
    if not day.is_any and not _day_can_occur(day, values[MONTH]):
        values = {**values, DAY: FieldValues("*", (), is_any=True)}
    return " ".join(_plain(values[kind]) for kind in kinds)


def _plain(values: FieldValues) -> str:
    if values.is_any:
        return "*"
    if values.nth:
        return ",".join(f"l{day}" if nth < 0 else f"{day}#{nth}" for day, nth in values.nth)
    return ",".join([*map(str, values.numbers), *(["l"] if values.last_day else [])])
