"""Around each clock change a schedule fires as the table says, in both directions, and as a slow re-count says."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from jobs.scheduling.cron import Cron
from jobs.scheduling.dst import Gap, Overlap, fires_after, next_after, previous_before, zone

MINUTE = timedelta(minutes=1)


def local_fires(
    text: str, tz: str, day: str, hours: tuple[int, int], gap: Gap = "run_after", overlap: Overlap = "once"
) -> list[str]:
    """The fires of one local day between two hours, as local times; offsets are shown where a time is doubled."""
    where = zone(tz)
    start, end = (datetime.fromisoformat(day).replace(hour=hour, tzinfo=where) for hour in hours)
    found = takewhile(
        lambda fire: fire < end.astimezone(UTC),
        fires_after(Cron.parse(text), where, start.astimezone(UTC) - timedelta(seconds=1), gap=gap, overlap=overlap),
    )
    return [fire.astimezone(where).strftime("%H:%M%z") for fire in found]


SPRING = [
    # New York, gap 02:00-03:00 (EST -0500 to EDT -0400)
    ("America/New_York", "2026-03-08", "0 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2026-03-08", "15 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2026-03-08", "30 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2027-03-14", "30 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2026-03-08", "0,30 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2026-03-08", "0 2,3 * * *", ["03:00-0400"]),
    ("America/New_York", "2026-03-08", "*/20 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2026-03-08", "30 1-3 * * *", ["01:30-0500", "03:00-0400", "03:30-0400"]),
    ("America/New_York", "2026-03-08", "0 */2 * * *", ["00:00-0500", "04:00-0400"]),
    ("America/New_York", "2026-03-08", "0 * * * *", ["00:00-0500", "01:00-0500", "03:00-0400", "04:00-0400"]),
    ("America/New_York", "2026-03-08", "0 30 2 * * *", ["03:00-0400"]),
    # Berlin, gap 02:00-03:00 (CET +0100 to CEST +0200)
    ("Europe/Berlin", "2026-03-29", "0 2 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2026-03-29", "15 2 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2027-03-28", "30 2 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2026-03-29", "0 */2 * * *", ["00:00+0100", "04:00+0200"]),
    ("Europe/Berlin", "2026-03-29", "30 2 29 3 *", ["03:00+0200"]),
    # Lord Howe, gap 02:00-02:30 (+1030 to +1100)
    ("Australia/Lord_Howe", "2026-10-04", "0 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2027-10-03", "15 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "30 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "15,30 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "0 */2 * * *", ["00:00+1030", "04:00+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "20,50 * * * *", [
        "00:20+1030", "00:50+1030", "01:20+1030", "01:50+1030",
        "02:50+1100", "03:20+1100", "03:50+1100", "04:20+1100", "04:50+1100",
    ]),
]  # fmt: skip

AUTUMN_ONCE = [
    # New York, 01:00-02:00 twice
    ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400"]),
    ("America/New_York", "2027-11-07", "30 1 * * *", ["01:30-0400"]),
    ("America/New_York", "2026-11-01", "0,30 1,2 * * *", ["01:00-0400", "01:30-0400", "02:00-0500", "02:30-0500"]),
    ("America/New_York", "2026-11-01", "0 */2 * * *", ["00:00-0400", "02:00-0500", "04:00-0500"]),
    ("America/New_York", "2026-11-01", "0 0-4 * * *", [
        "00:00-0400", "01:00-0400", "02:00-0500", "03:00-0500", "04:00-0500",
    ]),
    ("America/New_York", "2026-11-01", "0 * * * *", [
        "00:00-0400", "01:00-0400", "01:00-0500", "02:00-0500", "03:00-0500", "04:00-0500",
    ]),
    # Berlin, 02:00-03:00 twice
    ("Europe/Berlin", "2026-10-25", "0 2 * * *", ["02:00+0200"]),
    ("Europe/Berlin", "2026-10-25", "15 2 * * *", ["02:15+0200"]),
    ("Europe/Berlin", "2027-10-31", "30 2 * * *", ["02:30+0200"]),
    ("Europe/Berlin", "2026-10-25", "0 30 2 * * *", ["02:30+0200"]),
    ("Europe/Berlin", "2026-10-25", "0 */2 * * *", ["00:00+0200", "02:00+0200", "04:00+0100"]),
    # Lord Howe, 01:30-02:00 twice
    ("Australia/Lord_Howe", "2026-04-05", "30 1 * * *", ["01:30+1100"]),
    ("Australia/Lord_Howe", "2027-04-04", "45 1 * * *", ["01:45+1100"]),
    ("Australia/Lord_Howe", "2026-04-05", "0 2 * * *", ["02:00+1030"]),
    ("Australia/Lord_Howe", "2026-04-05", "15 2 * * *", ["02:15+1030"]),
    ("Australia/Lord_Howe", "2026-04-05", "0 */2 * * *", ["00:00+1100", "02:00+1030", "04:00+1030"]),
    ("Australia/Lord_Howe", "2026-04-05", "30 * * * *", [
        "00:30+1100", "01:30+1100", "01:30+1030", "02:30+1030", "03:30+1030", "04:30+1030",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("tz", "day", "text", "expected"), SPRING)
def test_a_missing_time_fires_once_right_after_the_gap(tz: str, day: str, text: str, expected: list[str]) -> None:
    assert local_fires(text, tz, day, (0, 5)) == expected


@pytest.mark.parametrize(
    ("tz", "day", "text", "expected"),
    [
        ("America/New_York", "2026-03-08", "30 2 * * *", []),
        ("America/New_York", "2026-03-08", "30 1-3 * * *", ["01:30-0500", "03:30-0400"]),
        ("Europe/Berlin", "2027-03-28", "0 2,3 * * *", ["03:00+0200"]),
        ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", []),
    ],
)
def test_a_missing_time_is_left_out_when_the_job_says_skip(tz: str, day: str, text: str, expected: list[str]) -> None:
    assert local_fires(text, tz, day, (0, 5), gap="skip") == expected


@pytest.mark.parametrize(("tz", "day", "text", "expected"), AUTUMN_ONCE)
def test_a_doubled_time_fires_at_its_first_pass(tz: str, day: str, text: str, expected: list[str]) -> None:
    assert local_fires(text, tz, day, (0, 5)) == expected


@pytest.mark.parametrize(
    ("tz", "day", "text", "expected"),
    [
        ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400", "01:30-0500"]),
        ("America/New_York", "2026-11-01", "0,30 1 * * *", ["01:00-0400", "01:30-0400", "01:00-0500", "01:30-0500"]),
        ("Europe/Berlin", "2026-10-25", "0 2 * * *", ["02:00+0200", "02:00+0100"]),
        ("Europe/Berlin", "2027-10-31", "0 */2 * * *", ["00:00+0200", "02:00+0200", "02:00+0100", "04:00+0100"]),
        ("Australia/Lord_Howe", "2026-04-05", "30 1 * * *", ["01:30+1100", "01:30+1030"]),
        ("Australia/Lord_Howe", "2026-04-05", "0 2 * * *", ["02:00+1030"]),
    ],
)
def test_a_doubled_time_fires_at_both_passes_when_the_job_says_twice(
    tz: str, day: str, text: str, expected: list[str]
) -> None:
    assert local_fires(text, tz, day, (0, 5), overlap="twice") == expected


@pytest.mark.parametrize(
    ("tz", "change"),
    [
        ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2027, 3, 28, 1, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2027, 10, 31, 1, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("*/15 * * * *", timedelta(minutes=15)),
        ("*/30 * * * *", timedelta(minutes=30)),
        ("*/30 * * * * *", timedelta(seconds=30)),
        ("* * * * * *", timedelta(seconds=1)),
    ],
)
def test_a_schedule_of_every_hour_keeps_its_rhythm_through_a_change(
    tz: str, change: datetime, text: str, interval: timedelta
) -> None:
    fires = fires_after(Cron.parse(text), zone(tz), change - 5 * interval)
    assert [next(fires) for _ in range(12)] == [change + n * interval for n in range(-4, 8)]


def test_an_unlucky_zone_that_lost_a_whole_day_fires_once_for_it() -> None:
    assert local_fires("30 2 * * *", "Pacific/Apia", "2011-12-31", (0, 5)) == ["00:00+1400", "02:30+1400"]
    assert local_fires("0 * * * *", "Pacific/Apia", "2011-12-31", (0, 2)) == ["00:00+1400", "01:00+1400"]


def test_a_midnight_gap_keeps_the_daily_run_of_that_day() -> None:
    assert local_fires("0 0 * * *", "Africa/Cairo", "2026-04-24", (0, 5)) == ["01:00+0300"]


def test_a_search_that_starts_in_the_second_pass_does_not_repeat_the_first() -> None:
    berlin, daily = zone("Europe/Berlin"), Cron.parse("30 2 * * *")
    second_pass = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert next_after(daily, berlin, second_pass) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert next_after(daily, berlin, second_pass, overlap="twice") == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


def test_a_fraction_of_a_second_neither_hides_nor_repeats_a_fire() -> None:
    utc, every_second, noon = zone("UTC"), Cron.parse("* * * * * *"), datetime(2026, 1, 1, 12, tzinfo=UTC)
    part, second = timedelta(milliseconds=300), timedelta(seconds=1)
    assert next_after(every_second, utc, noon - part) == noon
    assert next_after(every_second, utc, noon + part) == noon + second
    assert previous_before(every_second, utc, noon + part) == noon
    assert previous_before(every_second, utc, noon) == noon - second


ZONES = {
    "America/New_York": ["2026-03-08", "2026-11-01"],
    "Europe/Berlin": ["2026-03-29", "2026-10-25"],
    "Australia/Lord_Howe": ["2026-10-04", "2026-04-05"],
    "Pacific/Apia": ["2011-12-30"],
    "Africa/Cairo": ["2026-04-24", "2026-10-29"],
    "Asia/Kathmandu": ["2026-05-01"],
}


@lru_cache
def wall_clock(tz: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Each minute between the two: what the clock shows, and the instant."""
    minutes = [start + n * MINUTE for n in range((end - start) // MINUTE)]
    return [(at.astimezone(tz).replace(tzinfo=None), at) for at in minutes]


def slow_fires(cron: Cron, tz: ZoneInfo, start: datetime, end: datetime, gap: Gap, overlap: Overlap) -> list[datetime]:
    """Walks each minute of real time and each minute of wall time, and applies the rules literally."""

    def matches(wall: datetime) -> bool:
        return (
            wall.minute in cron.minute.numbers
            and wall.hour in cron.hour.numbers
            and wall.isoweekday() % 7 in cron.weekday.numbers
        )

    instants: dict[datetime, list[datetime]] = {}
    for wall, at in wall_clock(tz, start, end):
        instants.setdefault(wall, []).append(at)
    fires = set()
    for wall, moments in instants.items():
        if matches(wall):
            doubled = cron.rhythm == "every_hour" or overlap == "twice"
            fires.update(moments if doubled else moments[:1])
    for (before, _), (after, _) in pairwise(wall_clock(tz, start, end)):
        missing = before + MINUTE
        while missing < after:
            if matches(missing) and cron.rhythm == "named" and gap == "run_after":
                fires.add(instants[after][0])
            missing += MINUTE
    return sorted(fires)


def random_time_of_day(dice: random.Random) -> str:
    minute = dice.choice(["0", "30", "*/20", "10-50/7", f"{dice.randint(0, 59)}", "*/5"])
    hour = dice.choice(["*", "*/2", "*/3", "1/2", "2", "1,2,3", "0-4", "0-23", f"{dice.randint(0, 4)}", "0"])
    return f"{minute} {hour} * * {dice.choice(['*', '*', '*', 'SUN', 'MON-FRI'])}"


@pytest.mark.parametrize("gap", ["run_after", "skip"])
@pytest.mark.parametrize("overlap", ["once", "twice"])
@pytest.mark.parametrize(("tz", "day"), [(tz, day) for tz, days in ZONES.items() for day in days])
def test_random_schedules_fire_around_a_change_as_a_slow_recount_says(
    tz: str, day: str, gap: Gap, overlap: Overlap
) -> None:
    dice, where = random.Random(f"{tz}{day}"), zone(tz)
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    begin, start, end = noon - timedelta(hours=60), noon - timedelta(hours=30), noon + timedelta(hours=30)
    for _ in range(2):
        cron = Cron.parse(random_time_of_day(dice))
        expected = [fire for fire in slow_fires(cron, where, begin, end, gap, overlap) if fire >= start]
        forwards = fires_after(cron, where, start - MINUTE, gap=gap, overlap=overlap)
        assert list(takewhile(lambda fire: fire < end, forwards)) == expected, cron.text
        back = []
        fire = previous_before(cron, where, end, gap=gap, overlap=overlap)
        while fire is not None and fire >= start:
            back.append(fire)
            fire = previous_before(cron, where, fire, gap=gap, overlap=overlap)
        assert back[::-1] == expected, cron.text


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "America", "a\0b"])
def test_an_unknown_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"time zone .* is not known; give an IANA name"):
        zone(name)


@pytest.mark.parametrize("name", ["localtime", "posixrules", "Factory", "right/UTC", "posix/Europe/Berlin"])
def test_a_name_that_means_something_else_on_each_machine_is_no_zone(name: str) -> None:
    with pytest.raises(ValueError, match="is not known; give an IANA name"):
        zone(name)
