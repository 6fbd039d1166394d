"""Log lines that job code wrote."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from occurrences.models.occurrence import Occurrence


class OccurrenceLog(models.Model):
    """One line of one attempt; `sequence` counts within the attempt, so that a replayed event adds nothing."""

    occurrence = models.ForeignKey(Occurrence, on_delete=models.CASCADE, related_name="logs", db_index=False)
    attempt = models.PositiveSmallIntegerField()
    sequence = models.PositiveIntegerField()
    logged_at = models.DateTimeField()
    level = models.CharField(max_length=10)
    message = models.TextField()
    fields = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar = ["attempt", "sequence"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["occurrence", "attempt", "sequence"], name="log_line_once")
        ]

    def __str__(self) -> str:
        return self.message
