"""Proof that each loop makes progress."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class LoopPass(models.Model):
    """The last pass of one loop in one process. A loop that hangs stops renewing it, and its health check fails.

    `hearing_since`, `heard_until`: for the event consumer, the time within which all that workers said was heard;
    silence outside of it proves nothing.
    """

    role = models.CharField(max_length=32)
    process = models.CharField(max_length=100)
    started_at = models.DateTimeField()
    last_pass_at = models.DateTimeField()
    last_error = models.TextField(blank=True, default="")
    last_error_at = models.DateTimeField(null=True)
    done_count = models.BigIntegerField(default=0)
    hearing_since = models.DateTimeField(null=True)
    heard_until = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["role", "process"]
        verbose_name_plural = "loop passes"
        constraints: ClassVar = [models.UniqueConstraint(fields=["role", "process"], name="loop_once_per_process")]

    def __str__(self) -> str:
        return f"{self.role} {self.process}"
