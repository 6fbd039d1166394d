"""One field of a cron text: which values it names, or what is wrong with it.

Called by `cron.py` for each field. Numbers, names (MON, JAN), ranges, steps and lists in any field; `?` and `L` in the
day, `?`, `L5` (last Friday) and `FRI#2` (second Friday) in the weekday. A range never wraps: `22-2` is refused, with
the spelling that is meant; only a weekday range may end on Sunday (`SAT-SUN`). It never looks at the other fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

LAST_DAY = "L"
_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class CronError(ValueError):
    """A cron text that is not accepted. `field` names the offending field, None when it is the text as a whole."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


@dataclass(frozen=True, eq=False)
class Field:
    """What one field may contain."""

    name: str
    low: int
    high: int
    names: Mapping[str, int]


SECOND = Field("second", 0, 59, {})
MINUTE = Field("minute", 0, 59, {})
HOUR = Field("hour", 0, 23, {})
DAY = Field("day", 1, 31, {})
MONTH = Field("month", 1, 12, {name: number for number, name in enumerate(_MONTH_NAMES, start=1)})
WEEKDAY = Field("weekday", 0, 6, {name: number for number, name in enumerate(_WEEKDAY_NAMES)})


@dataclass(frozen=True)
class FieldValues:
    """The values that a field names, ascending.

    `is_any` is true for `*` and `?` only. `is_open_step` is true for one step to the end of the range (`*/2`, `1/3`).
    `last_day` is the day's `L`. `nth` pairs a weekday with 1-5, or with -1 for the last one in the month.
    """

    text: str
    numbers: tuple[int, ...]
    is_any: bool = False
    is_open_step: bool = False
    last_day: bool = False
    nth: tuple[tuple[int, int], ...] = ()


_PART = re.compile(r"(?P<start>\*|[A-Z0-9]+)(?:-(?P<end>[A-Z0-9]+))?(?:/(?P<step>[0-9]+))?")
_NTH = re.compile(r"(?P<days>[A-Z0-9]+(?:-[A-Z0-9]+)?)#(?P<nth>[0-9]+)")
_LAST_WEEKDAY = re.compile(r"L([A-Z0-9]+)")


def parse_field(field: Field, text: str) -> FieldValues:
    """The values of `text` (upper case, no spaces). Raises CronError that names the field and the rule."""
    if text == "?":
        if field not in (DAY, WEEKDAY):
            raise CronError("? may stand only for the day or the weekday; write *", field=field.name)
        return FieldValues(text, tuple(range(field.low, field.high + 1)), is_any=True)
    numbers: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last_day = False
    parts = text.split(",")
    for part in parts:
        if field is DAY and part == LAST_DAY:
            last_day = True
        elif field is WEEKDAY and ("#" in part or part.startswith("L")):
            nth.update(_nth_weekdays(part))
        else:
            numbers.update(_numbers(field, part))
    if nth and numbers:
        raise CronError("# and L cannot be mixed with plain weekdays in one list; make two jobs", field=field.name)
    is_open_step = len(parts) == 1 and "/" in text and "-" not in text
    return FieldValues(text, tuple(sorted(numbers)), text == "*", is_open_step, last_day, tuple(sorted(nth)))


def _numbers(field: Field, part: str) -> range | set[int]:
    """What one part of a list names."""
    match = _PART.fullmatch(part)
    if match is None or (match["start"] == "*" and match["end"]):
        raise CronError(_why_not(field, part), field=field.name)
    step = _step(field, match["step"])
    if match["start"] == "*":
        return range(field.low, field.high + 1, step)
    start = _value(field, match["start"], part)
    if match["end"] is None:
        return range(start, field.high + 1, step) if match["step"] else {start}
    if match["start"] == match["end"]:
        return {start}
    end = _value(field, match["end"], part)
    if field is WEEKDAY and end == 0 and (start or match["end"] == "7"):
        return {number % 7 for number in range(start, 8, step)}
    if end < start:
        raise CronError(f"{part} runs backwards; {_forwards(field, match)}", field=field.name)
    return range(start, end + 1, step)


def _value(field: Field, text: str, part: str) -> int:
    """A number or a name in `part`; Sunday is 0, also when written 7."""
    if text in field.names:
        return field.names[text]
    if not text.isdigit():
        raise CronError(_why_not(field, part), field=field.name)
    number = int(text) if len(text) < 9 else 10**9
    if field is WEEKDAY and number == 7:
        return 0
    if not field.low <= number <= field.high:
        highest = 7 if field is WEEKDAY else field.high
        raise CronError(f"{text} is out of range {field.low}-{highest}", field=field.name)
    return number


def _step(field: Field, text: str | None) -> int:
    """A step of 90 in 0-59 would fire once an hour, which nobody means who writes it."""
    if text is None:
        return 1
    step, most = int(text) if len(text) < 9 else 10**9, field.high - field.low + 1
    if not 1 <= step <= most:
        raise CronError(
            f"the step /{text} is out of range 1-{most}; a step starts anew in each round", field=field.name
        )
    return step


def _nth_weekdays(part: str) -> set[tuple[int, int]]:
    """`FRI#2`, `MON-FRI#1` and `L5`, `LFRI`."""
    if match := _NTH.fullmatch(part):
        nth = int(match["nth"][:9])
        if not 1 <= nth <= 5:
            raise CronError(f"{part}: the number after # is out of range 1-5", field=WEEKDAY.name)
        return {(day, nth) for day in _numbers(WEEKDAY, match["days"])}
    if match := _LAST_WEEKDAY.fullmatch(part):
        return {(_value(WEEKDAY, match[1], part), -1)}
    raise CronError(_why_not(WEEKDAY, part), field=WEEKDAY.name)


def _forwards(field: Field, match: re.Match[str]) -> str:
    if match["step"]:
        return "list its values instead"
    low, high = {MONTH: ("JAN", "DEC"), WEEKDAY: ("SUN", "SAT")}.get(field, (str(field.low), str(field.high)))
    start, end = match["start"], match["end"]
    return f"write {f'{start}-{high}' if start != high else start},{f'{low}-{end}' if end != low else end}"


def _why_not(field: Field, part: str) -> str:
    """The message for a part that has no meaning here, with a hint for spellings of other cron dialects."""
    if part == "":
        return "a value is missing between two commas"
    if part.startswith("-"):
        return f"{part} is negative"
    if re.fullmatch(r"[RH](\(.*\))?(/.*)?", part):
        return f"{part[0]} (a random or hashed value) is not supported; name the value, and spread jobs with jitter"
    if "?" in part:
        return "? stands alone; it cannot be combined"
    if part.endswith("W") and field is DAY:
        return "W (nearest working day) is not supported"
    if "L" in part and field is DAY:
        return f"{part} is not supported; L stands alone or in a list (1,L)"
    if field is WEEKDAY and "L" in part:
        return f"{part} is not supported; the last Friday of the month is L5 (Sunday is 0 or 7)"
    if re.fullmatch(r"[0-9]+-", part) or re.fullmatch(r".*/", part):
        return f"{part} is incomplete"
    kinds = "number, name (such as " + next(iter(field.names)) + ")" if field.names else "number"
    return f"{part} is not a {kinds}, range, step or list"
