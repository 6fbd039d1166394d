"""Runs in Django's administration: to be looked at. Failures are resolved and retried through `operations`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.text import Truncator

from jobs.admin import CappedPaginator, ReadOnlyAdmin, for_each
from jobs.errors import OperationRefused
from jobs.models import Job
from occurrences import operations
from occurrences.forms import FailureForm
from occurrences.models import Attempt, FailedOccurrence, LoopPass, Occurrence, OccurrenceLog, OutboxMessage
from occurrences.models.occurrence import INDEXED


def _by_id(rows: QuerySet[Any], text: str, name: str) -> QuerySet[Any]:
    """The rows whose `name` is this id; none for what is no id."""
    try:
        return rows.filter(**{name: UUID(text.strip())})
    except ValueError:
        return rows.none()


def _is_list(request: HttpRequest) -> bool:
    return request.resolver_match is not None and str(request.resolver_match.url_name).endswith("_changelist")


class ByIdAdmin(ReadOnlyAdmin):
    """Read-only rows that are searched by an occurrence's id: a search in texts would read the whole table."""

    search_fields = ("pk",)
    search_help_text = "An occurrence's id"
    searched = "occurrence_id"
    sortable_by = ()  # the only order that an index gives is the one shown

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By id only."""
        return (_by_id(queryset, search_term, self.searched) if search_term else queryset), False


class StatusFilter(admin.SimpleListFilter):
    """By the statuses that an index covers; the others would read the whole table."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """What can be chosen."""
        return [(str(status.value), status.label) for status in sorted(INDEXED)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """The rows with the chosen one."""
        chosen = [status for status in INDEXED if str(status.value) == self.value()]
        return queryset.with_status(chosen) if chosen else queryset


@admin.register(Occurrence)
class OccurrenceAdmin(ByIdAdmin):
    """Runs."""

    list_display = ("id", "job", "status", "attempt", "instance", "created_at", "started_at", "ended_at")
    list_select_related = ("job",)
    ordering = ("-id",)
    searched = "id"
    list_filter = (StatusFilter,)
    actions = ("cancel", "retry")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Occurrence]:
        """Lists leave the big columns alone."""
        rows: QuerySet[Occurrence] = super().get_queryset(request)
        return rows.defer("data", "policy", "result", "error", "history") if _is_list(request) else rows

    def view_on_site(self, obj: Occurrence) -> str:
        """Its page."""
        return reverse("occurrence_detail", args=[obj.pk])

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel(self, request: HttpRequest, rows: QuerySet[Occurrence]) -> None:
        """Stop the ticked ones."""
        user = request.user.get_username()
        for_each(self, request, rows, lambda row: operations.cancel(row.pk, by=user), "cancelled, or asked to stop.")

    @admin.action(description="Retry", permissions=["operate"])
    def retry(self, request: HttpRequest, rows: QuerySet[Occurrence]) -> None:
        """Start the ticked ones again."""
        person: Any = request.user
        for_each(self, request, rows, lambda row: operations.retry(row.pk, by=person), "started again.")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Rows are never edited here, but whoever may change them may act on them."""
        return bool(request.user.has_perm("occurrences.change_occurrence"))


@admin.register(Attempt)
class AttemptAdmin(ByIdAdmin):
    """Earlier attempts."""

    list_display = ("occurrence_id", "number", "outcome", "instance", "started_at", "ended_at")
    ordering = ("-id",)


@admin.register(OccurrenceLog)
class OccurrenceLogAdmin(ByIdAdmin):
    """Log lines."""

    list_display = ("occurrence_id", "attempt", "sequence", "logged_at", "level", "message")
    ordering = ("-id",)


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ByIdAdmin):
    """What still must leave."""

    list_display = ("id", "event_type", "occurrence_id", "next_attempt_at", "attempt_count", "last_error")
    ordering = ("id",)


@admin.register(LoopPass)
class LoopPassAdmin(ReadOnlyAdmin):
    """Proof that each loop makes progress."""

    list_display = ("role", "process", "started_at", "last_pass_at", "done_count", "last_error_at", "last_error")


class NoteActionForm(ActionForm):
    """What to do with the ticked ones, and what is kept about it."""

    note = forms.CharField(
        required=False,
        max_length=2000,
        widget=forms.TextInput(attrs={"placeholder": "Note: needed to resolve, kept with a retry", "size": 40}),
    )


