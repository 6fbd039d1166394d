"""An attempt that ended without ending its occurrence, or that a later retry left behind."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from occurrences.models.occurrence import Occurrence
from tickwork.ids import uuid7


class Attempt(models.Model):
    """What became of one earlier attempt. The current attempt stands on the occurrence itself, so an occurrence
    that completes at once writes no row here. One attempt may have several rows: `interrupted` gives it back unused."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    occurrence = models.ForeignKey(Occurrence, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    outcome = models.CharField(max_length=16)
    instance = models.CharField(max_length=100, blank=True, default="")
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    error = models.JSONField(null=True)

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"{self.occurrence_id} attempt {self.number}"
