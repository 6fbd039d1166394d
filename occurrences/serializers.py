"""The JSON of occurrences, their logs and failures, and of what may be asked of them. Types and shapes only."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.models import Job
from jobs.policies import PolicyError, checked
from jobs.serializers import FiniteField, IdField, KnownFieldsOnly, ListQuery, ObjectField, WordField
from occurrences.models import Attempt, FailedOccurrence, Occurrence, OccurrenceLog

MAX_BATCH = 500
MAX_LOG_LINES = 1000


# ── what is shown ──────────────────────────────────────────────────────────────────────────────────


class OccurrenceSummary(serializers.ModelSerializer[Occurrence]):
    """An occurrence in a list: everything but its data, result, error and history."""

    job = serializers.UUIDField(source="job_id", read_only=True)
    job_name = serializers.CharField(source="job.name", read_only=True)
    status = serializers.SerializerMethodField()
    status_code = serializers.IntegerField(source="status", read_only=True)

    class Meta:
        model = Occurrence
        fields: tuple[str, ...] = (
            "id",
            "job",
            "job_name",
            "job_version",
            "worker",
            "job_type",
            "trigger",
            "triggered_by",
            "scheduled_for",
            "created_at",
            "status",
            "status_code",
            "reason",
            "attempt",
            "max_attempts",
            "timeout_seconds",
            "instance",
            "queued_at",
            "next_attempt_at",
            "started_at",
            "ended_at",
            "heartbeat_at",
            "cancel_requested_at",
            "progress",
            "progress_message",
        )

    def get_status(self, occurrence: Occurrence) -> str:
        """The status in words, for programs: `timed_out`."""
        return occurrence.status_enum.name.lower()


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """An attempt that lies behind an occurrence."""

    class Meta:
        model = Attempt
        fields = ("number", "outcome", "instance", "started_at", "ended_at", "error")


class OccurrenceDetail(OccurrenceSummary):
    """An occurrence with everything: `attempts` from the first to the current one, `history` of its statuses."""

    attempts = serializers.SerializerMethodField()
    history = serializers.SerializerMethodField()

    class Meta(OccurrenceSummary.Meta):
        fields = (*OccurrenceSummary.Meta.fields, "data", "policy", "result", "error", "history", "attempts")

    def get_history(self, occurrence: Occurrence) -> list[dict[str, Any]]:
        """Oldest first."""
        return [
            {
                "status": change.status.name.lower(),
                "attempt": change.attempt,
                "at": change.at,
                "by": change.by,
                "reason": change.reason,
            }
            for change in occurrence.status_changes
        ]

    def get_attempts(self, occurrence: Occurrence) -> list[dict[str, Any]]:
        """Earlier ones, then the current one, whose `outcome` is null until the occurrence is at its end."""
        current = {
            "number": occurrence.attempt,
            "outcome": occurrence.status_enum.name.lower() if occurrence.is_final else None,
            "instance": occurrence.instance,
            "started_at": occurrence.started_at,
            "ended_at": occurrence.ended_at,
            "error": occurrence.error if occurrence.is_final else None,
        }
        earlier = sorted(occurrence.attempts.all(), key=lambda attempt: (attempt.number, attempt.ended_at))
        return [*AttemptSerializer(earlier, many=True).data, current]


class LogSerializer(serializers.ModelSerializer[OccurrenceLog]):
    """A log line."""

    class Meta:
        model = OccurrenceLog
        fields = ("attempt", "sequence", "logged_at", "level", "message", "fields")


class FailureSummary(serializers.ModelSerializer[FailedOccurrence]):
    """A failure in a list: everything but its traceback and raw text. Shown with `job` and `resolved_by` joined."""

    occurrence = serializers.UUIDField(source="occurrence_id", read_only=True)
    job = serializers.UUIDField(source="job_id", read_only=True)
    job_name = serializers.SerializerMethodField()
    resolved_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)

    class Meta:
        model = FailedOccurrence
        fields: tuple[str, ...] = (
            "id",
            "occurrence",
            "job",
            "job_name",
            "kind",
            "attempt",
            "error_type",
            "error_message",
            "fingerprint",
            "failed_at",
            "resolved_at",
            "resolved_by",
            "action",
            "note",
        )

    def get_job_name(self, failure: FailedOccurrence) -> str | None:
        """None for a dead letter that belongs to no job."""
        job: Job | None = failure.job
        return job.name if job else None


class FailureDetail(FailureSummary):
    """A failure with everything."""

    class Meta(FailureSummary.Meta):
        fields = (*FailureSummary.Meta.fields, "traceback", "raw")


# ── what may be asked ──────────────────────────────────────────────────────────────────────────────


class PolicyOfCall(KnownFieldsOnly):
    """Policy values for one run, before those of the job; null leaves one to the job."""

    max_attempts = serializers.IntegerField(required=False, allow_null=True)
    timeout_seconds = FiniteField(required=False, allow_null=True)
    retry_preset = serializers.CharField(required=False, allow_null=True, allow_blank=True)
    retry_base_seconds = FiniteField(required=False, allow_null=True)
    retry_cap_seconds = FiniteField(required=False, allow_null=True)
    retry_jitter_seconds = FiniteField(required=False, allow_null=True)
    retry_on_timeout = serializers.BooleanField(required=False, allow_null=True)
    retry_on_zombie = serializers.BooleanField(required=False, allow_null=True)
    on_worker_unavailable = WordField(
        required=False, allow_null=True, allow_blank=True, choices=Job.OnWorkerUnavailable.choices
    )
    queue_ttl_seconds = FiniteField(required=False, allow_null=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """What was given, each value checked by itself."""
        given = {name: value for name, value in attrs.items() if value not in (None, "")}
        errors: dict[str, list[str]] = {}
        for name, value in given.items():
            try:
                checked(name, value, "call")
            except PolicyError as error:
                errors[name] = [str(error)]
        if errors:
            raise serializers.ValidationError(errors)
        return given


class TriggerSerializer(KnownFieldsOnly):
    """Run a job once; without `data` with the job's own."""

    data = ObjectField(required=False, allow_null=True, default=None)  # type: ignore[assignment]
    policy = PolicyOfCall(required=False, default=dict)


