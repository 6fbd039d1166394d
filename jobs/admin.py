"""Jobs in Django's administration. Every change goes through `jobs.definitions`: it is checked and makes a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property

from jobs import definitions
from jobs.errors import OperationRefused
from jobs.models import IdempotencyRecord, Job, JobType, JobVersion
from jobs.pages import COUNT_CAP


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to a cap only: a big table is never counted to show one page of it."""

    @cached_property
    def count(self) -> int:
        """How many rows can be paged through."""
        rows: Any = self.object_list
        return int(rows.order_by()[:COUNT_CAP].count())


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that the system writes: to be looked at."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions: Any = None

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never; retention deletes."""
        return False


def for_each(
    site: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any], deed: Callable[[Any], object], told: str
) -> None:
    """Do something to each ticked row; a refusal is told and stops none of the others."""
    done = 0
    for row in rows:
        try:
            deed(row)
            done += 1
        except OperationRefused as error:
            site.message_user(request, f"{row}: {error}", messages.ERROR)
    if done:
        site.message_user(request, f"{done} {told}", messages.SUCCESS)


class JobAdminForm(forms.ModelForm):  # type: ignore[type-arg]
    """A definition; what `jobs.definitions` would refuse is shown at its field."""

    class Meta:
        model = Job
        fields = definitions.DEFINITION_FIELDS

    def clean(self) -> dict[str, Any]:
        """Try it for real and take it back, so that the checks are the same everywhere."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("data") is None:
            values["data"] = {}
        if self.errors:
            return values
        try:
            with transaction.atomic():
                save_definition(None if self.instance._state.adding else self.instance, values, by=None)
                transaction.set_rollback(True)
        except OperationRefused as error:
            for name, texts in error.fields.items():
                for text in texts:
                    self.add_error(name if name in self.fields else None, text)
            if not error.fields:
                self.add_error(None, str(error))
        return values


def save_definition(job: Job | None, values: dict[str, Any], *, by: Any) -> Job:
    """A new job, or a new version of this one."""
    if job is None:
        return definitions.create_job(by=by, **values)
    return definitions.update_job(job, by=by, **values)


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Definitions. A job is never deleted here but retired."""

    form = JobAdminForm
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_display = (
        "name",
        "worker",
        "job_type",
        "cron",
        "timezone",
        "is_active",
        "next_run_at",
        "consecutive_failure_count",
    )
    list_filter = ("is_active", "is_sample", ("retired_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "worker", "job_type")
    ordering = ("name",)
    actions = ("pause", "enable", "retire")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """What the system keeps."""
        return ("version", "is_active", "next_run_at", "last_tick_at", "consecutive_failure_count", "disabled_by",
                "disabled_at", "disabled_reason", "retired_at", "created_at", "updated_at") if obj else ()  # fmt: skip

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The definition, then what the system keeps."""
        return (*definitions.DEFINITION_FIELDS, *self.get_readonly_fields(request, obj))

    def view_on_site(self, obj: Job) -> str:
        """Its page."""
        return reverse("job_detail", args=[obj.pk])

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A retired job stays as it was."""
        return super().has_change_permission(request, obj) and (obj is None or obj.retired_at is None)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: its occurrences would go with it."""
        return False

    def save_model(self, request: HttpRequest, obj: Job, form: Any, change: bool) -> None:
        """Through the definitions, under the name of whoever asks."""
        job = save_definition(obj if change else None, form.cleaned_data, by=request.user)
        obj.pk = job.pk
        obj.refresh_from_db()

    @admin.action(description="Pause", permissions=["change"])
    def pause(self, request: HttpRequest, rows: QuerySet[Job]) -> None:
        """Stop the schedules."""
        person: Any = request.user
        for_each(self, request, rows, lambda job: definitions.pause(job, by=person), "paused.")

    @admin.action(description="Enable (resets the failure count)", permissions=["change"])
    def enable(self, request: HttpRequest, rows: QuerySet[Job]) -> None:
        """Start the schedules again."""
        person: Any = request.user
        for_each(self, request, rows, lambda job: definitions.enable(job, by=person), "enabled.")

    @admin.action(description="Retire for good", permissions=["retire"])
    def retire(self, request: HttpRequest, rows: QuerySet[Job]) -> None:
        """End the jobs."""
        person: Any = request.user
        for_each(self, request, rows, lambda job: definitions.retire(job, by=person), "retired.")

    def has_retire_permission(self, request: HttpRequest) -> bool:
        """Who may retire: the permission that elsewhere deletes."""
        return bool(request.user.has_perm("jobs.delete_job"))


@admin.register(JobVersion)
class JobVersionAdmin(ReadOnlyAdmin):
    """What a job was."""

    list_display = ("job", "number", "created_at", "created_by")
    list_select_related = ("job", "created_by")
    ordering = ("-id",)


@admin.register(JobType)
class JobTypeAdmin(ReadOnlyAdmin):
    """What workers registered."""

    list_display = ("name", "worker", "description", "last_seen_at")
    list_filter = ("worker",)
    search_fields = ("name",)


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(ReadOnlyAdmin):
    """Answers kept for repeated requests."""

    list_display = ("key", "scope", "response_status", "created_at", "expires_at")
    ordering = ("-id",)
