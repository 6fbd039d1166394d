"""Workers in Django's administration: to be looked at; they register themselves."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import ReadOnlyAdmin
from workers_app.models import Worker, WorkerInstance


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Logical groups."""

    list_display = ("name", "first_seen_at", "last_seen_at")
    search_fields = ("name",)


@admin.register(WorkerInstance)
class WorkerInstanceAdmin(ReadOnlyAdmin):
    """Processes."""

    list_display = (
        "name",
        "worker",
        "host",
        "pid",
        "version",
        "running_count",
        "concurrency",
        "last_heartbeat_at",
        "stopped_at",
    )
    list_filter = (("stopped_at", admin.EmptyFieldListFilter),)
    ordering = ("-last_heartbeat_at",)
