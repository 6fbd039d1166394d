"""The first page: what runs, what failed, what comes next, who is there."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone

from jobs import definitions
from jobs.models import Job
from jobs.pages import action, capped_count, page, render_page
from occurrences.models import FailedOccurrence, Occurrence
from occurrences.states import STARTED, Status
from workers_app import registry

SHOWN = 10
CHART_MINUTES = 60
CHARTED_RUNS = 5_000  # the newest; reading more would cost more than the picture is worth
_GOOD = {Status.COMPLETED.value}
_BAD = {Status.FAILED.value, Status.TIMED_OUT.value}


@page("occurrences.view_occurrence")
def overview(request: HttpRequest) -> HttpResponse:
    """All parts of the page; a part's queries run only when its template asks."""
    now = timezone.now()
    context: dict[str, Any] = {
        "numbers": lambda: _numbers(now),
        "minutes": lambda: _minutes(now),
        "running": lambda: _running(),
        "failures": lambda: list(
            FailedOccurrence.objects.filter(resolved_at=None).select_related("job").defer("traceback", "raw")[:SHOWN]
        ),
        "coming": lambda: list(
            Job.objects.filter(is_active=True, next_run_at__isnull=False).order_by("next_run_at")[:SHOWN]
        ),
        "stopped_jobs": lambda: list(Job.objects.existing().disabled().order_by("-disabled_at")[:SHOWN]),
        "instances": lambda: list(registry.alive(now=now)[:100]),
        "sample_count": lambda: Job.objects.existing().filter(is_sample=True).count(),
        "has_jobs": lambda: Job.objects.existing().exists(),
    }
    parts = {
        "numbers": "occurrences/_numbers.html",
        "chart": "occurrences/_chart.html",
        "now": "occurrences/_now.html",
    }
    return render_page(request, "occurrences/overview.html", context, parts=parts)


@action("jobs.delete_job")
def remove_samples(request: HttpRequest) -> HttpResponse:
    """Retire the sample jobs of the first start."""
    count = definitions.remove_samples(by=request.user)  # type: ignore[arg-type]
    messages.success(request, f"{count} sample jobs were removed.")
    return redirect("overview")


def _numbers(now: datetime) -> dict[str, int]:
    rows = Occurrence.objects
    return {
        "running": capped_count(rows.with_status(STARTED)),
        "waiting": capped_count(rows.with_status([Status.QUEUED])),
        "completed": capped_count(rows.filter(status=Status.COMPLETED, pk__gte=_first_id(now - timedelta(hours=1)))),
        "failed": capped_count(FailedOccurrence.objects.filter(pk__gte=_first_id(now - timedelta(hours=24)))),
        "open_failures": capped_count(FailedOccurrence.objects.filter(resolved_at=None)),
    }


def _first_id(at: datetime) -> UUID:
    """The smallest id that was made at or after this instant."""
    return UUID(int=int(at.timestamp() * 1000) << 80)


def _running() -> list[Occurrence]:
    columns = (
        "status",
        "attempt",
        "max_attempts",
        "instance",
        "started_at",
        "progress",
        "progress_message",
        "worker",
        "job_type",
        "job__name",
    )
    rows = Occurrence.objects.with_status(STARTED).select_related("job").only(*columns)
    return list(rows.order_by("-started_at")[:SHOWN])


def _minutes(now: datetime) -> list[tuple[str, int, int, int]]:
    """For each of the last minutes: its name, and how many runs made in it ended well, badly, or neither (yet)."""
    start = now.replace(second=0, microsecond=0) - timedelta(minutes=CHART_MINUTES - 1)
    rows = Occurrence.objects.filter(pk__gte=_first_id(start)).newest_first().values_list("created_at", "status")
    counts = [[0, 0, 0] for _ in range(CHART_MINUTES)]
    for created_at, status in rows[:CHARTED_RUNS]:
        minute = int((created_at - start).total_seconds() // 60)
        if 0 <= minute < CHART_MINUTES:
            counts[minute][0 if status in _GOOD else 1 if status in _BAD else 2] += 1
    return [
        (f"{start + timedelta(minutes=index):%H:%M}", good, bad, other)
        for index, (good, bad, other) in enumerate(counts)
    ]
