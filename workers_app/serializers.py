"""The JSON of workers and their instances."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from rest_framework import serializers

from jobs.conf import conf
from workers_app.models import Worker, WorkerInstance


class InstanceSerializer(serializers.ModelSerializer[WorkerInstance]):
    """One process of a worker."""

    is_alive = serializers.SerializerMethodField()

    class Meta:
        model = WorkerInstance
        fields = (
            "name",
            "is_alive",
            "host",
            "pid",
            "version",
            "concurrency",
            "running_count",
            "pending_event_count",
            "job_types",
            "started_at",
            "last_heartbeat_at",
            "worker_clock_at",
            "stopped_at",
        )

    def get_is_alive(self, instance: WorkerInstance) -> bool:
        """Whether it was heard of lately and has not said goodbye."""
        silent = timezone.now() - instance.last_heartbeat_at
        return instance.stopped_at is None and silent <= timedelta(seconds=conf().worker_lost_after_seconds)


class WorkerSerializer(serializers.ModelSerializer[Worker]):
    """A worker with those of its instances that have not said goodbye."""

    instances = InstanceSerializer(many=True, read_only=True)

    class Meta:
        model = Worker
        fields = ("name", "first_seen_at", "last_seen_at", "instances")
