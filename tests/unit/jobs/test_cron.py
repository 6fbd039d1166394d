"""Cron text is read, refused with a reason, and fires when another library says so."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from jobs.scheduling.cron import Cron, CronError
from jobs.scheduling.describe import describe
from jobs.scheduling.dst import fires_after, next_after

START = datetime(2026, 1, 1, tzinfo=UTC)
ZONE = ZoneInfo("UTC")


def fires(text: str, count: int, after: datetime = START) -> list[str]:
    found = islice(fires_after(Cron.parse(text), ZONE, after), count)
    return [fire.strftime("%a %m-%d %H:%M:%S") for fire in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 */5 * * * *", ["Thu 01-01 00:05:00", "Thu 01-01 00:10:00"]),
        ("*/15 * * * * *", ["Thu 01-01 00:00:15", "Thu 01-01 00:00:30"]),
        ("*/5 * * * *", ["Thu 01-01 00:05:00", "Thu 01-01 00:10:00"]),
        ("  30\t2  * * mon ", ["Mon 01-05 02:30:00", "Mon 01-12 02:30:00"]),
        ("0 0 * FEB-mar 1,3-5/2", ["Mon 02-02 00:00:00", "Wed 02-04 00:00:00"]),
        ("0 0 L * *", ["Sat 01-31 00:00:00", "Sat 02-28 00:00:00"]),
        ("0 0 1,L * ?", ["Sat 01-31 00:00:00", "Sun 02-01 00:00:00"]),
        ("0 0 ? * L5", ["Fri 01-30 00:00:00", "Fri 02-27 00:00:00"]),
        ("0 0 ? * LFRI", ["Fri 01-30 00:00:00", "Fri 02-27 00:00:00"]),
        ("0 0 * * FRI#2", ["Fri 01-09 00:00:00", "Fri 02-13 00:00:00"]),
        ("0 0 * * MON-TUE#1,7#1", ["Sun 01-04 00:00:00", "Mon 01-05 00:00:00"]),
        ("0 0 * * SAT-SUN", ["Sat 01-03 00:00:00", "Sun 01-04 00:00:00"]),
        ("0 0 * * 5-7", ["Fri 01-02 00:00:00", "Sat 01-03 00:00:00"]),
        ("0 0 * * MON-MON", ["Mon 01-05 00:00:00", "Mon 01-12 00:00:00"]),
        ("10/20 * * * *", ["Thu 01-01 00:10:00", "Thu 01-01 00:30:00"]),
        ("0 0 29 2 *", ["Tue 02-29 00:00:00", "Sun 02-29 00:00:00"]),
        ("@hourly", ["Thu 01-01 01:00:00", "Thu 01-01 02:00:00"]),
        ("@Daily", ["Fri 01-02 00:00:00", "Sat 01-03 00:00:00"]),
        ("@midnight", ["Fri 01-02 00:00:00", "Sat 01-03 00:00:00"]),
        ("@weekly", ["Sun 01-04 00:00:00", "Sun 01-11 00:00:00"]),
        ("@monthly", ["Sun 02-01 00:00:00", "Sun 03-01 00:00:00"]),
        ("@yearly", ["Fri 01-01 00:00:00", "Sat 01-01 00:00:00"]),
    ],
)
def test_a_cron_fires_when_its_fields_say(text: str, expected: list[str]) -> None:
    assert fires(text, 2) == expected


@pytest.mark.parametrize("text", ["0 0 13 * FRI", "0 0 13-31/20 * FRI"])
def test_day_and_weekday_are_alternatives_when_both_are_given(text: str) -> None:
    assert fires(text, 4) == ["Fri 01-02 00:00:00", "Fri 01-09 00:00:00", "Tue 01-13 00:00:00", "Fri 01-16 00:00:00"]


def test_a_stepped_day_is_an_alternative_too() -> None:
    assert fires("0 0 */15 * SUN", 4) == [
        "Sun 01-04 00:00:00",
        "Sun 01-11 00:00:00",
        "Fri 01-16 00:00:00",
        "Sun 01-18 00:00:00",
    ]


def test_a_day_that_its_month_lacks_leaves_the_weekday() -> None:
    assert fires("0 0 31 2 MON", 2) == ["Mon 02-02 00:00:00", "Mon 02-09 00:00:00"]


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("", None, "cron is empty; give 5 fields (minute hour day month weekday) or 6 (second first)"),
        ("* * * *", None, "cron has 4 fields; give 5 (minute hour day month weekday) or 6 (second first)"),
        ("0 0 0 1 1 * 2030", "year", "a year is not supported"),
        ("* " * 100 + "*", None, "cron has 201 characters; at most 200 are allowed"),
        ("0 25 * * *", "hour", "hour: 25 is out of range 0-23"),
        ("61 0 0 * * *", "second", "second: 61 is out of range 0-59"),
        ("0 0 0 * *", "day", "day: 0 is out of range 1-31"),
        ("0 0 * 13 *", "month", "month: 13 is out of range 1-12"),
        ("0 0 * * 8", "weekday", "weekday: 8 is out of range 0-7"),
        ("0 0 * FOO *", "month", "month: FOO is not a number, name (such as JAN), range, step or list"),
        ("1.5 * * * *", "minute", "minute: 1.5 is not a number, range, step or list"),
        ("٣ * * * *", "minute", "is not a number"),
        ("-1 * * * *", "minute", "minute: -1 is negative"),
        ("5- * * * *", "minute", "minute: 5- is incomplete"),
        ("1,,2 * * * *", "minute", "minute: a value is missing between two commas"),
        ("*/0 * * * *", "minute", "minute: the step /0 is out of range 1-60"),
        ("*/90 * * * *", "minute", "minute: the step /90 is out of range 1-60"),
        (f"*/{'9' * 150} * * * *", "minute", "is out of range 1-60"),
        ("0 22-2 * * *", "hour", "hour: 22-2 runs backwards; write 22-23,0-2"),
        ("0 0 * NOV-JAN *", "month", "month: NOV-JAN runs backwards; write NOV-DEC,JAN"),
        ("0 0 * * FRI-MON", "weekday", "weekday: FRI-MON runs backwards; write FRI-SAT,SUN-MON"),
        ("? * * * *", "minute", "minute: ? may stand only for the day or the weekday; write *"),
        ("0 0 ?,1 * *", "day", "day: ? stands alone; it cannot be combined"),
        ("H * * * *", "minute", "minute: H (a random or hashed value) is not supported"),
        ("R(1-5) * * * *", "minute", "minute: R (a random or hashed value) is not supported"),
        ("0 0 15W * *", "day", "day: W (nearest working day) is not supported"),
        ("0 0 L-3 * *", "day", "day: L-3 is not supported; L stands alone or in a list (1,L)"),
        ("0 0 * * 5L", "weekday", "weekday: 5L is not supported; the last Friday of the month is L5"),
        ("0 0 * * MON#6", "weekday", "weekday: MON#6: the number after # is out of range 1-5"),
        ("0 0 * * MON#1,FRI", "weekday", "weekday: # and L cannot be mixed with plain weekdays"),
        ("0 0 15 * MON#1", "weekday", "weekday: # and L weekdays cannot be combined with a day of the month"),
        ("0 0 30 2 *", "day", "day: day 30 does not occur in month 2: this cron would never fire"),
        ("0 0 31 2,4,JUN ?", "day", "day: day 31 does not occur in month 2,4,JUN: this cron would never fire"),
        ("@reboot", None, "@reboot is not known; allowed are @hourly, @daily"),
        ("@every 5m", None, "@every 5m is not known"),
    ],
)
def test_a_refused_cron_names_the_field_and_the_reason(text: str, field: str | None, message: str) -> None:
    with pytest.raises(CronError) as caught:
        Cron.parse(text)
    assert message in str(caught.value)
    assert caught.value.field == field


def test_spaces_and_case_do_not_make_another_cron() -> None:
    assert Cron.parse(" 0  0 * * mon") is Cron.parse("0 0 * * MON")
    assert Cron.parse("@DAILY").text == "@daily"


def random_field(dice: random.Random, low: int, high: int) -> str:
    """A field as people write it: star, number, list, range, or step."""

    def part() -> str:
        start, end = sorted(dice.sample(range(low, high + 1), 2))  # cronsim reads 9-9/3 as 9/3
        return dice.choice([str(start), f"{start}-{end}", f"{start}-{end}/{dice.randint(1, 7)}"])

    if dice.random() < 0.3:
        return dice.choice(["*", f"*/{dice.randint(1, high - low + 1)}"])
    return ",".join(part() for _ in range(dice.randint(1, 3)))


def random_cron(dice: random.Random) -> str:
    """Six fields. A day or weekday that begins with * stands alone: there the two libraries differ on purpose."""
    second, minute, hour = random_field(dice, 0, 59), random_field(dice, 0, 59), random_field(dice, 0, 23)
    day, weekday = random_field(dice, 1, 31), random_field(dice, 0, 6)
    day = dice.choice([day, day, "L"])
    if day.startswith("*") or weekday.startswith("*"):
        weekday = "*"
    return f"{second} {minute} {hour} {day} {random_field(dice, 1, 12)} {weekday}"


@pytest.mark.parametrize("seed", range(20))
def test_random_crons_fire_in_utc_as_in_another_library(seed: int) -> None:
    dice = random.Random(seed)
    compared = 0
    while compared < 15:
        text = random_cron(dice)
        after = START + timedelta(seconds=dice.randrange(10**9))
        try:
            cron = Cron.parse(text)
        except CronError:
            assert "29" in text or "30" in text or "31" in text  # only days that their months lack
            continue
        expected = [fire.replace(tzinfo=UTC) for fire in islice(CronSim(text, after.replace(tzinfo=None)), 8)]
        assert list(islice(fires_after(cron, ZONE, after), 8)) == expected, text
        compared += 1


@pytest.mark.parametrize("seed", range(20))
def test_the_time_before_a_fire_is_the_fire_before_it(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(5):
        try:
            cron = Cron.parse(random_cron(dice))
        except CronError:
            continue
        walls = [datetime(2026, 1, 1) + timedelta(seconds=dice.randrange(10**9))]
        for _ in range(8):
            following = cron.next_wall(walls[-1])
            assert following is not None
            walls.append(following)
        back = walls[-1]
        for expected in reversed(walls[1:-1]):
            previous = cron.previous_wall(back)
            assert previous == expected, cron.text
            back = expected


def test_the_calendar_ends_without_an_error() -> None:
    assert next_after(Cron.parse("0 0 1 1 *"), ZoneInfo("Asia/Tokyo"), datetime.max.replace(tzinfo=UTC)) is None
    assert Cron.parse("0 0 29 2 *").next_wall(datetime(9997, 1, 1)) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("* * * * * *", "Every second"),
        ("*/15 * * * * *", "Every 15 seconds"),
        ("* * * * *", "Every minute"),
        ("0 */5 * * * *", "Every 5 minutes"),
        ("@hourly", "Every hour"),
        ("30 * * * *", "Every hour at minute 30"),
        ("0 */2 * * *", "Every 2 hours"),
        ("30 2 * * *", "At 02:30 every day"),
        ("15 30 2 * * *", "At 02:30:15 every day"),
        ("0 9,17 * * MON-FRI", "At 09:00 and 17:00 on Monday to Friday"),
        ("*/15 * * * SAT-SUN", "Every 15 minutes, on Saturday and Sunday"),
        ("0 12 * * MON,WED,SUN", "At 12:00 on Monday, Wednesday and Sunday"),
        ("0 0 1,15 * *", "At 00:00 on day 1 and day 15 of every month"),
        ("0 0 L JAN,JUL *", "At 00:00 on the last day of January and July"),
        ("0 0 * * L5", "At 00:00 on the last Friday of every month"),
        ("0 0 * * TUE#2", "At 00:00 on the second Tuesday of every month"),
        ("0 0 * 6 *", "At 00:00 every day in June"),
        ("*/7 * * * *", "*/7 * * * *"),
        ("0 0 13 * FRI", "0 0 13 * FRI"),
    ],
)
def test_common_crons_have_a_sentence_and_others_their_text(text: str, sentence: str) -> None:
    assert describe(Cron.parse(text)) == sentence


def test_the_sentence_names_the_zone_where_the_time_of_day_matters() -> None:
    assert describe(Cron.parse("30 2 * * *"), "Europe/Berlin") == "At 02:30 every day (Europe/Berlin)"
    assert describe(Cron.parse("*/5 * * * *"), "Europe/Berlin") == "Every 5 minutes"
