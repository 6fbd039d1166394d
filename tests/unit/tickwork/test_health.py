"""The health file and the command that reads it; the rest of the command line."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tickwork import __version__
from tickwork.__main__ import main
from tickwork.broker import topology
from tickwork.errors import ConfigurationError
from tickwork.worker.heartbeat import Health, read_health, write_health
from tickwork.worker.presence import instance_name

WELL = Health(
    at=1000.0,
    instance="w-1",
    consuming=True,
    draining=False,
    confirmed_seconds_ago=1.0,
    running=2,
    held=3,
    pending_events=0,
    store_full=False,
    abandoned=0,
    loop_blocked_seconds=0.0,
)


@pytest.mark.parametrize(
    ("changes", "now", "problem"),
    [
        ({}, 1010.0, ""),
        ({}, 1031.0, "its last sign of life is 31 s old"),
        ({"consuming": False}, 1010.0, "it is not consuming"),
        ({"consuming": False, "draining": True}, 1010.0, ""),
        ({"confirmed_seconds_ago": None}, 1010.0, "the broker has confirmed nothing"),
        ({"confirmed_seconds_ago": 31.0}, 1010.0, "the broker has confirmed nothing"),
        ({"loop_blocked_seconds": 40.0}, 1010.0, "a job has blocked the loop"),
    ],
)
def test_a_worker_is_well_when_it_lives_consumes_and_is_answered(
    changes: dict[str, object], now: float, problem: str
) -> None:
    found = msgspec.structs.replace(WELL, **changes).problem(max_age=30, now=now)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_the_file_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "health.json"
    write_health(path, WELL)
    assert read_health(path) == WELL
    assert [one.name for one in path.parent.iterdir()] == ["health.json"]


def test_a_file_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no health file of a worker"):
        read_health(tmp_path / "none")


def test_the_health_command_says_how_it_is_and_answers_by_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "health.json"
    write_health(path, msgspec.structs.replace(WELL, at=time.time()))
    assert main(["health", str(path)]) == 0
    assert main(["health", str(path), "--max-age", "-1"]) == 1
    assert main(["health", str(tmp_path / "none")]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("w-1: well, running 2\nw-1: its last sign of life is")
    assert "is no health file" in said.err


def test_wrong_settings_and_targets_end_with_status_2_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BROKER_URL", raising=False)
    monkeypatch.setattr("tickwork.__main__.configure", lambda *arguments: None)
    monkeypatch.setattr("sys.path", [])
    assert main(["worker", "a:b"]) == 2
    assert "BROKER_URL is not set" in capsys.readouterr().err
    assert main(["worker", "not_there_at_all:b", "--broker", "sqlite:///x"]) == 2
    assert "no module 'not_there_at_all'" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"tickwork {__version__}\n"


@pytest.mark.parametrize("host", ["box", "a.long." + "x" * 100, "_Ünïcode"])
def test_instance_names_fit_a_routing_key(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    first, second = instance_name("report-worker"), instance_name("report-worker")
    assert topology.NAME.match(first)
    assert first.startswith("report-worker-")
    assert len(first) <= 64
    assert first != second
    assert topology.NAME.match(instance_name("w" * 64))
