"""Who can run jobs: workers (logical groups) and their instances (processes)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class Worker(models.Model):
    """A logical group of instances, for example `email-worker`; known from its first registration on."""

    name = models.CharField(primary_key=True, max_length=64)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class WorkerInstance(models.Model):
    """One process of a worker. `last_heartbeat_at` is the scheduler's clock, `worker_clock_at` the worker's own."""

    name = models.CharField(primary_key=True, max_length=100)
    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="instances")
    host = models.CharField(max_length=255, blank=True, default="")
    pid = models.PositiveIntegerField(default=0)
    version = models.CharField(max_length=32, blank=True, default="")
    concurrency = models.PositiveIntegerField(default=1)
    job_types = models.JSONField(default=list)
    started_at = models.DateTimeField()
    last_heartbeat_at = models.DateTimeField()
    worker_clock_at = models.DateTimeField(null=True)
    running_count = models.PositiveIntegerField(default=0)
    pending_event_count = models.PositiveIntegerField(default=0)
    stopped_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["worker", "name"]
        indexes: ClassVar = [
            models.Index(fields=["last_heartbeat_at"], condition=Q(stopped_at__isnull=True), name="instance_alive")
        ]

    def __str__(self) -> str:
        return self.name
