"""Which ticks are owed after a pause, within which bounds, and when they are sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from jobs.scheduling.cron import CronError
from jobs.scheduling.policy import (
    MAX_COUNTED,
    MAX_TICKS,
    Misfire,
    Owed,
    Schedule,
    jittered,
    next_fire,
    owed,
    previous_fire,
    upcoming,
)

HOURLY = Schedule(cron="0 * * * *")
EVERY_SECOND = Schedule(cron="* * * * * *")
MICROSECOND = timedelta(microseconds=1)


def at(text: str) -> datetime:
    """ "12:30" or "12:30:05" on the first of July 2026, or a whole ISO date, in UTC."""
    return datetime.fromisoformat(text if "T" in text else f"2026-07-01T{text}").replace(tzinfo=UTC)


def words(result: Owed) -> tuple[str, int | None, str, str, str]:
    """Ticks, how many were dropped, from, until, and the next one, as times of day."""

    def time(moment: datetime | None) -> str:
        return moment.strftime("%H:%M") if moment else "-"

    ticks = " ".join(time(tick) for tick in result.ticks)
    return ticks, result.dropped_count, time(result.dropped_from), time(result.dropped_until), time(result.next_run_at)


@pytest.mark.parametrize(
    ("policy", "now", "expected"),
    [
        # nothing is due
        ("fire_once", "08:59", ("", 0, "-", "-", "09:00")),
        # on time, whatever the policy
        ("fire_once", "09:00", ("09:00", 0, "-", "-", "10:00")),
        ("skip", "09:00:05", ("09:00", 0, "-", "-", "10:00")),
        ("catch_up", "09:00:05", ("09:00", 0, "-", "-", "10:00")),
        # one tick late
        ("fire_once", "09:00:06", ("09:00", 0, "-", "-", "10:00")),
        ("skip", "09:00:06", ("", 1, "09:00", "09:00", "10:00")),
        ("catch_up", "09:00:06", ("09:00", 0, "-", "-", "10:00")),
        # four ticks late
        ("fire_once", "12:30", ("12:00", 3, "09:00", "11:00", "13:00")),
        ("skip", "12:30", ("", 4, "09:00", "12:00", "13:00")),
        ("catch_up", "12:30", ("10:00 11:00 12:00", 1, "09:00", "09:00", "13:00")),
        # missed ones, and one on time
        ("fire_once", "12:00:01", ("11:00 12:00", 2, "09:00", "10:00", "13:00")),
        ("skip", "12:00:01", ("12:00", 3, "09:00", "11:00", "13:00")),
        ("catch_up", "12:00:01", ("09:00 10:00 11:00 12:00", 0, "-", "-", "13:00")),
    ],
)
def test_missed_ticks_are_run_or_dropped_as_the_job_says(
    policy: Misfire, now: str, expected: tuple[str, int, str, str, str]
) -> None:
    result = owed(HOURLY, next_run_at=at("09:00"), now=at(now), policy=policy, limit=3, grace_seconds=5)
    assert words(result) == expected


@pytest.mark.parametrize(
    ("policy", "deadline", "now", "expected"),
    [
        ("fire_once", 1800, "12:30", ("12:00", 3, "09:00", "11:00", "13:00")),
        ("fire_once", 1799, "12:30", ("", 4, "09:00", "12:00", "13:00")),
        ("catch_up", 5400, "12:30", ("11:00 12:00", 2, "09:00", "10:00", "13:00")),
        ("skip", 1800, "12:30", ("", 4, "09:00", "12:00", "13:00")),
        ("catch_up", 1e12, "12:30", ("09:00 10:00 11:00 12:00", 0, "-", "-", "13:00")),
        # a deadline shorter than the grace drops what would be on time
        ("fire_once", 0, "09:00:03", ("", 1, "09:00", "09:00", "10:00")),
        ("fire_once", 3, "09:00:03", ("09:00", 0, "-", "-", "10:00")),
    ],
)
def test_a_tick_later_than_its_deadline_is_dropped(
    policy: Misfire, deadline: float, now: str, expected: tuple[str, int, str, str, str]
) -> None:
    result = owed(HOURLY, next_run_at=at("09:00"), now=at(now), policy=policy, start_deadline_seconds=deadline)
    assert words(result) == expected


@pytest.mark.parametrize(
    ("policy", "now", "ticks", "dropped"),
    [
        ("fire_once", "09:00", 0, 0),
        ("fire_once", "09:10:02", 1, 0),
        ("skip", "09:10:02", 1, 0),
        ("fire_once", "11:00", 1, 0),
        ("catch_up", "11:00", 1, 0),
        ("skip", "11:00", 0, 1),
    ],
)
def test_a_one_time_job_follows_the_same_policies(policy: Misfire, now: str, ticks: int, dropped: int) -> None:
    moment = at("09:10")
    result = owed(Schedule(execute_at=moment), next_run_at=moment, now=at(now), policy=policy)
    assert result.ticks == [moment] * ticks
    assert (result.dropped_count, result.dropped_until) == (dropped, moment if dropped else None)
    assert result.next_run_at == (moment if at(now) < moment else None)


@pytest.mark.parametrize("policy", get_args(Misfire))
def test_a_job_that_is_due_only_on_call_owes_nothing(policy: Misfire) -> None:
    assert owed(Schedule(), next_run_at=None, now=at("09:00"), policy=policy) == Owed([], None)


@pytest.mark.parametrize("policy", get_args(Misfire))
@pytest.mark.parametrize("cron", ["* * * * * *", "* * * * *", "* * * * * MON", "0 * * * *", "30 2 * * *"])
@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin"])
def test_a_month_of_missed_ticks_is_answered_without_replaying_it(policy: Misfire, cron: str, tz: str) -> None:
    schedule, now = Schedule(cron=cron, timezone=tz), at("2026-07-15T12:00:00") + timedelta(milliseconds=500)
    first = next_fire(schedule, now - timedelta(days=31))
    result = owed(schedule, next_run_at=first, now=now, policy=policy, limit=10)
    assert result.next_run_at is not None
    assert result.next_run_at > now
    assert result.ticks == sorted(set(result.ticks))
    assert len(result.ticks) <= 10 + 6
    assert result.dropped_from == first
    kept_from = result.ticks[0] if result.ticks else result.next_run_at
    assert result.dropped_until == previous_fire(schedule, kept_from)
    dense = cron != "30 2 * * *" and not (cron == "0 * * * *" and MAX_COUNTED > 31 * 24)
    assert (result.dropped_count is None) == dense


def test_dropped_ticks_are_counted_up_to_a_bound() -> None:
    now = at("12:00:00")
    for missed, count in [(MAX_COUNTED, MAX_COUNTED), (MAX_COUNTED + 1, None)]:
        start = now - timedelta(seconds=missed)
        result = owed(EVERY_SECOND, next_run_at=start, now=now, policy="skip", grace_seconds=0)
        assert (result.ticks, result.dropped_count) == ([now], count)
        assert (result.dropped_from, result.dropped_until) == (start, now - timedelta(seconds=1))


def test_more_on_time_ticks_than_one_call_gives_wait_for_the_next_call() -> None:
    now, start = at("12:00:00"), at("12:00:00") - timedelta(seconds=MAX_TICKS + 9)
    arguments: dict[str, Any] = {"now": now, "policy": "skip", "grace_seconds": 3600}
    first = owed(EVERY_SECOND, next_run_at=start, **arguments)
    second = owed(EVERY_SECOND, next_run_at=first.next_run_at, **arguments)
    assert len(first.ticks) == MAX_TICKS
    assert first.ticks + second.ticks == [start + timedelta(seconds=n) for n in range(MAX_TICKS + 10)]
    assert second.next_run_at == now + timedelta(seconds=1)


@pytest.mark.parametrize("policy", get_args(Misfire))
def test_a_dispatcher_that_looks_at_odd_times_never_repeats_or_loses_sight_of_a_tick(policy: Misfire) -> None:
    schedule = Schedule(cron="*/5 * * * * *")
    next_run_at: datetime | None = at("09:00:00")
    now, seen, dropped = at("09:00:00"), list[datetime](), 0
    for pause in (0.2, 1, 3, 7.5, 0, 62, 5, 11, 4.9, 0.1):
        now += timedelta(seconds=pause)
        result = owed(schedule, next_run_at=next_run_at, now=now, policy=policy, limit=4, grace_seconds=5)
        seen, dropped, next_run_at = seen + result.ticks, dropped + (result.dropped_count or 0), result.next_run_at
    assert next_run_at is not None
    assert next_run_at > now
    assert seen == sorted(set(seen))
    assert upcoming(schedule, at("09:00:00") - MICROSECOND, len(seen) + dropped + 1)[-1] == next_run_at


def test_a_stored_time_that_the_schedule_no_longer_names_is_no_tick() -> None:
    result = owed(HOURLY, next_run_at=at("09:20"), now=at("09:30"), policy="fire_once")
    assert result == Owed([], at("10:00"))


def test_bounds_are_part_of_the_schedule() -> None:
    schedule = Schedule(cron="0 * * * *", starts_at=at("10:00"), ends_at=at("12:00"))
    assert upcoming(schedule, at("00:00"), 9) == [at("10:00"), at("11:00"), at("12:00")]
    assert next_fire(schedule, at("12:00")) is None
    assert previous_fire(schedule, at("23:00")) == at("12:00")
    assert previous_fire(schedule, at("10:00")) is None


def test_a_tick_missed_before_the_end_is_still_owed_after_it() -> None:
    schedule = Schedule(cron="0 * * * *", ends_at=at("11:30"))
    result = owed(schedule, next_run_at=at("09:00"), now=at("15:10"), policy="fire_once")
    assert words(result) == ("11:00", 2, "09:00", "10:00", "-")


def test_upcoming_ticks_are_in_utc_and_follow_the_jobs_zone_and_rules() -> None:
    schedule = Schedule(cron="30 2 * * *", timezone="Europe/Berlin", dst_gap="skip")
    assert upcoming(schedule, at("2026-03-28T00:00:00"), 3) == [
        at("2026-03-28T01:30:00"),
        at("2026-03-30T00:30:00"),
        at("2026-03-31T00:30:00"),
    ]
    doubled = Schedule(cron="30 2 * * *", timezone="Europe/Berlin", dst_overlap="twice")
    assert upcoming(doubled, at("2026-10-24T12:00:00"), 2) == [at("2026-10-25T00:30:00"), at("2026-10-25T01:30:00")]
    moment = datetime.fromisoformat("2026-07-01T12:00:00+02:00")
    assert upcoming(Schedule(execute_at=moment), at("00:00"), 3) == [at("10:00")]


def test_jitter_is_the_same_for_the_same_job_and_tick_and_stays_in_its_range() -> None:
    ticks = upcoming(HOURLY, at("00:00"), 200)
    delays = [(jittered(tick, 30, "job-1") - tick).total_seconds() for tick in ticks]
    assert delays == [(jittered(tick, 30, "job-1") - tick).total_seconds() for tick in ticks]
    assert delays != [(jittered(tick, 30, "job-2") - tick).total_seconds() for tick in ticks]
    assert all(0 <= delay < 30 for delay in delays)
    assert min(delays) < 5
    assert max(delays) > 25
    assert jittered(ticks[0], 0, "job-1") == ticks[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cron": "0 25 * * *"}, "hour: 25 is out of range 0-23"),
        ({"cron": "* * * * *", "execute_at": at("09:00")}, "a schedule has a cron or an execute_at, not both"),
        ({"execute_at": datetime(2026, 7, 1)}, "execute_at needs a UTC offset"),
        ({"starts_at": at("09:00"), "ends_at": at("09:00")}, "ends_at must be later than starts_at"),
        ({"timezone": "Mars/Olympus"}, "time zone 'Mars/Olympus' is not known"),
        ({"dst_gap": "later"}, "dst_gap: 'later' is not known; allowed are run_after, skip"),
        ({"dst_overlap": "never"}, "dst_overlap: 'never' is not known; allowed are once, twice"),
        ({"jitter_seconds": -1}, "jitter_seconds: -1 must be 0 or more"),
        ({"jitter_seconds": float("nan")}, "jitter_seconds: nan must be 0 or more"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**values)


def test_a_bad_cron_keeps_its_field_when_a_schedule_is_made() -> None:
    with pytest.raises(CronError) as caught:
        Schedule(cron="0 0 32 * *")
    assert caught.value.field == "day"


@pytest.mark.parametrize(
    "values", [{"policy": "later"}, {"limit": -1}, {"grace_seconds": -1}, {"start_deadline_seconds": -1}]
)
def test_misfire_arguments_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"policy: 'later' is not known|must be 0 or more"):
        owed(HOURLY, **{"next_run_at": at("09:00"), "now": at("09:00"), "policy": "skip", **values})
