"""Structured logs on top of the standard library: an event name and fields, as JSON or as readable lines.

`get_logger(name)` is for every module; `configure` is called once by a program's start. Job code's own lines
(`ctx.log`) take another way: they travel to the server as events.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

_FIELDS = "tickwork_fields"
_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):([^@/\s]+)@")
_PLAIN = re.compile(r"[\w.:/@+-]+\Z")

current_fields: ContextVar[Callable[[], Mapping[str, Any]] | None] = ContextVar("tickwork_log_fields", default=None)
"""Where the running piece of work keeps the fields that all its lines carry (job, occurrence, attempt, worker)."""


def redact(text: str) -> str:
    """The text without the passwords of the URLs in it."""
    return _PASSWORD.sub(r"\1:***@", text)


class Logger:
    """A standard logger that takes an event name and fields, some of them bound for good."""

    def __init__(self, name: str, bound: Mapping[str, Any] | None = None) -> None:
        self._logger = logging.getLogger(name)
        self._bound = dict(bound or {})

    def bind(self, **fields: Any) -> Logger:
        """A logger whose lines all carry these fields too."""
        return Logger(self._logger.name, {**self._bound, **fields})

    def debug(self, event: str, /, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error line with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, fields, exc_info=True)

    def _write(self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            extra = {_FIELDS: {**self._bound, **fields}}
            self._logger.log(level, "%s", event, extra=extra, exc_info=exc_info, stacklevel=3)


def get_logger(name: str, **bound: Any) -> Logger:
    """A structured logger; `bound` fields are part of each of its lines."""
    return Logger(name, bound)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record, those of the work that it was written in first."""
    source = current_fields.get()
    return {**(source() if source is not None else {}), **getattr(record, _FIELDS, {})}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update((f"{key}_" if key in line else key, value) for key, value in fields_of(record).items())
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = "".join(traceback.format_exception(record.exc_info[1]))
        return redact(msgspec.json.encode(line, enc_hook=str).decode())


class ConsoleFormatter(logging.Formatter):
    """`12:00:01.250 INFO  event key=value`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(f" {key}={_readable(value)}" for key, value in fields_of(record).items())
        line = f"{at} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        return redact(line)


def configure(format: str = "console", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send everything that this process logs to `stream` (standard error) in the given format (console or json)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, JsonFormatter | ConsoleFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("pika").setLevel(logging.ERROR)


def _readable(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if _PLAIN.match(text) else repr(text)