class TriggerBatchSerializer(KnownFieldsOnly):
    """Run a job once for each item, an object of data each; null for the job's own."""

    items = serializers.ListField(child=ObjectField(allow_null=True), min_length=1, max_length=MAX_BATCH)
    policy = PolicyOfCall(required=False, default=dict)


class CancelSerializer(KnownFieldsOnly):
    """Why it is cancelled."""

    reason = serializers.CharField(required=False, allow_blank=True, max_length=1000, default="")


class RetrySerializer(KnownFieldsOnly):
    """Start a finished occurrence again; without `data` with what it had."""

    data = ObjectField(required=False, allow_null=True, default=None)  # type: ignore[assignment]


class ResolveSerializer(KnownFieldsOnly):
    """What was done about a failure."""

    action = serializers.CharField(max_length=16)
    note = serializers.CharField(max_length=10_000)


class RetryFailureSerializer(RetrySerializer):
    """Retry a failure's occurrence."""

    note = serializers.CharField(required=False, allow_blank=True, max_length=10_000, default="")


class ManyFailures(KnownFieldsOnly):
    """Which failures."""

    ids = serializers.ListField(child=IdField(), min_length=1, max_length=MAX_BATCH)


class ResolveManySerializer(ManyFailures, ResolveSerializer):
    """What was done about some failures."""


class RetryManySerializer(ManyFailures):
    """Retry the occurrences of some failures."""

    note = serializers.CharField(required=False, allow_blank=True, max_length=10_000, default="")


class OccurrenceQuery(ListQuery):
    """Filters of the list of occurrences; `filters.OccurrenceFilter` reads their values."""

    status = serializers.CharField(required=False, allow_blank=True, max_length=200)
    job = serializers.CharField(required=False, allow_blank=True, max_length=100)
    since = serializers.CharField(required=False, allow_blank=True, max_length=100)
    until = serializers.CharField(required=False, allow_blank=True, max_length=100)


class FailureQuery(ListQuery):
    """Filters of the list of failures; `filters.FailureFilter` reads their values."""

    kind = serializers.CharField(required=False, allow_blank=True, max_length=100)
    resolved = serializers.CharField(required=False, allow_blank=True, max_length=10)
    job = serializers.CharField(required=False, allow_blank=True, max_length=100)


class LogQuery(KnownFieldsOnly):
    """Which lines: of one attempt or of all, after the line `after` (attempt and sequence, as `2.150`)."""

    attempt = serializers.IntegerField(required=False, min_value=1, max_value=32_767)
    after = serializers.RegexField(r"^\d{1,5}\.\d{1,9}$", required=False)
    limit = serializers.IntegerField(default=200, min_value=1, max_value=MAX_LOG_LINES)
