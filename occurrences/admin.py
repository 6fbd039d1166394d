"""Runs in Django's administration: to be looked at. Failures are resolved and retried through `operations`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs.admin import CappedPaginator, ReadOnlyAdmin, for_each
from jobs.errors import OperationRefused
from occurrences import operations
from occurrences.forms import ResolveForm
from occurrences.models import Attempt, FailedOccurrence, LoopPass, Occurrence, OccurrenceLog, OutboxMessage


def _by_id(rows: QuerySet[Any], text: str, name: str) -> QuerySet[Any]:
    """The rows whose `name` is this id; none for what is no id."""
    try:
        return rows.filter(**{name: UUID(text.strip())})
    except ValueError:
        return rows.none()


class ByIdAdmin(ReadOnlyAdmin):
    """Read-only rows that are searched by an occurrence's id: a search in texts would read the whole table."""

    search_fields = ("pk",)
    search_help_text = "An occurrence's id"
    searched = "occurrence_id"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By id only."""
        return (_by_id(queryset, search_term, self.searched) if search_term else queryset), False


@admin.register(Occurrence)
class OccurrenceAdmin(ByIdAdmin):
    """Runs."""

    list_display = ("id", "job", "status", "attempt", "instance", "created_at", "started_at", "ended_at")
    list_select_related = ("job",)
    ordering = ("-id",)
    searched = "id"
    actions = ("cancel", "retry")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Occurrence]:
        """Lists leave the big columns alone."""
        rows: QuerySet[Occurrence] = super().get_queryset(request)
        is_list = request.resolver_match is not None and str(request.resolver_match.url_name).endswith("_changelist")
        return rows.defer("data", "policy", "result", "error", "history") if is_list else rows

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


class FailureForm(forms.ModelForm):  # type: ignore[type-arg]
    """Resolve an open failure: both are needed."""

    action = forms.ChoiceField(choices=ResolveForm.ACTIONS)
    note = forms.CharField(widget=forms.Textarea(attrs={"rows": 3}), max_length=2000)

    class Meta:
        model = FailedOccurrence
        fields = ("action", "note")


@admin.register(FailedOccurrence)
class FailedOccurrenceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The inbox. Saving an open failure resolves it, under the name of whoever saves."""

    form = FailureForm
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_display = ("id", "job", "kind", "error_type", "failed_at", "resolved_at", "action", "resolved_by")
    list_filter = (("resolved_at", admin.EmptyFieldListFilter), "kind", "action")
    list_select_related = ("job", "resolved_by")
    ordering = ("-id",)
    actions = ("retry", "resolve_fixed", "resolve_ignored", "reopen")
    _kept = ("occurrence", "job", "kind", "attempt", "error_type", "error_message", "traceback", "raw", "failed_at",
             "resolved_at", "resolved_by")  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """All but the resolution."""
        return self._kept

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """What happened, then what was done."""
        return (*self._kept, "action", "note")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never; retention deletes."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A resolved failure stays as it is, until it is reopened."""
        return super().has_change_permission(request, obj) and (obj is None or obj.resolved_at is None)

    def save_model(self, request: HttpRequest, obj: FailedOccurrence, form: Any, change: bool) -> None:
        """Resolve it."""
        person: Any = request.user
        operations.resolve([obj.pk], by=person, action=form.cleaned_data["action"], note=form.cleaned_data["note"])
        obj.refresh_from_db()

    @admin.action(description="Retry", permissions=["change"])
    def retry(self, request: HttpRequest, rows: QuerySet[FailedOccurrence]) -> None:
        """Start their occurrences again."""
        person: Any = request.user
        try:
            count = operations.retry_failures([row.pk for row in rows], by=person)
        except OperationRefused as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, f"{count} started again.", messages.SUCCESS)

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
        count = operations.resolve(
            ids, by=person, action=action.value, note="resolved in the administration, several at once"
        )
        self.message_user(request, f"{count} resolved.", messages.SUCCESS)

    @admin.action(description="Open again", permissions=["change"])
    def reopen(self, request: HttpRequest, rows: QuerySet[FailedOccurrence]) -> None:
        """Open resolved ones again."""
        person: Any = request.user
        for_each(self, request, rows, lambda row: operations.reopen(row.pk, by=person), "open again.")
