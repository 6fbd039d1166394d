"""The list of occurrences and an occurrence's own page, and the buttons there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from jobs.models import Job
from jobs.pages import Page, action, back_url, chosen, key_of, page, render_page, user_name
from occurrences import operations
from occurrences.forms import DataForm
from occurrences.models import Attempt, Occurrence, OccurrenceLog, StatusChange
from occurrences.models.occurrence import INDEXED, OccurrenceQuerySet
from occurrences.states import Status
from occurrences.views.jobs import LISTED
from workers_app import registry

STATUSES = {str(status.value): status.label for status in Status}
LOG_LINES = 500
TEXT_LOG_LINES = 100_000
SEARCHED = 100_000


@page("occurrences.view_occurrence")
def occurrence_list(request: HttpRequest) -> HttpResponse:
    """All occurrences, newest first, by status and job."""
    status, job_id = chosen(request, "status", STATUSES), key_of(request, "job")
    rows = Occurrence.objects.filter(job=job_id) if job_id else Occurrence.objects.all()
    searched_to = None
    if status:
        if int(status) not in INDEXED:
            searched_to = _searched_to(rows, key_of(request, "before"))
        rows = rows.with_status([Status(int(status))])
    if searched_to:
        rows = rows.filter(pk__gt=searched_to)
    shown = rows.select_related("job").only(*LISTED, "job__name", "worker", "job_type")
    context = {
        "status": status,
        "statuses": STATUSES,
        "job": lambda: Job.objects.filter(pk=job_id).first() if job_id else None,
        "page": lambda: Page.newest_first(shown, request),
        "searched_to": searched_to,
        "searched": SEARCHED,
    }
    parts = {"rows": "occurrences/_occurrence_rows.html"}
    return render_page(request, "occurrences/occurrence_list.html", context, parts=parts)


def _searched_to(rows: OccurrenceQuerySet, before: UUID | None) -> UUID | None:
    """Where a search by status ends, None: nowhere. A rare status must not make a page read ten million rows."""
    if before:
        rows = rows.filter(pk__lt=before)
    return rows.newest_first().values_list("pk", flat=True)[SEARCHED : SEARCHED + 1].first()


@page("occurrences.view_occurrence")
def occurrence_detail(request: HttpRequest, occurrence_id: UUID) -> HttpResponse:
    """One occurrence from birth to end."""
    occurrence = get_object_or_404(Occurrence.objects.select_related("job"), pk=occurrence_id)
    context = {
        "occurrence": occurrence,
        "job": occurrence.job,
        "is_waiting": occurrence.status == Status.QUEUED and occurrence.next_attempt_at is not None,
        "steps": lambda: _steps(occurrence),
        "attempts": lambda: _attempts(occurrence),
        "failures": lambda: _failures(occurrence),
        "nobody_takes": lambda: _nobody_takes(occurrence),
        "logs": lambda: _logs(occurrence),
        "data_form": DataForm(initial={"data": occurrence.data}),
    }
    parts = {"main": "occurrences/_occurrence.html", "logs": "occurrences/_logs.html"}
    return render_page(request, "occurrences/occurrence_detail.html", context, parts=parts)


@dataclass(frozen=True)
class Step:
    """One entry of the timeline and how long the occurrence stayed there; None while it still does."""

    change: StatusChange
    until: datetime | None
    is_note: bool


def _steps(occurrence: Occurrence) -> list[Step]:
    changes = occurrence.status_changes
    steps = []
    for index, change in enumerate(changes):
        following = changes[index + 1].at if index + 1 < len(changes) else None
        before = changes[index - 1] if index else None
        # A note repeats the status that it found, within the same attempt.
        is_note = (
            before is not None
            and before.status == change.status
            and before.attempt == change.attempt
            and change.status != Status.QUEUED
        )
        steps.append(Step(change, following, is_note))
    return steps


@dataclass(frozen=True)
class Try:
    """One attempt, ended or current, for the page."""

    number: int
    outcome: str
    instance: str
    started_at: datetime | None
    ended_at: datetime | None
    error: dict[str, object] | None
    is_current: bool


def _attempts(occurrence: Occurrence) -> list[Try]:
    """Newest first; the current attempt stands on the occurrence itself."""
    current = Try(
        number=occurrence.attempt,
        outcome=Status(occurrence.status).label,
        instance=occurrence.instance,
        started_at=occurrence.started_at,
        ended_at=occurrence.ended_at,
        error=occurrence.error,
        is_current=True,
    )
    ended: Sequence[Attempt] = list(occurrence.attempts.order_by("-pk")[:200])
    return [
        current,
        *(
            Try(
                row.number,
                row.outcome.replace("_", " ").capitalize(),
                row.instance,
                row.started_at,
                row.ended_at,
                row.error,
                False,
            )
            for row in ended
        ),
    ]


def _failures(occurrence: Occurrence) -> dict[str, object]:
    """The open one, if there is one, and those that were dealt with."""
    rows = list(occurrence.failures.defer("traceback", "raw"))
    return {
        "open": next((row for row in rows if not row.resolved_at), None),
        "resolved": [row for row in rows if row.resolved_at],
    }


def _nobody_takes(occurrence: Occurrence) -> str:
    """Why no worker takes it now; empty when one may, or when it waits for a time."""
    if occurrence.status != Status.QUEUED or occurrence.next_attempt_at is not None:
        return ""
    return registry.nobody_takes(occurrence.worker, occurrence.job_type, now=timezone.now())


def _logs(occurrence: Occurrence) -> dict[str, object]:
    """The last lines, oldest first, and whether there are earlier ones."""
    rows = list(_newest_lines(occurrence.pk)[: LOG_LINES + 1])
    return {"lines": rows[:LOG_LINES][::-1], "has_more": len(rows) > LOG_LINES}


def _newest_lines(occurrence_id: UUID) -> QuerySet[OccurrenceLog]:
    return OccurrenceLog.objects.filter(occurrence=occurrence_id).order_by("-attempt", "-sequence")


@page("occurrences.view_occurrence")
def log_text(request: HttpRequest, occurrence_id: UUID) -> HttpResponse:
    """All its log lines as plain text, to be searched and kept; of a very long log the last TEXT_LOG_LINES."""
    occurrence = get_object_or_404(Occurrence.objects.only("pk"), pk=occurrence_id)
    columns = ("attempt", "logged_at", "level", "message", "fields")
    rows = list(_newest_lines(occurrence.pk).values_list(*columns)[:TEXT_LOG_LINES])
    lines = [
        f"{attempt} {logged_at.isoformat(timespec='milliseconds')} {level:8} {message}{_fields_text(fields)}\n"
        for attempt, logged_at, level, message, fields in reversed(rows)
    ]
    return HttpResponse("".join(lines), content_type="text/plain; charset=utf-8")


def _fields_text(fields: dict[str, object]) -> str:
    return "".join(f" {name}={value}" for name, value in fields.items())


@action("occurrences.change_occurrence")
def cancel(request: HttpRequest, occurrence_id: UUID) -> HttpResponse:
    """Cancel it: at once while it waits, by asking its worker while it runs."""
    answer = operations.cancel(
        occurrence_id, by=user_name(request), reason=request.POST.get("reason", "").strip()[:500]
    )
    messages.success(
        request, "Cancelled." if answer == "cancelled" else "Its worker was asked to stop and will confirm."
    )
    return redirect(back_url(request))


@action("occurrences.change_occurrence")
def retry(request: HttpRequest, occurrence_id: UUID) -> HttpResponse:
    """Start a finished occurrence again, with its own data or with edited ones."""
    person: Any = request.user
    if "data" in request.POST:
        occurrence = get_object_or_404(Occurrence.objects.select_related("job"), pk=occurrence_id)
        form = DataForm(request.POST)
        if not form.accepted_by(lambda data: operations.retry(occurrence_id, by=person, data=data)):
            context = {"job": occurrence.job, "occurrence": occurrence, "data_form": form}
            return render(request, "occurrences/run_form.html", context, status=422)
    else:
        operations.retry(occurrence_id, by=person)
    messages.success(request, "Started again.")
    return redirect("occurrence_detail", occurrence_id)


@action("occurrences.change_occurrence")
def retry_now(request: HttpRequest, occurrence_id: UUID) -> HttpResponse:
    """End its wait."""
    operations.retry_now(occurrence_id, by=user_name(request))
    messages.success(request, "The wait was ended; it is on its way.")
    return redirect(back_url(request))
