"""The waits between attempts, and which failures are worth another one."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.retry import MAX_RETRY_AFTER_SECONDS, PRESETS, RetryPolicy, classify, delay_seconds

ALMOST_ONE = 1 - 2**-53
SIX_HOURS = 6 * 3600.0


@pytest.mark.parametrize(
    ("preset", "earliest", "jitter"),
    [
        ("default", [10, 20, 40, 80, 160], 3),
        ("milvaion", [10, 20, 40, 80, 160], 0),
        ("flare", [60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, SIX_HOURS, SIX_HOURS], 3),
        ("outbox", [5, 10, 20, 40, 80, 160, 320, 640, 900, 900], 0),
    ],
)
def test_a_preset_waits_as_its_table_says(preset: str, earliest: list[float], jitter: float) -> None:
    policy, attempts = PRESETS[preset], range(1, len(earliest) + 1)
    assert [delay_seconds(policy, attempt) for attempt in attempts] == earliest
    latest = [delay_seconds(policy, attempt, random=ALMOST_ONE) for attempt in attempts]
    assert latest == pytest.approx([wait + jitter for wait in earliest])
    middle = [delay_seconds(policy, attempt, random=0.5) for attempt in attempts]
    assert middle == [wait + jitter / 2 for wait in earliest]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("attempt", [20, 100, 10**6])
def test_the_wait_stays_at_its_cap_however_many_attempts_failed(preset: str, attempt: int) -> None:
    assert delay_seconds(PRESETS[preset], attempt) == PRESETS[preset].cap_seconds


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        (None, 11.5),
        (5, 11.5),
        (60, 60),
        (-30, 11.5),
        (float("nan"), 11.5),
        (10**9, MAX_RETRY_AFTER_SECONDS),
        (float("inf"), MAX_RETRY_AFTER_SECONDS),
    ],
)
def test_the_wait_is_the_later_of_the_backoff_and_what_was_asked_for(
    retry_after: float | None, expected: float
) -> None:
    assert delay_seconds(PRESETS["default"], 1, random=0.5, retry_after=retry_after) == expected


def test_a_backoff_longer_than_a_day_is_not_shortened_by_retry_after() -> None:
    patient = RetryPolicy(base_seconds=200_000, cap_seconds=200_000, jitter_seconds=0)
    assert delay_seconds(patient, 1, retry_after=300_000) == 200_000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base_seconds": -1}, "base_seconds: -1 must be 0 or more"),
        ({"cap_seconds": float("inf")}, "cap_seconds: inf must be 0 or more"),
        ({"jitter_seconds": float("nan")}, "jitter_seconds: nan must be 0 or more"),
        ({"max_attempts": 0}, "max_attempts: 0 is out of range 1-100"),
        ({"max_attempts": 101}, "max_attempts: 101 is out of range 1-100"),
    ],
)
def test_a_policy_with_a_figure_out_of_range_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetryPolicy(**values)


@pytest.mark.parametrize(("attempt", "random"), [(0, 0.0), (-1, 0.0), (1, 1.0), (1, -0.1)])
def test_a_delay_out_of_range_is_refused(attempt: int, random: float) -> None:
    with pytest.raises(ValueError, match=r"failed_attempt: |random: "):
        delay_seconds(PRESETS["default"], attempt, random=random)


@pytest.mark.parametrize(
    ("error_type", "retryable", "http_status", "expected"),
    [
        ("tickwork.errors.PermanentError", None, None, False),
        ("PermanentError", None, None, False),
        ("msgspec.ValidationError", None, None, False),
        ("django.core.exceptions.ValidationError", None, None, False),
        ("ContractError", None, None, False),
        ("ValueError", None, None, True),
        ("ZeroDivisionError", None, None, True),
        ("ConnectionResetError", None, None, True),
        ("TimeoutError", None, None, True),
        ("httpx.ConnectTimeout", None, None, True),
        ("psycopg.errors.DeadlockDetected", None, None, True),
        ("psycopg.errors.SerializationFailure", None, None, True),
        ("django.db.utils.OperationalError", None, None, True),
        ("", None, None, True),
        *[("httpx.HTTPStatusError", None, status, False) for status in (400, 401, 403, 404, 422)],
        *[("httpx.HTTPStatusError", None, status, True) for status in (408, 429, 502, 503, 504)],
        *[("httpx.HTTPStatusError", None, status, True) for status in (409, 418, 500, 599)],
        # a known status says more than the type
        ("ValidationError", None, 503, True),
        # the job's own word decides
        ("PermanentError", True, None, True),
        ("TimeoutError", False, None, False),
        ("httpx.HTTPStatusError", True, 404, True),
        ("httpx.HTTPStatusError", False, 503, False),
    ],
)
def test_a_failure_is_worth_another_attempt_or_not(
    error_type: str, retryable: bool | None, http_status: int | None, expected: bool
) -> None:
    assert classify(error_type, retryable, http_status) is expected
