"""Structured logs: events and fields, in both formats, and never a password."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tickwork import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the logs of this test go; the process's own set-up comes back afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_has_the_event_and_its_fields(stream: io.StringIO) -> None:
    logs.configure("json", "INFO", stream)
    logs.get_logger("tickwork.test", worker="w").bind(job="j").info("done", count=3, event="inner")
    line = json.loads(stream.getvalue())
    assert line.pop("at")
    assert line == {
        "level": "info", "logger": "tickwork.test", "event": "done",
        "worker": "w", "job": "j", "count": 3, "event_": "inner",
    }  # fmt: skip


def test_a_console_line_is_readable(stream: io.StringIO) -> None:
    logs.configure("console", "INFO", stream)
    logs.get_logger("tickwork.test").warning("worker.gone", worker="a-1", reason="no answer")
    assert stream.getvalue().endswith("WARNING tickwork.test: worker.gone worker=a-1 reason='no answer'\n")


@pytest.mark.parametrize("format", ["json", "console"])
def test_passwords_in_addresses_are_never_written(stream: io.StringIO, format: str) -> None:
    logs.configure(format, "INFO", stream)
    try:
        raise OSError("amqp://me:s3cret@host/ refused")
    except OSError:
        logs.get_logger("tickwork.test").exception("failed", url="amqp://me:s3cret@host/")
    assert "me:***@host" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()


def test_lines_of_other_packages_carry_the_fields_of_the_work_at_hand(stream: io.StringIO) -> None:
    logs.configure("json", "INFO", stream)
    token = logs.current_fields.set(lambda: {"occurrence": "o"})
    logging.getLogger("other").info("value %d", 3)
    logs.current_fields.reset(token)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["occurrence"]) == ("value 3", "o")


def test_configuring_twice_writes_each_line_once(stream: io.StringIO) -> None:
    logs.configure("console", "INFO", stream)
    logs.configure("json", "INFO", stream)
    logs.get_logger("tickwork.test").info("once")
    assert len(stream.getvalue().splitlines()) == 1
