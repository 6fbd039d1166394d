"""Settings: read from the environment, checked, and refused with the name and what is allowed."""

from __future__ import annotations

import pytest

from tickwork.config import LogSettings, WorkerSettings, refuse_unknown_names
from tickwork.errors import ConfigurationError


def test_a_broker_address_is_all_that_is_needed() -> None:
    settings = WorkerSettings.from_environment({"BROKER_URL": "sqlite:///b.db"})
    assert (settings.broker_url, settings.concurrency, settings.prefetch) == ("sqlite:///b.db", 8, 24)


def test_the_environment_is_read_and_arguments_win() -> None:
    environ = {
        "BROKER_URL": "sqlite:///b.db",
        "TICKWORK_WORKER_CONCURRENCY": "3",
        "TICKWORK_WORKER_HEARTBEAT_SECONDS": "2",
    }
    settings = WorkerSettings.from_environment(environ, concurrency=4, store_directory=None)
    assert (settings.concurrency, settings.heartbeat_seconds, settings.store_directory) == (
        4,
        2.0,
        ".data/worker-store",
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TICKWORK_WORKER_CONCURRENCY", "0", "a whole number from 1 to 1_000"),
        ("TICKWORK_WORKER_CONCURRENCY", "many", "a whole number from 1 to 1_000"),
        ("TICKWORK_WORKER_CONCURRENCY", "1.5", "a whole number from 1 to 1_000"),
        ("TICKWORK_WORKER_HEARTBEAT_SECONDS", "nan", "a number from 0.1 to 60"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is .*; allowed is {allowed}"):
        WorkerSettings.from_environment({"BROKER_URL": "sqlite:///b.db", name: value})


def test_a_missing_broker_address_is_named() -> None:
    with pytest.raises(ConfigurationError, match="BROKER_URL is not set"):
        WorkerSettings.from_environment({})


def test_an_unknown_log_format_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="TICKWORK_LOG_FORMAT is 'xml'; allowed is console or json"):
        LogSettings.from_environment({"TICKWORK_LOG_FORMAT": "xml"})


def test_log_levels_may_be_written_small() -> None:
    assert LogSettings.from_environment({"TICKWORK_LOG_LEVEL": "debug"}).level == "DEBUG"


def test_a_misspelt_name_is_refused_with_the_likely_one() -> None:
    refuse_unknown_names({"TICKWORK_WORKER_CONCURRENCY": "2", "TICKWORK_LOG_LEVEL": "INFO", "PATH": "x"})
    with pytest.raises(
        ConfigurationError,
        match=r"TICKWORK_WORKER_CONCURENCY is not a setting; did you mean TICKWORK_WORKER_CONCURRENCY\?",
    ):
        refuse_unknown_names({"TICKWORK_WORKER_CONCURENCY": "2"})
