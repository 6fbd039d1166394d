"""How an attempt ended, as a value: from a returned object, from an exception, and from having been told to stop.

Pure: no broker, no clock, no threads. Used by the execution, by the child process of an isolated job, and by
`tickwork.testing`.
"""

from __future__ import annotations

import traceback
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from tickwork.contracts import ErrorInfo, Outcome
from tickwork.errors import JobCancelled, JobError, RetryableError
from tickwork.worker.context import clean_text

MAX_TRACEBACK_BYTES = 16 * 1024
MAX_MESSAGE_BYTES = 8 * 1024
NULL = msgspec.Raw(b"null")
PERMANENT_STATUSES = frozenset({400, 401, 403, 404, 422})
PASSING_STATUSES = frozenset({408, 429, 502, 503, 504})

_encode = msgspec.json.Encoder().encode


class StopKind(Enum):
    """Why a running attempt is told to stop; the value is the outcome when it obeys."""

    TIMEOUT = "timed_out"
    CANCEL = "cancelled"
    SHUTDOWN = "interrupted"


class Ended(NamedTuple):
    """The end of an attempt."""

    outcome: Outcome
    result: msgspec.Raw = NULL
    error: ErrorInfo | None = None


def from_result(value: object, max_bytes: int) -> Ended:
    """Completed with this result, or failed for good when JSON cannot hold it or it is larger than `max_bytes`."""
    if value is None:
        return Ended("completed")
    try:
        data = _encode(value)
    except Exception as error:
        message = f"the result cannot be written as JSON: {clean_text(error, 500)}"
        return Ended("failed", error=ErrorInfo(type="ResultNotJson", message=message, retryable=False))
    if len(data) > max_bytes:
        message = f"the result has {len(data)} bytes, the limit is {max_bytes}: store it elsewhere and return where"
        return Ended("failed", error=ErrorInfo(type="ResultTooLarge", message=message, retryable=False))
    return Ended("completed", msgspec.Raw(data))


def from_exception(error: BaseException) -> Ended:
    """Failed with this exception; cancelled when it is JobCancelled."""
    if isinstance(error, JobCancelled):
        return Ended("cancelled", error=ErrorInfo(type="JobCancelled", message=clean_text(error, MAX_MESSAGE_BYTES)))
    retryable, after = classify(error)
    return Ended(
        "failed",
        error=ErrorInfo(
            type=qualified_name(type(error)),
            message=clean_text(error, MAX_MESSAGE_BYTES),
            traceback=_traceback(error),
            retryable=retryable,
            retry_after=after,
        ),
    )


def judged(ended: Ended, stop: StopKind | None, *, observed: bool, reason: str) -> Ended:
    """The verdict on an attempt that may have been told to stop.

    Out of time is out of time. Else an attempt that came to its end without having seen that it should stop
    is taken at its word; one that saw it ends as what it was told, whatever it made of that.
    """
    if stop is None:
        return ended
    if stop is StopKind.TIMEOUT:
        return Ended("timed_out", error=ErrorInfo(type="TimedOut", message=reason))
    if not observed and ended.outcome in ("completed", "failed"):
        return ended
    return Ended(stop.value, error=ErrorInfo(type=stop.value.title(), message=reason))


def classify(error: BaseException) -> tuple[bool | None, float | None]:
    """Whether this error may pass by itself (None: no opinion), and the seconds to wait at least.

    A JobError says so itself; an HTTP status (on the exception, or its response) decides for clients of web
    services; a lost connection may come back.
    """
    if isinstance(error, JobError):
        return error.retryable, error.after if isinstance(error, RetryableError) else None
    status = _status(error)
    if status in PERMANENT_STATUSES:
        return False, None
    if status in PASSING_STATUSES:
        return True, _retry_after(error)
    return (True if isinstance(error, ConnectionError | TimeoutError) else None), None


def qualified_name(kind: type) -> str:
    """`module.Name`, without the module for what Python itself has."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _status(error: BaseException) -> int | None:
    for owner in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            value = getattr(owner, name, None)
            if isinstance(value, int) and 400 <= value <= 599:
                return value
    return None


def _retry_after(error: BaseException) -> float | None:
    headers: Any = getattr(getattr(error, "response", error), "headers", None)
    try:
        return max(0.0, float(headers.get("Retry-After")))
    except (AttributeError, TypeError, ValueError):
        return None


def _traceback(error: BaseException) -> str:
    """The traceback from the job function on, its middle cut when it is long; none when it never got there."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("tickwork.worker."):
        frames = frames.tb_next
    if frames is None:
        return ""
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception as second:
        text = f"<no traceback: {type(second).__name__}>"
    if len(text) > MAX_TRACEBACK_BYTES:
        half = MAX_TRACEBACK_BYTES // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return clean_text(text, MAX_TRACEBACK_BYTES + 200)
