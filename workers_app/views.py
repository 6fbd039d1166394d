"""The page of workers: who is there, what they can run, how busy they are."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from jobs.conf import conf
from jobs.models import JobType
from jobs.pages import page, render_page
from workers_app.models import Worker, WorkerInstance

GONE_SHOWN = 5
MAX_INSTANCES = 500


@page("workers_app.view_worker")
def worker_list(request: HttpRequest) -> HttpResponse:
    """Each worker with its instances and job types."""
    context = {"workers": lambda: _workers(timezone.now())}
    return render_page(request, "workers_app/worker_list.html", context, parts={"rows": "workers_app/_workers.html"})


def _workers(now: datetime) -> list[dict[str, Any]]:
    lost = now - timedelta(seconds=conf().worker_lost_after_seconds)
    instances: dict[str, list[WorkerInstance]] = defaultdict(list)
    for instance in WorkerInstance.objects.order_by("-last_heartbeat_at")[:MAX_INSTANCES]:
        instances[instance.worker_id].append(instance)
    types: dict[str, list[JobType]] = defaultdict(list)
    for job_type in JobType.objects.all():
        types[job_type.worker].append(job_type)
    return [_summary(worker, instances[worker.pk], types[worker.pk], lost) for worker in Worker.objects.all()]


def _summary(worker: Worker, instances: list[WorkerInstance], types: list[JobType], lost: datetime) -> dict[str, Any]:
    alive = [instance for instance in instances if not instance.stopped_at and instance.last_heartbeat_at >= lost]
    gone = [instance for instance in instances if instance not in alive][:GONE_SHOWN]
    return {
        "worker": worker,
        "alive": alive,
        "gone": gone,
        "types": types,
        "running": sum(instance.running_count for instance in alive),
        "capacity": sum(instance.concurrency for instance in alive),
    }
