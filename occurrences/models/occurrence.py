"""One run of one job at one tick, with one id for life, and the value type of its history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.utils.dateparse import parse_datetime

from jobs.models import Job
from occurrences.states import CHOICES, FINAL, LIVE, STARTED, Status
from tickwork.ids import uuid7

_live = sorted(LIVE)
_final = sorted(FINAL)
FAILED = frozenset({Status.FAILED, Status.TIMED_OUT})
INDEXED = LIVE | FAILED
"""The statuses that a partial index covers."""


@dataclass(frozen=True)
class StatusChange:
    """One entry of an occurrence's history: it reached `status` (in `attempt`) at `at`, for `reason`, by `by`.

    `by` is a worker instance, a person's user name, or the role that decided (`dispatch`, `zombies`, …).
    """

    status: Status
    attempt: int
    at: datetime
    by: str
    reason: str


class OccurrenceQuerySet(models.QuerySet["Occurrence"]):
    """The words for asking about occurrences."""

    def with_status(self, statuses: Iterable[Status]) -> OccurrenceQuerySet:
        """Those with one of these statuses, by a partial index where one covers them all (INDEXED).

        SQLite takes a partial index only when the query holds the index' very condition, written out; a condition with
        parameters, as `filter(status__in=…)` makes it, reads the whole table there.
        """
        wanted = frozenset(statuses)
        rows = self
        for covered in (LIVE, FAILED):
            if wanted <= covered:
                numbers = ", ".join(str(status.value) for status in sorted(covered))
                condition = f'"{self.model._meta.db_table}"."status" IN ({numbers})'
                rows = rows.filter(RawSQL(condition, (), output_field=models.BooleanField()))
        return rows.filter(status__in=sorted(wanted))

    def newest_first(self) -> OccurrenceQuerySet:
        """Ids sort by the time they were made."""
        return self.order_by("-id")


class Occurrence(models.Model):
    """One execution of a job. Its id is also its correlation id and, towards job code, its idempotency key.

    `attempt` counts from 1; (`attempt`, `instance`) is the fence: a report of another attempt or instance is stale.
    `next_attempt_at` is set while it waits for a time (backoff, or a jittered start). `reason` says why it is in its
    status, for people.
    `policy` is the resolved retry and failure policy (see `jobs.policies`). `history` is a list of
    [status, attempt, at, by, reason], written by the same UPDATE that moves the row.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="occurrences", db_index=False)
    job_version = models.PositiveIntegerField(default=1)
    worker = models.CharField(max_length=64)
    job_type = models.CharField(max_length=64)
    data = models.JSONField(default=dict)
    policy = models.JSONField(default=dict)
    trigger = models.CharField(max_length=16)
    triggered_by = models.CharField(max_length=150, blank=True, default="")
    scheduled_for = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    status = models.PositiveSmallIntegerField(choices=CHOICES, default=Status.QUEUED.value)
    attempt = models.PositiveSmallIntegerField(default=1)
    max_attempts = models.PositiveSmallIntegerField(default=1)
    timeout_seconds = models.FloatField()
    instance = models.CharField(max_length=100, blank=True, default="")
    queued_at = models.DateTimeField()
    next_attempt_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    redispatch_count = models.PositiveSmallIntegerField(default=0)
    progress = models.FloatField(null=True)
    progress_message = models.TextField(blank=True, default="")
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)
    reason = models.TextField(blank=True, default="")
    history = models.JSONField(default=list)

    objects = OccurrenceQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job", "scheduled_for"],
                condition=Q(scheduled_for__isnull=False),
                name="occurrence_once_per_tick",
            ),
            models.CheckConstraint(
                condition=Q(attempt__gte=1, attempt__lte=models.F("max_attempts")), name="occurrence_attempts"
            ),
            models.CheckConstraint(
                condition=Q(status__in=_final, ended_at__isnull=False) | Q(status__in=_live, ended_at__isnull=True),
                name="occurrence_final_has_end",
            ),
            models.CheckConstraint(condition=Q(status__range=(0, 7)), name="occurrence_status"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["job", "-id"], name="occurrence_of_job"),
            models.Index(fields=["status", "queued_at"], condition=Q(status__in=_live), name="occurrence_live"),
            models.Index(fields=["job"], condition=Q(status__in=_live), name="occurrence_live_of_job"),
            models.Index(
                fields=["-id"],
                condition=Q(status__in=[Status.FAILED.value, Status.TIMED_OUT.value]),
                name="occurrence_failed",
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def status_enum(self) -> Status:
        """The status as its named constant."""
        return Status(self.status)

    @property
    def is_final(self) -> bool:
        """Whether it has reached its end."""
        return self.status in FINAL

    @property
    def is_started(self) -> bool:
        """Whether a worker holds it now, as far as is known."""
        return self.status in STARTED

    @property
    def duration_seconds(self) -> float | None:
        """Length of the last attempt's run, None while unknown."""
        return (self.ended_at - self.started_at).total_seconds() if self.started_at and self.ended_at else None

    @property
    def status_changes(self) -> list[StatusChange]:
        """The history, oldest first."""
        return [
            StatusChange(Status(status), attempt, at if (at := parse_datetime(text)) else self.created_at, by, reason)
            for status, attempt, text, by, reason in self.history
        ]
