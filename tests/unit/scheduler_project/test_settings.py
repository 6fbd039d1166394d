"""The server's own settings: each that is not allowed stops the start with its name, and without secrets."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from tickwork.broker.connect import connect
from tickwork.errors import ConfigurationError

SETTINGS = Path(__file__).parents[3] / "scheduler_project" / "settings.py"


def settings(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[str, Any]:
    """What the settings module makes of this environment."""
    for name in list(os.environ):
        if name.startswith(("TICKWORK_", "SCHEDULER_", "DJANGO_")) or name.endswith("_URL"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(SETTINGS))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TICKWORK_BEHIND_TLS", "ja"),
        ("DJANGO_DEBUG", "maybe"),
        ("TICKWORK_LOG_FORMAT", "xml"),
        ("TICKWORK_LOG_LEVEL", "loud"),
        ("DATABASE_URL", "nonsense"),
        ("DATABASE_URL", "mysql://user:hush@host/name"),
        ("REDIS_URL", "http://:hush@host"),
        ("TICKWORK_DATA_DIR", "/dev/null/folder"),
        ("TICKWORK_DATADIR", "/tmp"),
        ("SCHEDULER_RELAY_BACH", "5"),
    ],
)
def test_a_value_that_is_not_allowed_stops_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    environment = {"TICKWORK_DATA_DIR": str(tmp_path), "DJANGO_SECRET_KEY": "x" * 60, name: value}
    with pytest.raises(ConfigurationError, match=name) as refused:
        settings(monkeypatch, **environment)
    assert "hush" not in str(refused.value)


def test_the_distributed_mode_asks_for_a_secret_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="DJANGO_SECRET_KEY"):
        settings(monkeypatch, DATABASE_URL="postgres://user:hush@host/name")


def test_everything_is_kept_in_a_data_folder_of_any_name_that_only_its_owner_may_enter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "100 % #mine?"
    made = settings(monkeypatch, TICKWORK_DATA_DIR=str(folder))
    assert made["DATABASES"]["default"]["NAME"] == str(folder / "tickwork.sqlite3")
    assert repr(connect(made["BROKER_URL"])) == f"EmbeddedBroker({folder / 'broker.sqlite3'})"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert settings(monkeypatch, TICKWORK_DATA_DIR=str(folder))["SECRET_KEY"] == made["SECRET_KEY"]
