"""The JSON of jobs, their versions and job types, and the words that every serializer of the API is made of.

Types and shapes only; whether values make sense together is decided by `definitions`. What is not known is refused,
with the nearest known name, so that a misspelt field is never a silent no-op.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, cast
from uuid import UUID

from django.db import models
from django.utils import timezone
from rest_framework import serializers

from jobs.definitions import DEFINITION_FIELDS
from jobs.models import Job, JobType, JobVersion
from jobs.scheduling.cron import Cron, CronError
from jobs.scheduling.describe import describe
from jobs.scheduling.dst import zone
from jobs.scheduling.policy import Schedule, upcoming

MAX_UPCOMING = 100
EMPTIED_BY_NULL = ("cron", "retry_preset", "on_worker_unavailable")
WHOLE_NUMBERS = ("max_attempts", "misfire_limit", "auto_disable_threshold")


# ── words ──────────────────────────────────────────────────────────────────────────────────────────


class KnownFieldsOnly(serializers.Serializer[Any]):
    """Refuses fields that it does not know, and those that only the scheduler sets."""

    def to_internal_value(self, data: Any) -> Any:
        """The input's values; all messages at once."""
        errors: dict[str, Any] = {}
        if isinstance(data, Mapping):
            writable = [name for name, field in self.fields.items() if not field.read_only]
            for name in data:
                if name not in writable:
                    errors[str(name)[:100]] = [self._why_not(str(name), writable)]
        try:
            value = super().to_internal_value(data)
        except serializers.ValidationError as error:
            raise serializers.ValidationError(errors | cast(dict[str, Any], error.detail)) from None
        if errors:
            raise serializers.ValidationError(errors)
        return value

    def _why_not(self, name: str, writable: list[str]) -> str:
        if name in self.fields:
            return "This is set by the scheduler, not by you."
        near = difflib.get_close_matches(name[:100], writable, n=1)
        return "There is no such field." + (f" Did you mean {near[0]}?" if near else "")


class ListQuery(KnownFieldsOnly):
    """The query of a list: its filters, beside the two of paging (which the pagination reads)."""

    cursor = serializers.CharField(required=False, allow_blank=True)
    page_size = serializers.CharField(required=False, allow_blank=True)


class FiniteField(serializers.FloatField):
    """A number; not infinity, and not "not a number"."""

    def to_internal_value(self, data: Any) -> float:
        """The number."""
        value = super().to_internal_value(data)
        if isinstance(data, bool) or not math.isfinite(value):
            self.fail("invalid")
        return value


class InstantField(serializers.DateTimeField):
    """An instant; without an offset it would be a guess, and is refused."""

    def enforce_timezone(self, value: datetime) -> datetime:
        """In UTC."""
        if timezone.is_naive(value):
            raise serializers.ValidationError("The time needs an offset, for example 2030-01-31T12:00:00Z.")
        return super().enforce_timezone(value)


class IdField(serializers.UUIDField):
    """An id as text; a number is none."""

    def to_internal_value(self, data: Any) -> UUID:
        """The id."""
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        value: UUID = super().to_internal_value(data)
        return value


class WordField(serializers.ChoiceField):
    """One of a few values; whoever gives another one is told which there are."""

    def __init__(self, choices: Any, **kwargs: Any) -> None:
        super().__init__(choices, **kwargs)
        self.error_messages["invalid_choice"] = f"Allowed are {', '.join(map(str, self.choices))}."


class ObjectField(serializers.JSONField):
    """A JSON object."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """The object."""
        if not isinstance(data, dict):
            raise serializers.ValidationError("A JSON object is needed.")
        return data


# ── jobs ───────────────────────────────────────────────────────────────────────────────────────────


class JobSerializer(KnownFieldsOnly, serializers.ModelSerializer[Job]):
    """A job: its definition, and what the scheduler keeps about it."""

    serializer_field_mapping: ClassVar = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.FloatField: FiniteField,
        models.DateTimeField: InstantField,
        models.JSONField: ObjectField,
    }
    serializer_choice_field = WordField
    schedule_kind = serializers.CharField(read_only=True)

    class Meta:
        model = Job
        fields = (
            "id",
            *DEFINITION_FIELDS,
            "is_active",
            "version",
            "schedule_kind",
            "is_sample",
            "next_run_at",
            "last_tick_at",
            "consecutive_failure_count",
            "first_failure_at",
            "disabled_by",
            "disabled_at",
            "disabled_reason",
            "probe_at",
            "is_probing",
            "retired_at",
            "created_at",
            "updated_at",
        )
        read_only_fields = ("version", "is_sample")
        extra_kwargs: ClassVar = {
            # Whole numbers are bounded by `definitions`, not by what a column could hold.
            **{name: {"min_value": None, "max_value": None} for name in WHOLE_NUMBERS},
            **{name: {"allow_null": True} for name in EMPTIED_BY_NULL},
        }

    def to_internal_value(self, data: Any) -> Any:
        """The input's values. Null means "not given" for texts too."""
        values = super().to_internal_value(data)
        return values | {name: "" for name in EMPTIED_BY_NULL if name in values and values[name] is None}

    def validate_is_active(self, value: bool) -> bool:
        """Only for a new job; afterwards pausing and enabling are deeds with a name and a reason."""
        if self.instance is not None:
            raise serializers.ValidationError("POST to the job's /pause or /enable instead.")
        return value


