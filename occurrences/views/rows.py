"""Occurrences of the statuses that a partial index covers, in words that both databases recognise.

SQLite takes a partial index only when the query holds the index' very condition, written out; a condition with
parameters, as `filter(status__in=…)` makes it, reads the whole table there.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from occurrences.models import Occurrence
from occurrences.models.occurrence import OccurrenceQuerySet
from occurrences.states import LIVE, Status

FAILED = frozenset({Status.FAILED, Status.TIMED_OUT})
COVERED = LIVE | FAILED


def with_status(rows: OccurrenceQuerySet, statuses: Iterable[Status]) -> OccurrenceQuerySet:
    """The rows with one of these statuses, by a partial index where one covers them all."""
    wanted = frozenset(statuses)
    for covered in (LIVE, FAILED):
        if wanted <= covered:
            rows = rows.filter(_written_out(covered))
    return rows.filter(status__in=sorted(wanted))


def _written_out(statuses: frozenset[Status]) -> RawSQL:
    numbers = ", ".join(str(status.value) for status in sorted(statuses))
    column = f'"{Occurrence._meta.db_table}"."status"'
    return RawSQL(f"{column} IN ({numbers})", (), output_field=BooleanField())
