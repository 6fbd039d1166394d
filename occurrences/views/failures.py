"""The inbox of failures: look, resolve, retry, reopen; one by one or many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from jobs.models import Job
from jobs.pages import Page, action, back_url, chosen, key_of, page, render_page
from occurrences import operations
from occurrences.forms import DataForm, ResolveForm, error_text
from occurrences.models import FailedOccurrence

KINDS = dict(FailedOccurrence.Kind.choices)
MAX_SELECTED = 500


@page("occurrences.view_failedoccurrence")
def failure_list(request: HttpRequest) -> HttpResponse:
    """Open failures, or with `?show=resolved` the resolved ones, newest first."""
    kind, shown, job_id = (
        chosen(request, "kind", KINDS),
        chosen(request, "show", {"resolved": ""}),
        key_of(request, "job"),
    )
    rows = (
        FailedOccurrence.objects.filter(resolved_at__isnull=not shown)
        .select_related("job", "resolved_by")
        .defer("traceback", "raw")
    )
    if kind:
        rows = rows.filter(kind=kind)
    if job_id:
        rows = rows.filter(job=job_id)
    context = {
        "kind": kind,
        "kinds": KINDS,
        "shown": shown,
        "resolve_form": ResolveForm(),
        "job": lambda: Job.objects.filter(pk=job_id).first() if job_id else None,
        "job_id": job_id,
        "page": lambda: Page.newest_first(rows, request),
    }
    return render_page(
        request, "occurrences/failure_list.html", context, parts={"rows": "occurrences/_failure_rows.html"}
    )


@page("occurrences.view_failedoccurrence")
def failure_detail(request: HttpRequest, failure_id: UUID) -> HttpResponse:
    """One failure with its error, and what can be done about it."""
    failure = get_object_or_404(
        FailedOccurrence.objects.select_related("job", "occurrence", "resolved_by"), pk=failure_id
    )
    parts = {"main": "occurrences/_failure.html"}
    return render_page(request, "occurrences/failure_detail.html", _detail(failure), parts=parts)


def _detail(
    failure: FailedOccurrence, resolve_form: ResolveForm | None = None, data_form: DataForm | None = None
) -> dict[str, object]:
    alike = FailedOccurrence.objects.filter(
        job=failure.job_id, resolved_at=None, fingerprint=failure.fingerprint
    ).exclude(pk=failure.pk)
    return {
        "failure": failure,
        "is_refused": resolve_form is not None or data_form is not None,
        "alike": list(alike.defer("traceback", "raw")[:10]) if failure.job_id else [],
        "resolve_form": resolve_form or ResolveForm(),
        "data_form": data_form or DataForm(initial={"data": failure.occurrence.data if failure.occurrence else {}}),
    }


@action("occurrences.change_failedoccurrence")
def resolve(request: HttpRequest, failure_id: UUID) -> HttpResponse:
    """Close one failure with a note."""
    form = ResolveForm(request.POST)
    if not form.is_valid():
        failure = get_object_or_404(
            FailedOccurrence.objects.select_related("job", "occurrence", "resolved_by"), pk=failure_id
        )
        return render(request, "occurrences/failure_detail.html", _detail(failure, resolve_form=form), status=422)
    if operations.resolve([failure_id], by=request.user, **form.cleaned_data):  # type: ignore[arg-type]
        messages.success(request, "Resolved.")
    else:
        messages.error(request, "Nothing was changed: somebody dealt with it meanwhile.")
    return redirect("failure_detail", failure_id)


@action("occurrences.change_failedoccurrence")
def reopen(request: HttpRequest, failure_id: UUID) -> HttpResponse:
    """Open a resolved failure again."""
    operations.reopen(failure_id, by=request.user)  # type: ignore[arg-type]
    messages.success(request, "Open again.")
    return redirect("failure_detail", failure_id)


@action("occurrences.change_failedoccurrence")
def retry(request: HttpRequest, failure_id: UUID) -> HttpResponse:
    """Start the failure's occurrence again, with its own data or with edited ones."""
    failure = get_object_or_404(
        FailedOccurrence.objects.select_related("job", "occurrence", "resolved_by"), pk=failure_id
    )
    started: list[int] = []

    def start(data: dict[str, Any] | None = None) -> None:
        started.append(operations.retry_failures([failure_id], by=request.user, data=data))  # type: ignore[arg-type]

    if "data" not in request.POST:
        start()
    elif not (form := DataForm(request.POST)).accepted_by(start):
        return render(request, "occurrences/failure_detail.html", _detail(failure, data_form=form), status=422)
    if not started[0]:
        messages.error(request, "It cannot be retried: it is resolved already, or belongs to no occurrence.")
        return redirect("failure_detail", failure_id)
    messages.success(request, "Started again.")
    return redirect("occurrence_detail", failure.occurrence_id)


def _selected(request: HttpRequest) -> list[UUID] | None:
    """The ticked failures; None, with a message, when nothing usable was ticked."""
    try:
        ids = [UUID(text) for text in request.POST.getlist("failure")]
    except ValueError:
        ids = []
    if not ids or len(ids) > MAX_SELECTED:
        messages.error(request, "Tick the failures first." if not ids else f"At most {MAX_SELECTED} at a time.")
        return None
    return ids


@action("occurrences.change_failedoccurrence")
def resolve_selected(request: HttpRequest) -> HttpResponse:
    """Close the ticked failures with one note."""
    return _for_selected(request, _resolve_all)


@action("occurrences.change_failedoccurrence")
def retry_selected(request: HttpRequest) -> HttpResponse:
    """Start the ticked failures' occurrences again."""
    return _for_selected(request, _retry_all)


def _for_selected(request: HttpRequest, deed: Callable[[HttpRequest, list[UUID]], None]) -> HttpResponse:
    ids = _selected(request)
    if ids:
        deed(request, ids)
    return redirect(back_url(request, "failure_list"))


def _resolve_all(request: HttpRequest, ids: list[UUID]) -> None:
    form = ResolveForm(request.POST)
    if form.is_valid():
        count = operations.resolve(ids, by=request.user, **form.cleaned_data)  # type: ignore[arg-type]
        _tell(request, count, ids, "resolved")
    else:
        messages.error(request, f"Nothing was resolved. {error_text(form)}")


def _retry_all(request: HttpRequest, ids: list[UUID]) -> None:
    count = operations.retry_failures(ids, by=request.user)  # type: ignore[arg-type]
    _tell(request, count, ids, "started again")


def _tell(request: HttpRequest, count: int, ids: list[UUID], told: str) -> None:
    if count:
        messages.success(request, f"{count} {told}.")
    if left := len(set(ids)) - count:
        messages.warning(request, f"{left} could not be {told}: dealt with already, or without an occurrence.")
