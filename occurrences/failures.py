"""A failure as a value: which failures are alike, the row that an operator will resolve, and where poison messages
go.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DataError, IntegrityError

from occurrences import sql
from occurrences.models import FailedOccurrence
from tickwork.contracts import ErrorInfo
from tickwork.ids import uuid7

FAILURE_COLUMNS = (
    "id", "occurrence_id", "job_id", "kind", "attempt", "error_type", "error_message", "traceback", "fingerprint",
    "raw",
    "failed_at", "action", "note",
)  # fmt: skip

_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|'[^']*'|\"[^\"]*\"|\d+")


@dataclass(slots=True, kw_only=True)
class Failure:
    """What is known about a failure when it happens. `occurrence_id` is None for a dead letter that belongs to
    nothing.
    """

    occurrence_id: UUID | None
    job_id: UUID | None
    job_type: str
    kind: str
    attempt: int
    error: ErrorInfo
    failed_at: datetime
    raw: str = ""

    def row(self) -> tuple[Any, ...]:
        """The values of FAILURE_COLUMNS."""
        error = self.error
        return (
            uuid7(), self.occurrence_id, self.job_id, str(self.kind), self.attempt, error.type[:200], error.message,
            error.traceback,
            fingerprint(self.job_type, self.kind, error), self.raw, self.failed_at, "", "",
        )  # fmt: skip


def fingerprint(job_type: str, kind: str, error: ErrorInfo) -> str:
    """Alike for failures of the same cause: numbers, ids and quoted values do not count, nor does the rest of the
    traceback but its last frame.
    """
    frames = [line.strip() for line in error.traceback.splitlines() if line.strip().startswith("File ")]
    parts = (
        job_type,
        str(kind),
        error.type,
        _VARIABLE.sub("?", error.message),
        _VARIABLE.sub("?", frames[-1]) if frames else "",
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


REFUSED = (DataError, IntegrityError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError)
"""What a wrong message, or a row that nobody can make sense of, raises; anything else (a database that is away) is no
fault of theirs.
"""
MAX_RAW_CHARS = 16_384


def set_aside(body: bytes, error: Exception, *, now: datetime) -> None:
    """Keep a message that could not be used as a failure of its own (kind `rejected`), with its raw text."""
    raw = body[:MAX_RAW_CHARS].decode("utf-8", "replace").replace("\x00", "\ufffd")
    words = str(error).encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
    info = ErrorInfo(type=type(error).__name__, message=words[:2000])
    failure = Failure(
        occurrence_id=None,
        job_id=None,
        job_type="",
        kind=FailedOccurrence.Kind.REJECTED,
        attempt=0,
        error=info,
        failed_at=now,
        raw=raw,
    )
    sql.insert_rows(FailedOccurrence, FAILURE_COLUMNS, [failure.row()])
