"""The record that an operator resolves."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.models import Job
from occurrences.models.occurrence import Occurrence
from tickwork.ids import uuid7


class FailedOccurrence(models.Model):
    """A failure that stays until somebody resolves it. An occurrence has at most one open one; a retry that fails
    again opens another.

    A dead letter that belongs to no occurrence is kept too, with its raw text in `raw`.
    """

    class Kind(models.TextChoices):
        """Why it failed."""

        ATTEMPTS_EXHAUSTED = "attempts_exhausted", "Attempts exhausted"
        PERMANENT = "permanent", "Permanent error"
        QUEUE_TTL_EXPIRED = "queue_ttl_expired", "Worker queue TTL expired"
        REJECTED = "rejected", "Rejected by the worker"
        DELIVERY_LIMIT = "delivery_limit", "Delivered too often"
        ZOMBIE = "zombie", "Zombie detected"
        TIMED_OUT = "timed_out", "Timed out"

    class Action(models.TextChoices):
        """What the resolution was."""

        RETRIED = "retried", "Retried"
        FIXED = "fixed", "Fixed by hand"
        IGNORED = "ignored", "Ignored"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    occurrence = models.ForeignKey(Occurrence, null=True, on_delete=models.CASCADE, related_name="failures")
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="failures")
    kind = models.CharField(max_length=24, choices=Kind)
    attempt = models.PositiveSmallIntegerField(default=0)
    error_type = models.CharField(max_length=200, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    traceback = models.TextField(blank=True, default="")
    fingerprint = models.CharField(max_length=32)
    raw = models.TextField(blank=True, default="")
    failed_at = models.DateTimeField()

    resolved_at = models.DateTimeField(null=True, blank=True)
    resolved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    action = models.CharField(max_length=16, choices=Action, blank=True, default="")
    note = models.TextField(blank=True, default="")

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["occurrence"],
                condition=Q(resolved_at__isnull=True, occurrence__isnull=False),
                name="failure_open_once",
            ),
            models.CheckConstraint(
                condition=Q(resolved_at__isnull=True, action="") | (Q(resolved_at__isnull=False) & ~Q(action="")),
                name="failure_resolution_complete",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["-id"], condition=Q(resolved_at__isnull=True), name="failure_open"),
            models.Index(fields=["job", "-id"], name="failure_of_job"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} ({self.id})"
