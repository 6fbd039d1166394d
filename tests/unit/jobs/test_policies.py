"""Call before job before job type before setting, field by field, and each value knows where it came from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.policies import FIELDS, ResolvedPolicy, resolve
from jobs.retry import PRESETS, RetryPolicy

NOTHING: dict[str, Any] = {}


def by_level(name: str, *values: Any) -> ResolvedPolicy:
    """Resolve one field from its values on the four levels; None leaves it out there."""
    return resolve(*({name: value} for value in values))


def value_of(policy: ResolvedPolicy, name: str) -> Any:
    if name == "retry_preset":
        return policy.retry.preset
    if name.startswith("retry_") and name.endswith("_seconds"):
        return getattr(policy.retry, name.removeprefix("retry_"))
    return getattr(policy, name)


def test_without_any_word_the_built_in_defaults_hold() -> None:
    policy = resolve(NOTHING, NOTHING, NOTHING, NOTHING)
    assert policy.retry == PRESETS["default"]
    assert (policy.timeout_seconds, policy.max_attempts, policy.queue_ttl_seconds) == (1800, 3, 300)
    assert (policy.retry_on_timeout, policy.retry_on_zombie, policy.on_worker_unavailable) == (False, False, "fail")
    assert policy.sources == dict.fromkeys(FIELDS, "default")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("timeout_seconds", (1, 2, 3.5, 4)),
        ("max_attempts", (1, 2, 3, 100)),
        ("retry_preset", ("flare", "milvaion", "outbox", "default")),
        ("retry_base_seconds", (1, 2, 3, 0)),
        ("retry_cap_seconds", (1, 2, 3, 4)),
        ("retry_jitter_seconds", (0, 2, 3, 4)),
        ("retry_on_timeout", (False, True, False, True)),
        ("retry_on_zombie", (True, False, True, False)),
        ("on_worker_unavailable", ("fail", "redispatch", "fail", "redispatch")),
        ("queue_ttl_seconds", (1, 2, 3, 4)),
    ],
)
def test_the_most_specific_word_about_a_field_wins_and_is_remembered(name: str, values: tuple[Any, ...]) -> None:
    for position, source in enumerate(["call", "job", "job type", "setting"]):
        silent = ("" if isinstance(values[0], str) else None,) * position
        policy = by_level(name, *silent, *values[position:])
        assert value_of(policy, name) == values[position]
        assert policy.sources[name] == source


def test_each_field_is_decided_on_its_own() -> None:
    policy = resolve({"max_attempts": 9}, {"timeout_seconds": 60}, {"timeout_seconds": 5, "max_attempts": 2}, NOTHING)
    assert (policy.max_attempts, policy.timeout_seconds) == (9, 60)
    assert (policy.sources["max_attempts"], policy.sources["timeout_seconds"]) == ("call", "job")


def test_a_preset_brings_its_figures_and_a_figure_beside_it_wins() -> None:
    policy = resolve(NOTHING, {"retry_preset": "flare", "retry_jitter_seconds": 0}, NOTHING, NOTHING)
    assert (policy.retry.base_seconds, policy.retry.cap_seconds, policy.retry.jitter_seconds) == (60, 21600, 0)
    assert policy.sources["retry_base_seconds"] == "job"


def test_a_jobs_preset_beats_a_figure_of_the_settings() -> None:
    policy = resolve(NOTHING, {"retry_preset": "flare"}, NOTHING, {"retry_base_seconds": 1})
    assert policy.retry.base_seconds == 60


def test_a_calls_figure_changes_only_that_figure_of_the_jobs_preset() -> None:
    policy = resolve({"retry_base_seconds": 7}, {"retry_preset": "outbox"}, NOTHING, NOTHING)
    assert (policy.retry.preset, policy.retry.base_seconds, policy.retry.cap_seconds) == ("outbox", 7, 900)
    assert (policy.sources["retry_base_seconds"], policy.sources["retry_cap_seconds"]) == ("call", "job")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_attempts", 0, "max_attempts: 0 (from the job) must be from 1 to 100"),
        ("max_attempts", 101, "max_attempts: 101 (from the job) must be from 1 to 100"),
        ("max_attempts", 2.5, "max_attempts: 2.5 (from the job) must be a whole number"),
        ("max_attempts", True, "max_attempts: True (from the job) must be a number"),
        ("max_attempts", "3", "max_attempts: '3' (from the job) must be a number"),
        ("timeout_seconds", 0, "timeout_seconds: 0 (from the job) must be from 0.1 to 2592000 seconds"),
        ("timeout_seconds", float("inf"), "timeout_seconds: inf (from the job) must be from 0.1 to 2592000 seconds"),
        ("queue_ttl_seconds", -1, "queue_ttl_seconds: -1 (from the job) must be from 0.001 to 2592000 seconds"),
        ("retry_base_seconds", -1, "retry_base_seconds: -1 (from the job) must be from 0 to 2592000 seconds"),
        ("retry_preset", "slow", "retry_preset: 'slow' (from the job) is not known; allowed are default, milvaion"),
        ("retry_on_timeout", 1, "retry_on_timeout: 1 (from the job) must be true or false"),
        ("on_worker_unavailable", "wait", "on_worker_unavailable: 'wait' (from the job) is not known"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_and_source(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        resolve(NOTHING, {name: value}, NOTHING, NOTHING)
    assert message in str(caught.value)


def test_a_policy_is_kept_as_json_and_its_retry_part_read_back() -> None:
    policy = resolve({"max_attempts": 9}, {"retry_preset": "flare"}, {"timeout_seconds": 5}, NOTHING)
    kept = json.loads(json.dumps(policy.as_json()))
    assert RetryPolicy(**kept["retry"]) == policy.retry
    assert (kept["timeout_seconds"], kept["sources"]["timeout_seconds"]) == (5, "job type")