@admin.register(FailedOccurrence)
class FailedOccurrenceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The inbox. Saving an open failure resolves or retries it, under the name of whoever saves."""

    form = FailureForm
    action_form = NoteActionForm
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_display = ("job_name", "kind", "error", "failed_at", "resolved_at", "action", "resolved_by")
    list_filter = (("resolved_at", admin.EmptyFieldListFilter), "kind", "action")
    list_select_related = ("job", "resolved_by")
    search_fields = ("pk",)
    search_help_text = "A job's name, or the id of a failure or an occurrence"
    sortable_by = ()
    ordering = ("-id",)
    actions = ("retry", "resolve_fixed", "resolve_ignored", "reopen")
    _kept = ("occurrence", "job", "kind", "attempt", "error_type", "error_message", "traceback_lines", "raw",
             "failed_at", "resolved_at", "resolved_by")  # fmt: skip

    @admin.display(description="Job")
    def job_name(self, failure: FailedOccurrence) -> str:
        """The job's name; a dead letter may belong to none."""
        return failure.job.name if failure.job else "Dead letter"

    @admin.display(description="Error")
    def error(self, failure: FailedOccurrence) -> str:
        """What is worth a glance."""
        return Truncator(f"{failure.error_type.rpartition('.')[2]}: {failure.error_message}").chars(100)

    @admin.display(description="Traceback")
    def traceback_lines(self, failure: FailedOccurrence) -> str:
        """With its indentation."""
        return format_html("<pre>{}</pre>", failure.traceback) if failure.traceback else "-"

    def view_on_site(self, obj: FailedOccurrence) -> str:
        """Its page."""
        return reverse("failure_detail", args=[obj.pk])

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By id or by the job's name: a search in the errors' texts would read the whole table."""
        text = search_term.strip()
        if not text:
            return queryset, False
        try:
            wanted = Q(pk=UUID(text)) | Q(occurrence=UUID(text))
        except ValueError:
            wanted = Q(job__in=Job.objects.filter(name__icontains=text))
        return queryset.filter(wanted), False

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailedOccurrence]:
        """Lists leave the big columns alone."""
        rows: QuerySet[FailedOccurrence] = super().get_queryset(request)
        return rows.defer("traceback", "raw") if _is_list(request) else rows

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """All but the resolution."""
        return self._kept

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """What happened, then what was done or is to be done."""
        is_retried_here = obj is not None and obj.occurrence_id and self.has_change_permission(request, obj)
        return (*self._kept, "action", "note", *(["job_data"] if is_retried_here else []))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never; retention deletes."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A resolved failure stays as it is, until it is reopened."""
        return super().has_change_permission(request, obj) and (obj is None or obj.resolved_at is None)

    def save_model(self, request: HttpRequest, obj: FailedOccurrence, form: FailureForm, change: bool) -> None:
        """Resolve or retry it."""
        person: Any = request.user
        action, note = form.cleaned_data["action"], form.cleaned_data["note"]
        if action == FailedOccurrence.Action.RETRIED:
            count = operations.retry_failures([obj.pk], by=person, note=note, data=form.edited_data())
        else:
            count = operations.resolve([obj.pk], by=person, action=action, note=note)
        if not count:
            self.message_user(request, "Nothing was changed: somebody dealt with it meanwhile.", messages.ERROR)
        obj.refresh_from_db()

    @admin.action(description="Retry", permissions=["change"])
    def retry(self, request: HttpRequest, rows: QuerySet[FailedOccurrence]) -> None:
        """Start their occurrences again."""
        person: Any = request.user
        ids = [row.pk for row in rows]
        try:
            count = operations.retry_failures(ids, by=person, note=_note(request))
        except OperationRefused as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self._tell(request, count, len(ids), "started again")

    @admin.action(description="Resolve: fixed by hand", permissions=["change"])
    def resolve_fixed(self, request: HttpRequest, rows: QuerySet[FailedOccurrence]) -> None:
        """Close them as fixed."""
        self._resolve(request, rows, FailedOccurrence.Action.FIXED)

    @admin.action(description="Resolve: ignored", permissions=["change"])
    def resolve_ignored(self, request: HttpRequest, rows: QuerySet[FailedOccurrence]) -> None:
        """Close them as ignored."""
        self._resolve(request, rows, FailedOccurrence.Action.IGNORED)

    def _resolve(self, request: HttpRequest, rows: QuerySet[FailedOccurrence], action: FailedOccurrence.Action) -> None:
        person: Any = request.user
        ids = [row.pk for row in rows]
        try:
            count = operations.resolve(ids, by=person, action=action.value, note=_note(request))
        except OperationRefused as error:
            self.message_user(request, f"Nothing was resolved. {error}", messages.ERROR)
        else:
            self._tell(request, count, len(ids), "resolved")

    def _tell(self, request: HttpRequest, count: int, asked: int, told: str) -> None:
        if count:
            self.message_user(request, f"{count} {told}.", messages.SUCCESS)
        if left := asked - count:
            text = f"{left} could not be {told}: dealt with already, or without an occurrence."
            self.message_user(request, text, messages.WARNING)

    @admin.action(description="Open again", permissions=["change"])
    def reopen(self, request: HttpRequest, rows: QuerySet[FailedOccurrence]) -> None:
        """Open resolved ones again."""
        person: Any = request.user
        for_each(self, request, rows, lambda row: operations.reopen(row.pk, by=person), "open again.")


def _note(request: HttpRequest) -> str:
    return request.POST.get("note", "").strip()[:2000]
