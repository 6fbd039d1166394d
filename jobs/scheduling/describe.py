"""A cron as a short English sentence, for people; called by pages and the API, never by anything that decides.

The shapes that people write most have a sentence; any other schedule is described by its own text.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs.scheduling.cron import ALIASES, Cron
from jobs.scheduling.fields import FieldValues

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_MOST_TIMES = 4


def describe(cron: Cron, tz: str | None = None) -> str:
    """For example "Every 15 seconds", or "At 02:30 on Monday to Friday (Europe/Berlin)" with a zone's name given.

    The zone is added where the sentence names a time of day. Falls back to the cron text.
    """
    zone = f" ({tz})" if tz else ""
    days = _days(cron)
    if days is None:
        return ALIASES.get(cron.text, cron.text)
    if (interval := _interval(cron)) is not None:
        return interval if days == "every day" else f"{interval}, {days}{zone}"
    if (times := _times(cron)) is not None:
        return f"At {times} {days}{zone}"
    return cron.text


def _interval(cron: Cron) -> str | None:
    """ "Every 15 seconds" and its like, when the schedule is the same in each minute, hour or day."""
    every_hour = len(cron.hour.numbers) == 24
    every_minute = every_hour and len(cron.minute.numbers) == 60
    if every_minute and (count := _even_step(cron.second, 60)):
        return _every(count, "second")
    if cron.second.numbers != (0,):
        return None
    if every_hour and (count := _even_step(cron.minute, 60)):
        return _every(count, "minute")
    if len(cron.minute.numbers) == 1 and (count := _even_step(cron.hour, 24)):
        minute = cron.minute.numbers[0]
        return _every(count, "hour") + (f" at minute {minute}" if minute else "")
    return None


def _even_step(values: FieldValues, size: int) -> int | None:
    """The step of values that start at 0 and go evenly round, when there is more than one of them."""
    numbers = values.numbers
    if len(numbers) < 2 or size % len(numbers):
        return None
    step = size // len(numbers)
    return step if numbers == tuple(range(0, size, step)) else None


def _every(count: int, unit: str) -> str:
    return f"Every {unit}" if count == 1 else f"Every {count} {unit}s"


def _times(cron: Cron) -> str | None:
    """ "02:30" or "09:00 and 17:00", when a day has few fires."""
    seconds, minutes, hours = cron.second.numbers, cron.minute.numbers, cron.hour.numbers
    if len(seconds) > 1 or len(hours) * len(minutes) > _MOST_TIMES:
        return None
    tail = f":{seconds[0]:02}" if seconds[0] else ""
    return _and([f"{hour:02}:{minute:02}{tail}" for hour in hours for minute in minutes])


def _days(cron: Cron) -> str | None:
    """ "every day", "on Monday to Friday", "on day 1 of every month"; None when it takes more words."""
    day, month, weekday = cron.day, cron.month, cron.weekday
    every_month = len(month.numbers) == 12
    if day.is_any and weekday.is_any:
        return "every day" if every_month else f"every day in {_months(month)}"
    if day.is_any and not weekday.nth:
        return f"on {_weekdays(weekday.numbers)}" + ("" if every_month else f" in {_months(month)}")
    if day.is_any and len(weekday.nth) == 1:
        (number, nth), which = weekday.nth[0], ("last", "first", "second", "third", "fourth", "fifth")
        return f"on the {which[max(nth, 0)]} {_DAYS[number]} of {'every month' if every_month else _months(month)}"
    if weekday.is_any and not day.is_any and len(day.numbers) + day.last_day <= _MOST_TIMES:
        names = [f"day {number}" for number in day.numbers] + (["the last day"] if day.last_day else [])
        return f"on {_and(names)} of {'every month' if every_month else _months(month)}"
    return None


def _weekdays(numbers: Sequence[int]) -> str:
    ordered = sorted(numbers, key=lambda number: number or 7)
    positions = [number or 7 for number in ordered]
    if len(ordered) > 2 and positions[-1] - positions[0] == len(ordered) - 1:
        return f"{_DAYS[ordered[0]]} to {_DAYS[ordered[-1]]}"
    return _and([_DAYS[number] for number in ordered])


def _months(month: FieldValues) -> str:
    return _and([_MONTHS[number - 1] for number in month.numbers])


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
