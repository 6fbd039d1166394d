"""Messages that must leave."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class OutboxMessage(models.Model):
    """A message written in the same transaction as the change that it announces, and deleted when the broker
    confirmed it.

    `next_attempt_at`: not before this time; a relay that claims the row moves it ahead by its lease.
    `attempt_count` > 0 at a claim means that an earlier publish may have arrived: the copy says so in a header.
    """

    id = models.BigAutoField(primary_key=True)
    event_type = models.CharField(max_length=32)
    occurrence_id = models.UUIDField(null=True)
    exchange = models.CharField(max_length=64)
    routing_key = models.CharField(max_length=255)
    headers = models.JSONField(default=dict)
    body = models.TextField()
    expiration_seconds = models.FloatField(null=True)
    occurred_at = models.DateTimeField()
    next_attempt_at = models.DateTimeField()
    attempt_count = models.PositiveIntegerField(default=0)
    last_error = models.TextField(blank=True, default="")

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["next_attempt_at", "id"], name="outbox_due"),
            models.Index(fields=["occurrence_id"], name="outbox_of_occurrence"),
            models.Index(fields=["occurred_at"], condition=~Q(last_error=""), name="outbox_refused"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} {self.id}"
