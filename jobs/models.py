"""What should run, when, and the rules about it: jobs with their versions, the job types that workers offer, and the
answers already given to idempotency keys. Nothing here knows about single runs."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import F, Q

from tickwork.ids import uuid7


class JobType(models.Model):
    """The name of code that a worker registered, what it takes and gives, and its author's defaults."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    worker = models.CharField(max_length=64)
    name = models.CharField(max_length=64)
    description = models.TextField(blank=True, default="")
    data_schema = models.JSONField(default=dict, blank=True)
    result_schema = models.JSONField(default=dict, blank=True)
    defaults = models.JSONField(default=dict, blank=True)
    isolation = models.CharField(max_length=16, default="thread")
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["worker", "name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["worker", "name"], name="job_type_once_per_worker")]

    def __str__(self) -> str:
        return f"{self.worker} / {self.name}"


class JobQuerySet(models.QuerySet["Job"]):
    """The words for asking about jobs."""

    def existing(self) -> JobQuerySet:
        """Jobs that were not retired."""
        return self.filter(retired_at=None)

    def disabled(self) -> JobQuerySet:
        """Jobs that no person paused: they stopped by themselves and want somebody to look."""
        return self.filter(is_active=False, disabled_by__in=(Job.DisabledBy.FAILURES, Job.DisabledBy.SCHEDULE))

    def due(self, now: Any) -> JobQuerySet:
        """Active jobs whose next tick has come, the longest waiting first."""
        return self.filter(is_active=True, next_run_at__lte=now).order_by("next_run_at")


class Job(models.Model):
    """A definition: what to run (worker, job type, data), when (cron or `execute_at`, or only on call), and how.

    A null policy field means "as the job type or the settings say". Every edit makes a JobVersion.
    `next_run_at` is the next tick; `last_tick_at` only grows and is the guard that no tick is dispatched twice,
    also after its occurrence was purged. `consecutive_failure_count` and `first_failure_at` are about the failures
    since the last success; `recent_failures_at` has the times (seconds since 1970) of the last of them, oldest first,
    no more than decide whether the job is disabled.
    """

    class Overlap(models.IntegerChoices):
        """What a tick does while an earlier occurrence of the job is still live."""

        SKIP = 0, "Skip the tick"
        ALLOW = 2, "Run side by side"

    class Misfire(models.TextChoices):
        """What happens to ticks that were missed while no dispatcher ran."""

        FIRE_ONCE = "fire_once", "Run once for all of them"
        SKIP = "skip", "Skip them"
        CATCH_UP = "catch_up", "Run each of them"

    class DstGap(models.TextChoices):
        """What happens to a wall-clock time that a clock change leaves out."""

        RUN_AFTER = "run_after", "Run right after the gap"
        SKIP = "skip", "Skip it"

    class DstOverlap(models.TextChoices):
        """What happens to a wall-clock time that a clock change repeats."""

        ONCE = "once", "Run at the first pass only"
        TWICE = "twice", "Run at both passes"

    class OnWorkerUnavailable(models.TextChoices):
        """What happens to an occurrence that no worker took in time."""

        FAIL = "fail", "Fail it"
        REDISPATCH = "redispatch", "Send it again"

    class DisabledBy(models.TextChoices):
        """Who or what stopped an inactive job."""

        PERSON = "person", "A person paused it"
        FAILURES = "failures", "It failed too often in a row"
        SCHEDULE = "schedule", "Its schedule or policy cannot be used"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    version = models.PositiveIntegerField(default=1)
    is_sample = models.BooleanField(default=False)

    worker = models.CharField(max_length=64)
    job_type = models.CharField(max_length=64)
    data = models.JSONField(default=dict, blank=True)

    cron = models.CharField(max_length=200, blank=True, default="")
    execute_at = models.DateTimeField(null=True, blank=True)
    timezone = models.CharField(max_length=64, default="UTC")
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    jitter_seconds = models.FloatField(default=0)
    dst_gap = models.CharField(max_length=16, choices=DstGap, default=DstGap.RUN_AFTER)
    dst_overlap = models.CharField(max_length=16, choices=DstOverlap, default=DstOverlap.ONCE)
    misfire_policy = models.CharField(max_length=16, choices=Misfire, default=Misfire.FIRE_ONCE)
    misfire_limit = models.PositiveIntegerField(default=10)
    start_deadline_seconds = models.FloatField(null=True, blank=True)
    concurrent_execution_policy = models.PositiveSmallIntegerField(choices=Overlap, default=Overlap.SKIP)

    timeout_seconds = models.FloatField(null=True, blank=True)
    max_attempts = models.PositiveSmallIntegerField(null=True, blank=True)
    retry_preset = models.CharField(max_length=16, blank=True, default="")
    retry_base_seconds = models.FloatField(null=True, blank=True)
    retry_cap_seconds = models.FloatField(null=True, blank=True)
    retry_jitter_seconds = models.FloatField(null=True, blank=True)
    retry_on_timeout = models.BooleanField(null=True, blank=True)
    retry_on_zombie = models.BooleanField(null=True, blank=True)
    on_worker_unavailable = models.CharField(max_length=16, choices=OnWorkerUnavailable, blank=True, default="")
    queue_ttl_seconds = models.FloatField(null=True, blank=True)

    auto_disable_threshold = models.PositiveIntegerField(null=True, blank=True)
    auto_disable_window_seconds = models.FloatField(null=True, blank=True)
    auto_reenable_after_seconds = models.FloatField(null=True, blank=True)

    is_active = models.BooleanField(default=True)
    next_run_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_tick_at = models.DateTimeField(null=True, blank=True, editable=False)
    consecutive_failure_count = models.PositiveIntegerField(default=0, editable=False)
    first_failure_at = models.DateTimeField(null=True, blank=True, editable=False)
    recent_failures_at = models.JSONField(default=list, blank=True, editable=False)
    disabled_by = models.CharField(max_length=16, choices=DisabledBy, blank=True, default="", editable=False)
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False)
    disabled_reason = models.TextField(blank=True, default="", editable=False)
    probe_at = models.DateTimeField(null=True, blank=True, editable=False)
    is_probing = models.BooleanField(default=False, editable=False)
    retired_at = models.DateTimeField(null=True, blank=True, editable=False)

    created_at = models.DateTimeField(editable=False)
    updated_at = models.DateTimeField(editable=False)

    objects = JobQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(cron="") | Q(execute_at=None), name="job_has_one_schedule"),
            models.CheckConstraint(
                condition=Q(max_attempts=None) | Q(max_attempts__range=(1, 100)), name="job_max_attempts"
            ),
            models.CheckConstraint(condition=Q(timeout_seconds=None) | Q(timeout_seconds__gt=0), name="job_timeout"),
            models.CheckConstraint(condition=Q(jitter_seconds__gte=0), name="job_jitter"),
            models.CheckConstraint(
                condition=Q(starts_at=None) | Q(ends_at=None) | Q(ends_at__gt=F("starts_at")),
                name="job_ends_after_start",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["next_run_at"], condition=Q(is_active=True, next_run_at__isnull=False), name="job_due"
            ),
            models.Index(fields=["probe_at"], condition=Q(probe_at__isnull=False), name="job_probe"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def was_disabled(self) -> bool:
        """Inactive, and not because a person paused it."""
        return not self.is_active and self.disabled_by in (self.DisabledBy.FAILURES, self.DisabledBy.SCHEDULE)

    @property
    def schedule_kind(self) -> str:
        """`cron`, `once` or `manual`."""
        return "cron" if self.cron else "once" if self.execute_at else "manual"


class JobVersion(models.Model):
    """What a job's definition was from `created_at` on, and who made it so."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    definition = models.JSONField(encoder=DjangoJSONEncoder)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering: ClassVar = ["-number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "number"], name="job_version_once")]

    def __str__(self) -> str:
        return f"{self.job_id} v{self.number}"


class IdempotencyRecord(models.Model):
    """A client's key and the answer that was given, replayed on a repeat. Written with the answer, never before it.

    `response_body` is null for an answer without a body.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    scope = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    response_status = models.PositiveSmallIntegerField()
    response_body = models.JSONField(null=True)
    response_location = models.TextField(blank=True, default="")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["scope", "key"], name="idempotency_key_once_per_scope"),
            models.CheckConstraint(condition=Q(response_status__range=(200, 499)), name="idempotency_final_answer"),
        ]

    def __str__(self) -> str:
        return self.key
