"""How an attempt ended: results, exceptions and being told to stop, as values."""

from __future__ import annotations

from email.message import Message
from urllib.error import HTTPError

import pytest

from tickwork.contracts import ErrorInfo
from tickwork.errors import JobCancelled, PermanentError, RetryableError
from tickwork.worker.outcome import Ended, StopKind, classify, from_exception, from_result, judged


def test_a_result_becomes_json() -> None:
    assert bytes(from_result({"rows": [1, 2]}, 100).result) == b'{"rows":[1,2]}'
    assert from_result(None, 100).outcome == "completed"


def test_a_result_that_is_no_json_or_too_large_fails_for_good() -> None:
    for value, kind in ((object(), "ResultNotJson"), ("x" * 200, "ResultTooLarge"), ("\ud800", "ResultNotJson")):
        ended = from_result(value, 100)
        assert ended.error is not None
        assert (ended.outcome, ended.error.type, ended.error.retryable) == ("failed", kind, False)


class Response:
    status_code = 503
    headers = {"Retry-After": "7"}


class StatusError(Exception):
    response = Response()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermanentError("no"), (False, None)),
        (RetryableError("later", after=30), (True, 30)),
        (ValueError("?"), (None, None)),
        (ConnectionResetError(), (True, None)),
        (TimeoutError(), (True, None)),
        (StatusError(), (True, 7.0)),
        (HTTPError("http://x", 404, "not found", Message(), None), (False, None)),
        (HTTPError("http://x", 500, "broken", Message(), None), (None, None)),
    ],
)
def test_errors_say_whether_they_may_pass(error: Exception, expected: tuple[bool | None, float | None]) -> None:
    assert classify(error) == expected
    if isinstance(error, HTTPError):
        error.close()


def fail(depth: int) -> None:
    if depth:
        fail(depth - 1)
    raise LookupError("deep \udfff")


def caught(depth: int) -> ErrorInfo:
    try:
        fail(depth)
    except LookupError as error:
        info = from_exception(error).error
    assert info is not None
    return info


def test_an_exception_is_told_with_type_message_and_traceback() -> None:
    info = caught(0)
    assert (info.type, info.message) == ("LookupError", "deep ?")
    assert "in fail" in info.traceback


def test_a_long_traceback_and_message_are_cut() -> None:
    try:
        raise ValueError("m" * 100_000)
    except ValueError as error:
        info = from_exception(error).error
    assert info is not None
    assert len(info.message) < 9000
    assert len(info.traceback) < 17_000
    assert "characters left out" in info.traceback


def test_an_exception_without_readable_text_is_told_anyway() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    info = from_exception(Rude()).error
    assert info is not None
    assert info.message == "<Rude: its text failed with RuntimeError>"


DONE = Ended("completed")
FAILED = Ended("failed", error=ErrorInfo(type="ValueError"))
GONE = from_exception(JobCancelled("x"))


@pytest.mark.parametrize(
    ("ended", "stop", "observed", "outcome"),
    [
        (DONE, None, False, "completed"),
        (GONE, None, True, "cancelled"),
        (DONE, StopKind.TIMEOUT, False, "timed_out"),
        (FAILED, StopKind.TIMEOUT, True, "timed_out"),
        (DONE, StopKind.CANCEL, False, "completed"),
        (FAILED, StopKind.CANCEL, False, "failed"),
        (DONE, StopKind.CANCEL, True, "cancelled"),
        (GONE, StopKind.CANCEL, True, "cancelled"),
        (DONE, StopKind.SHUTDOWN, False, "completed"),
        (DONE, StopKind.SHUTDOWN, True, "interrupted"),
        (GONE, StopKind.SHUTDOWN, True, "interrupted"),
        (GONE, StopKind.SHUTDOWN, False, "interrupted"),
    ],
)
def test_being_told_to_stop_decides_unless_the_job_came_to_its_own_end(
    ended: Ended, stop: StopKind | None, observed: bool, outcome: str
) -> None:
    assert judged(ended, stop, observed=observed, reason="because").outcome == outcome
