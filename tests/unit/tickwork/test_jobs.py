"""The decorator: what it registers, what it refuses, and how a worker is found again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tickwork import ConfigurationError, JobContext, Worker
from tickwork.worker.jobs import load_worker


def test_a_decorated_function_is_registered_and_stays_itself() -> None:
    worker = Worker("report-worker")

    @worker.job(max_attempts=5, timeout=300, retry_preset="flare")
    async def build_report(ctx: JobContext, month: str) -> dict[str, int]:
        """Builds the report
        of a month.

        Slowly."""
        return {}

    info = worker.jobs["build_report"].info()
    assert build_report.__name__ == "build_report"
    assert (info.name, info.description) == ("build_report", "Builds the report of a month.")
    assert (info.max_attempts, info.timeout_seconds, info.retry_preset, info.isolation) == (5, 300, "flare", "thread")
    assert list(info.data_schema["properties"]) == ["month"]


def test_the_bare_decorator_and_a_name_of_its_own_work_too() -> None:
    worker = Worker("w")

    @worker.job
    def first() -> None: ...

    @worker.job(name="Second", isolation="process", description="other")
    def second() -> None: ...

    assert list(worker.jobs) == ["first", "Second"]
    assert (worker.jobs["Second"].isolation, worker.jobs["Second"].description) == ("process", "other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a.b"}, "job name 'a.b'"),
        ({"timeout": 0}, "timeout is 0"),
        ({"max_attempts": 101}, "allowed is 1 to 100"),
        ({"isolation": "container"}, "isolation is 'container'"),
    ],
)
def test_options_that_are_not_allowed_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Worker("w").job(**{"name": "a", **options})(lambda: None)


def test_two_jobs_of_one_name_and_generators_are_refused() -> None:
    worker = Worker("w")
    worker.job(name="a")(lambda: None)
    with pytest.raises(ConfigurationError, match="two jobs named 'a'"):
        worker.job(name="a")(lambda: None)

    def rows() -> Any:
        yield 1

    with pytest.raises(ConfigurationError, match="is a generator"):
        worker.job(rows)


def test_a_worker_name_that_cannot_be_part_of_a_routing_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="worker name 'a b'"):
        Worker("a b")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a worker, on the Python path of this test."""
    (tmp_path / "some_jobs_of_a_test.py").write_text(
        "from tickwork import Worker\nmine = Worker('mine')\n@mine.job(isolation='process')\ndef a(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_jobs_of_a_test", raising=False)
    return "some_jobs_of_a_test"


def test_a_worker_is_loaded_by_module_and_name(module: str) -> None:
    worker = load_worker(f"{module}:mine")
    assert (worker.name, worker.find_target()) == ("mine", f"{module}:mine")


def test_a_worker_finds_its_own_import_path(module: str) -> None:
    worker = load_worker(f"{module}:mine")
    worker.target = ""
    assert worker.find_target() == f"{module}:mine"


def test_isolated_jobs_of_a_worker_that_cannot_be_imported_are_refused() -> None:
    worker = Worker("w")
    worker.job(name="a", isolation="process")(lambda: None)
    with pytest.raises(ConfigurationError, match="put the worker into a module"):
        worker.find_target()


def test_a_wrong_target_is_explained(module: str) -> None:
    with pytest.raises(ConfigurationError, match="no module 'not_there_at_all'"):
        load_worker("not_there_at_all:worker")
    with pytest.raises(ConfigurationError, match="has no Worker named 'worker'; it has mine"):
        load_worker(module)
