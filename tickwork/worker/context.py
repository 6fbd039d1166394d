"""What a job sees of its attempt: identity, log, progress, cancellation.

The runtime makes one `JobContext` per attempt and hands it to the job function; `tickwork.testing` does the
same without a broker. Everything that a job says goes to a `Sink`; nothing here waits for the network.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from tickwork.contracts import Dispatch, Log, Progress
from tickwork.errors import JobCancelled
from tickwork.logs import fields_of

MAX_LOG_LINES = 10_000
MAX_LOG_BYTES = 8 * 1024

current_job: ContextVar[JobContext | None] = ContextVar("tickwork_current_job", default=None)
_waking = threading.Lock()
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Sink(Protocol):
    """Takes what a job says, from any thread, and returns at once."""

    def log(self, event: Log) -> None: ...

    def progress(self, event: Progress) -> None: ...


class _Done:
    """The answer of `ctx.progress`: may be awaited, need not be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


def clean_text(value: object, limit: int) -> str:
    """The value as text that JSON can carry (no lone surrogates), cut to about `limit` bytes."""
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:
        text = f"<{type(value).__name__}: its text failed with {type(error).__name__}>"
    if len(text) > limit:
        text = text[:limit] + "…"
    if text.isascii():
        return text
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + "…"


class JobLogger:
    """`ctx.log.info("event", key=value)`: lines that are kept with the occurrence and shown live."""

    def __init__(self, context: JobContext, max_lines: int) -> None:
        self._context = context
        self._max_lines = max_lines
        self._numbers = itertools.count(1)

    def debug(self, event: str, /, **fields: Any) -> None:
        self.write("debug", event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self.write("info", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self.write("warning", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self.write("error", event, fields)

    def write(self, level: str, event: object, fields: Mapping[str, Any]) -> None:
        """One line; beyond the limit of lines one last line says so, the rest is left out."""
        context = self._context
        if context.closed:
            return
        seq = next(self._numbers)
        if seq > self._max_lines + 1:
            return
        if seq > self._max_lines:
            level, event, fields = "warning", f"log cut: more than {self._max_lines} lines", {}
        context.sink.log(
            Log(
                id=context.id,
                attempt=context.attempt,
                at=datetime.now(UTC),
                seq=seq,
                level=level,
                message=clean_text(event, MAX_LOG_BYTES),
                fields=_plain(fields) if fields else {},
            )
        )


class JobContext:
    """One attempt, as its job sees it."""

    def __init__(
        self,
        dispatch: Dispatch,
        sink: Sink,
        *,
        timeout_seconds: float | None = None,
        max_log_lines: int = MAX_LOG_LINES,
    ) -> None:
        self.id = dispatch.id
        self.attempt = dispatch.attempt
        self.sink = sink
        self.closed = False
        self.observed_stop = False
        self.started_at: datetime | None = None
        self.dispatch = dispatch
        self.timeout_seconds = timeout_seconds
        self.max_log_lines = max_log_lines
        self._log: JobLogger | None = None
        self._cancel_reason: str | None = None
        self._cancelled_event: threading.Event | None = None

    @property
    def job_id(self) -> str:
        return self.dispatch.job_id

    @property
    def job_name(self) -> str:
        return self.dispatch.job_name

    @property
    def max_attempts(self) -> int:
        """How many attempts this occurrence has, the first one included."""
        return self.dispatch.max_attempts

    @property
    def scheduled_for(self) -> datetime | None:
        """The instant for which this run was due; None for a run that somebody triggered."""
        return self.dispatch.scheduled_for

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this occurrence: hand it to services that refuse doubles."""
        return self.dispatch.id

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out; None without a timeout."""
        if self.timeout_seconds is None or self.started_at is None:
            return None
        return self.started_at + timedelta(seconds=self.timeout_seconds)

    @property
    def log(self) -> JobLogger:
        """The log of this attempt."""
        if self._log is None:
            with _waking:
                self._log = self._log or JobLogger(self, self.max_log_lines)
        return self._log

    def progress(self, fraction: float, message: str = "") -> _Done:
        """Say how far the work is, from 0 to 1. Call it or await it; frequent calls are merged."""
        if not self.closed:
            fraction = min(1.0, max(0.0, float(fraction)))
            text = clean_text(message, 1024) if message else ""
            event = Progress(id=self.id, attempt=self.attempt, at=datetime.now(UTC), fraction=fraction, message=text)
            self.sink.progress(event)
        return _DONE

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: cancelled, out of time, or the worker shuts down."""
        if self._cancel_reason is None:
            return False
        self.observed_stop = True
        return True

    @property
    def cancel_reason(self) -> str:
        """Why it should stop; empty while it should not."""
        return self._cancel_reason or ""

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled when this attempt should stop. Sync jobs call it between two steps."""
        if self.cancelled:
            raise JobCancelled(self._cancel_reason)

    def sleep(self, seconds: float) -> None:
        """Sleep in a sync job; raises JobCancelled as soon as the attempt should stop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("ctx.sleep() would block every async job of this worker; use `await asyncio.sleep()`")
        with _waking:
            event = self._cancelled_event = self._cancelled_event or threading.Event()
        if self._cancel_reason is None:
            event.wait(seconds)
        self.raise_if_cancelled()

    def cancel(self, reason: str) -> None:
        """For the runtime: tell the job to stop. The first reason stays."""
        with _waking:
            if self._cancel_reason is None:
                self._cancel_reason = reason
            event = self._cancelled_event
        if event is not None:
            event.set()

    def log_fields(self) -> dict[str, Any]:
        """For the runtime's own log lines about this attempt."""
        dispatch = self.dispatch
        return {"job": dispatch.job_name, "occurrence": self.id, "attempt": self.attempt, "worker": dispatch.worker}


class ForwardingHandler(logging.Handler):
    """Turns what job code writes through the standard `logging` (INFO and above) into lines of its attempt."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        context = current_job.get()
        if context is None or record.name.startswith("tickwork."):
            return
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + logging.Formatter().formatException(record.exc_info)
            own = {key: value for key, value in fields_of(record).items() if key not in context.log_fields()}
            level = "error" if record.levelno >= logging.ERROR else record.levelname.lower()
            context.log.write(level, message, {"logger": record.name, **own})
        except Exception:
            self.handleError(record)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that JSON can carry and that fit a line; values of other types as their text."""
    try:
        size = len(_encode(fields))
        if size <= MAX_LOG_BYTES:
            plain: dict[str, Any] = msgspec.to_builtins(fields, str_keys=True, enc_hook=str)
            return plain
    except Exception:
        return {clean_text(key, 100): clean_text(repr(value), 500) for key, value in list(fields.items())[:10]}
    return {"cut": f"fields of {size} bytes left out, the limit is {MAX_LOG_BYTES}"}
