"""Settings: each that is not allowed stops the start with its name and what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from jobs.conf import SchedulerSettings, load
from tickwork.errors import ConfigurationError


def test_nothing_set_gives_the_defaults() -> None:
    assert load({}) == SchedulerSettings()


def test_an_empty_value_and_a_foreign_name_count_as_nothing_set() -> None:
    assert load({"SCHEDULER_DISPATCH_BATCH": "", "PATH": "/bin", "scheduler_relay_batch": "x"}) == SchedulerSettings()


def test_each_kind_of_value_is_read() -> None:
    settings = load(
        {
            "SCHEDULER_DISPATCH_BATCH": "7",
            "SCHEDULER_RELAY_POLL_SECONDS": "0.25",
            "SCHEDULER_DEFAULT_RETRY_ON_TIMEOUT": "True",
            "SCHEDULER_DEFAULT_RETRY_PRESET": "flare",
        }
    )
    assert (settings.dispatch_batch, settings.relay_poll_seconds) == (7, 0.25)
    assert (settings.default_retry_on_timeout, settings.default_retry_preset) == (True, "flare")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DISPATCH_BATCH", "many", "SCHEDULER_DISPATCH_BATCH is 'many'; a whole number is needed"),
        ("DISPATCH_BATCH", "1.5", "SCHEDULER_DISPATCH_BATCH is '1.5'; a whole number is needed"),
        ("DISPATCH_BATCH", "0", "SCHEDULER_DISPATCH_BATCH is 0; allowed is 1 to 5000"),
        ("DISPATCH_BATCH", "5001", "SCHEDULER_DISPATCH_BATCH is 5001; allowed is 1 to 5000"),
        ("RELAY_POLL_SECONDS", "soon", "SCHEDULER_RELAY_POLL_SECONDS is 'soon'; a number is needed"),
        ("RELAY_POLL_SECONDS", "nan", "SCHEDULER_RELAY_POLL_SECONDS is nan; allowed is 0.01 to 60"),
        ("RELAY_POLL_SECONDS", "inf", "SCHEDULER_RELAY_POLL_SECONDS is inf; allowed is 0.01 to 60"),
        (
            "DEFAULT_RETRY_ON_ZOMBIE",
            "yes",
            "SCHEDULER_DEFAULT_RETRY_ON_ZOMBIE is 'yes'; allowed are true and false",
        ),
        (
            "DEFAULT_RETRY_PRESET",
            "quick",
            "SCHEDULER_DEFAULT_RETRY_PRESET is 'quick'; allowed are default, milvaion, flare, outbox",
        ),
        ("DISPATCH_BACH", "5", "SCHEDULER_DISPATCH_BACH is not a setting; did you mean SCHEDULER_DISPATCH_BATCH?"),
        ("ZZZ", "5", "SCHEDULER_ZZZ is not a setting"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load({f"SCHEDULER_{name}": value})
    assert str(refused.value) == words


@pytest.mark.parametrize("seconds", ["299", "300"])
def test_a_backstop_that_is_not_longer_than_the_queue_time_is_refused(seconds: str) -> None:
    with pytest.raises(ConfigurationError, match=r"SCHEDULER_QUEUED_BACKSTOP_SECONDS .* must be longer than"):
        load({"SCHEDULER_QUEUED_BACKSTOP_SECONDS": seconds})


def test_a_zombie_timeout_that_is_not_longer_than_the_silence_before_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"SCHEDULER_ZOMBIE_TIMEOUT_SECONDS .* must be longer than"):
        load({"SCHEDULER_ZOMBIE_TIMEOUT_SECONDS": "60"})


@pytest.mark.parametrize("field", dataclasses.fields(SchedulerSettings), ids=lambda field: str(field.name))
def test_every_setting_has_a_meaning_and_a_default_within_its_bounds(field: dataclasses.Field[object]) -> None:
    meta, default = field.metadata, field.default
    assert meta["help"].endswith(".")
    if isinstance(default, str):
        assert default in meta["among"]
    elif not isinstance(default, bool):
        assert isinstance(default, int | float)
        assert meta["low"] <= default <= meta["high"]
    assert load({f"SCHEDULER_{field.name.upper()}": str(default)}) == SchedulerSettings()