class JobQuery(ListQuery):
    """Filters of the list of jobs."""

    name = serializers.CharField(required=False, max_length=200)
    is_active = serializers.BooleanField(required=False)
    worker = serializers.CharField(required=False, max_length=64)
    job_type = serializers.CharField(required=False, max_length=64)


class UpcomingQuery(KnownFieldsOnly):
    """How many fire times."""

    count = serializers.IntegerField(default=10, min_value=1, max_value=MAX_UPCOMING)


class PauseSerializer(KnownFieldsOnly):
    """Why a job is paused."""

    note = serializers.CharField(required=False, allow_blank=True, max_length=1000, default="")


class NothingSerializer(KnownFieldsOnly):
    """A deed that needs no words."""


class JobVersionSerializer(serializers.ModelSerializer[JobVersion]):
    """A job's definition as it was from some time on."""

    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)

    class Meta:
        model = JobVersion
        fields = ("id", "number", "definition", "created_at", "created_by")


class JobTypeSerializer(serializers.ModelSerializer[JobType]):
    """What a worker said that it can run."""

    class Meta:
        model = JobType
        fields = (
            "id",
            "worker",
            "name",
            "description",
            "data_schema",
            "result_schema",
            "defaults",
            "isolation",
            "first_seen_at",
            "last_seen_at",
        )


class JobTypeQuery(ListQuery):
    """Filters of the list of job types."""

    worker = serializers.CharField(required=False, max_length=64)


# ── schedules ──────────────────────────────────────────────────────────────────────────────────────


class PreviewSerializer(KnownFieldsOnly):
    """A schedule that somebody is still writing, and its next fire times."""

    cron = serializers.CharField(required=False, allow_blank=True, max_length=200, default="")
    execute_at = InstantField(required=False, allow_null=True, default=None)
    timezone = serializers.CharField(required=False, max_length=64, default="UTC")
    starts_at = InstantField(required=False, allow_null=True, default=None)
    ends_at = InstantField(required=False, allow_null=True, default=None)
    dst_gap = WordField(required=False, choices=Job.DstGap.choices, default=Job.DstGap.RUN_AFTER)
    dst_overlap = WordField(required=False, choices=Job.DstOverlap.choices, default=Job.DstOverlap.ONCE)
    count = serializers.IntegerField(default=5, min_value=1, max_value=MAX_UPCOMING)

    def validate_cron(self, value: str) -> str:
        """A cron text that fires."""
        try:
            return Cron.parse(value).text if value.strip() else ""
        except CronError as error:
            raise serializers.ValidationError(str(error)) from None

    def validate_timezone(self, value: str) -> str:
        """A zone that exists."""
        try:
            return zone(value).key
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Values that make one schedule; adds it as `schedule`."""
        if bool(attrs["cron"]) == bool(attrs["execute_at"]):
            raise serializers.ValidationError({"cron": ["Give a cron or an execute_at, one of the two."]})
        count = attrs.pop("count")
        try:
            schedule = Schedule(**{**attrs, "cron": attrs["cron"] or None})
        except ValueError as error:
            named = str(error).partition(" ")[0]
            at_fault = named if named in self.fields else "cron" if attrs["cron"] else "execute_at"
            raise serializers.ValidationError({at_fault: [str(error)]}) from None
        return {**attrs, "count": count, "schedule": schedule}

    def preview(self, now: datetime) -> dict[str, Any]:
        """The answer, once the input is valid: `fires` in UTC and `description`, a sentence."""
        values = self.validated_data
        schedule = values["schedule"]
        return {
            "fires": upcoming(schedule, now, values["count"]),
            "description": describe(Cron.parse(values["cron"]), values["timezone"]) if values["cron"] else "Once",
        }
