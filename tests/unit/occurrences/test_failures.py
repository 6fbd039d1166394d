"""Failures of one cause have one fingerprint."""

from __future__ import annotations

import pytest

from occurrences.failures import Failure, fingerprint
from tests.factories import NOON
from tickwork.contracts import ErrorInfo

TRACE = 'Traceback:\n  File "/a.py", line 1, in main\n    f()\n  File "/b.py", line {line}, in f\n    g({value})\n'


def error(
    message: str = "no row 5 for 'anna'", *, line: int = 7, value: str = "1", kind: str = "KeyError"
) -> ErrorInfo:
    return ErrorInfo(type=kind, message=message, traceback=TRACE.format(line=line, value=value))


def print_of(error: ErrorInfo, job_type: str = "work", kind: str = "permanent") -> str:
    return fingerprint(job_type, kind, error)


@pytest.mark.parametrize(
    "alike",
    [
        error("no row 981 for 'bert'"),
        error('no row 0x7f3a for "c d"'),
        error("no row 2b0c1f0a-1111-4222-8333-444455556666 for 'x'"),
        error(line=99),
        error(value="2"),
    ],
)
def test_numbers_ids_quoted_values_and_lines_do_not_count(alike: ErrorInfo) -> None:
    assert print_of(alike) == print_of(error())


def test_job_type_kind_error_type_words_and_the_last_frame_count() -> None:
    elsewhere = ErrorInfo(type="KeyError", message="no row 5 for 'anna'", traceback='  File "/c.py", line 1, in h\n')
    prints = {
        print_of(error()),
        print_of(error(), job_type="other"),
        print_of(error(), kind="zombie"),
        print_of(error(kind="ValueError")),
        print_of(error("no column 5 for 'anna'")),
        print_of(elsewhere),
    }
    assert len(prints) == 6


def test_a_failure_has_a_row_for_an_error_of_any_length() -> None:
    long = ErrorInfo(type="x" * 999, message="m")
    failure = Failure(
        occurrence_id=None, job_id=None, job_type="", kind="zombie", attempt=1, error=long, failed_at=NOON
    )
    row = failure.row()
    assert row[5] == "x" * 200
    assert len(row[8]) == 32
