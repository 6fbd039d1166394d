"""Which occurrences and which failures somebody wants to see: one value for the list page, the API and bulk actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.dateparse import parse_datetime

from jobs.errors import OperationRefused
from occurrences.models import FailedOccurrence
from occurrences.models.occurrence import OccurrenceQuerySet
from occurrences.states import Status

M = TypeVar("M", bound=Model)

STATUSES = {status.name.lower(): status for status in Status}
_TRUE_FALSE = {"true": True, "false": False}


class _Reader:
    """Reads parameters one by one and keeps what is wrong with each."""

    def __init__(self, params: Mapping[str, str]) -> None:
        self.params = params
        self.errors: dict[str, list[str]] = {}

    def text(self, name: str) -> str:
        """The parameter, empty when it is not given."""
        return self.params.get(name, "").strip()

    def wrong(self, name: str, message: str) -> None:
        """Note a mistake."""
        self.errors.setdefault(name, []).append(message)

    def uuid(self, name: str) -> UUID | None:
        """An id."""
        if text := self.text(name):
            try:
                return UUID(text)
            except ValueError:
                self.wrong(name, "This is no id.")
        return None

    def instant(self, name: str) -> datetime | None:
        """An instant with an offset; a "+" that an address turned into a space is understood."""
        if text := self.text(name):
            try:
                value = parse_datetime(text.replace(" ", "+") if text.count(" ") == 1 and "T" in text else text)
                if value is not None and value.utcoffset() is not None:
                    return value.astimezone(UTC)
            except (ValueError, OverflowError):
                pass
            self.wrong(name, "A time with an offset is needed, for example 2030-01-31T12:00:00Z.")
        return None

    def statuses(self, name: str) -> frozenset[Status]:
        """Names or codes, separated by commas."""
        found: set[Status] = set()
        for part in self.text(name).split(","):
            word = part.strip().lower()
            if word in STATUSES:
                found.add(STATUSES[word])
            elif word.isascii() and word.isdigit() and len(word) == 1 and int(word) in set(Status):
                found.add(Status(int(word)))
            elif word:
                self.wrong(name, f"{word[:40]!r} is no status; there are {', '.join(STATUSES)}.")
        return frozenset(found)

    def one_of(self, name: str, allowed: Mapping[str, object]) -> str:
        """One of a few words."""
        text = self.text(name)
        if text and text not in allowed:
            self.wrong(name, f"Allowed are {', '.join(allowed)}.")
        return text

    def finish(self) -> None:
        """Raise what was wrong."""
        if self.errors:
            raise OperationRefused("The filter is not valid.", code="invalid", fields=self.errors)


def first_id_at(at: datetime) -> UUID:
    """The smallest id that can have been made at this instant (to the millisecond); ids sort by time."""
    milliseconds = int(at.timestamp() * 1000)
    return UUID(int=max(0, min(milliseconds, 0xFFFF_FFFF_FFFF)) << 80)


@dataclass(frozen=True)
class OccurrenceFilter:
    """No value means no limit. `since` is included, `until` is not; both are about when the occurrence was made."""

    statuses: frozenset[Status] = frozenset()
    job_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def parse(cls, params: Mapping[str, str]) -> OccurrenceFilter:
        """From the parameters `status` (names or codes, comma between), `job`, `since`, `until`; others are ignored.

        Raises OperationRefused with the messages by parameter.
        """
        reader = _Reader(params)
        wanted = cls(reader.statuses("status"), reader.uuid("job"), reader.instant("since"), reader.instant("until"))
        reader.finish()
        return wanted

    def apply(self, rows: OccurrenceQuerySet) -> OccurrenceQuerySet:
        """The rows that are wanted; uses the primary key for times."""
        if self.statuses:
            rows = rows.with_status(self.statuses)
        if self.job_id:
            rows = rows.filter(job=self.job_id)
        if self.since:
            rows = rows.filter(id__gte=first_id_at(self.since))
        if self.until:
            rows = rows.filter(id__lt=first_id_at(self.until))
        return rows


@dataclass(frozen=True)
class FailureFilter:
    """No value means no limit. `resolved` False means the open ones."""

    kind: str = ""
    resolved: bool | None = None
    job_id: UUID | None = None

    @classmethod
    def parse(cls, params: Mapping[str, str]) -> FailureFilter:
        """From the parameters `kind`, `resolved` (true or false) and `job`. Raises OperationRefused."""
        reader = _Reader(params)
        kinds = dict(FailedOccurrence.Kind.choices)
        resolved = _TRUE_FALSE.get(reader.one_of("resolved", _TRUE_FALSE))
        wanted = cls(reader.one_of("kind", kinds), resolved, reader.uuid("job"))
        reader.finish()
        return wanted

    def apply(self, rows: QuerySet[FailedOccurrence]) -> QuerySet[FailedOccurrence]:
        """The rows that are wanted."""
        if self.kind:
            rows = rows.filter(kind=self.kind)
        if self.resolved is not None:
            rows = rows.filter(resolved_at__isnull=not self.resolved)
        if self.job_id:
            rows = rows.filter(job=self.job_id)
        return rows
