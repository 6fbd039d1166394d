"""What people type about jobs, turned into the values that `jobs.definitions` takes; the rules are there, not here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError

from jobs.bounds import BOUNDS, plain
from jobs.conf import conf
from jobs.models import Job
from jobs.retry import PRESETS
from jobs.scheduling.dst import zone as zone_named

LOCAL_FORMAT = "%Y-%m-%dT%H:%M:%S"
INHERITED = [("", "As the job type or the settings say")]
YES_NO = [*INHERITED, ("true", "Yes"), ("false", "No")]


class JSONTextField(forms.CharField):
    """JSON text of an object; its errors say where the text is wrong."""

    widget = forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "class": "code", "autocapitalize": "off"})

    def prepare_value(self, value: Any) -> Any:
        """Values are shown indented; what was typed is shown again as it was typed."""
        if value is None or isinstance(value, str):
            return value or ""
        return json.dumps(value, indent=2, ensure_ascii=False)

    def clean(self, value: Any) -> Any:
        """The object; nothing typed is an empty one."""
        text = super().clean(value)
        if not text.strip():
            return {}
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise ValidationError(f"Not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from None
        except (ValueError, RecursionError) as error:
            raise ValidationError(f"Not valid JSON: {error}") from None
        if not isinstance(data, dict):
            raise ValidationError('The data must be a JSON object, for example {} or {"name": "value"}.')
        return data


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


class LocalDateTimeField(forms.Field):
    """A wall-clock time, naive until the form's own time zone is known."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format=LOCAL_FORMAT)

    def to_python(self, value: Any) -> datetime | None:
        """A naive datetime."""
        if value in self.empty_values:
            return None
        try:
            at = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise ValidationError("Not a date and time; expected for example 2026-12-31 23:59.") from None
        if at.tzinfo:
            raise ValidationError("Give the time without an offset; the time zone has a field of its own.")
        return at


def _yes_no() -> forms.TypedChoiceField:
    return forms.TypedChoiceField(required=False, choices=YES_NO, coerce=lambda text: text == "true", empty_value=None)


def _number(**options: Any) -> forms.FloatField:
    return forms.FloatField(
        required=False, widget=forms.NumberInput(attrs={"step": "any", "inputmode": "decimal"}), **options
    )


class JobForm(forms.Form):
    """The definition of a job. Empty policy fields mean "as the job type or the settings say"."""

    name = forms.CharField(max_length=200)
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 2}))
    worker = forms.CharField(max_length=64, help_text="The group of instances that runs it, for example email-worker.")
    job_type = forms.CharField(max_length=64, help_text="The name under which the worker registered the code.")
    data = JSONTextField(  # type: ignore[assignment]
        required=False, help_text="A JSON object; checked against the schema that the worker registered."
    )

    kind = forms.ChoiceField(
        label="Runs",
        choices=[("cron", "On a schedule"), ("once", "Once"), ("manual", "Only on call")],
        widget=forms.RadioSelect,
        initial="cron",
    )
    cron = forms.CharField(
        required=False,
        max_length=200,
        widget=forms.TextInput(
            attrs={"spellcheck": "false", "autocapitalize": "off", "class": "code", "placeholder": "30 2 * * MON-FRI"}
        ),
        help_text="minute hour day month weekday; with six fields the second comes first. @hourly, @daily … work too.",
    )
    execute_at = LocalDateTimeField(required=False, label="Run at", help_text="In the time zone below.")
    timezone = forms.CharField(
        max_length=64, initial="UTC", widget=forms.TextInput(attrs={"list": "zones", "spellcheck": "false"})
    )
    starts_at = LocalDateTimeField(required=False, label="Not before", help_text="In the time zone above.")
    ends_at = LocalDateTimeField(required=False, label="Not after", help_text="In the time zone above.")

    concurrent_execution_policy = forms.TypedChoiceField(
        label="While an earlier run is still live", choices=Job.Overlap.choices, coerce=int, initial=Job.Overlap.SKIP
    )
    misfire_policy = forms.ChoiceField(label="Runs missed while the scheduler was down", choices=Job.Misfire.choices)
    misfire_limit = forms.IntegerField(label="At most this many of them", initial=10, required=False)
    start_deadline_seconds = _number(label="Not at all when later than (seconds)")
    dst_gap = forms.ChoiceField(label="Time left out by a clock change", choices=Job.DstGap.choices)
    dst_overlap = forms.ChoiceField(label="Time repeated by a clock change", choices=Job.DstOverlap.choices)
    jitter_seconds = _number(
        label="Random delay of up to (seconds)", initial=0, help_text="Spreads jobs that are due together."
    )

    timeout_seconds = _number(label="Longest run of one attempt (seconds)")
    max_attempts = forms.IntegerField(required=False, label="Attempts", help_text="The first try included, 1 to 100.")
    retry_preset = forms.ChoiceField(
        required=False, label="Backoff", choices=[*INHERITED, *((name, name) for name in PRESETS)]
    )
    retry_base_seconds = _number(label="First wait (seconds)")
    retry_cap_seconds = _number(label="Longest wait (seconds)")
    retry_jitter_seconds = _number(label="Random extra wait of up to (seconds)")
    retry_on_timeout = _yes_no()
    retry_on_zombie = _yes_no()
    on_worker_unavailable = forms.ChoiceField(
        required=False, label="When no worker takes it in time", choices=[*INHERITED, *Job.OnWorkerUnavailable.choices]
    )
    queue_ttl_seconds = _number(label="Time for a worker to take it (seconds)")
    auto_disable_threshold = forms.IntegerField(
        required=False, label="Disable after this many failures in a row", help_text="0: never."
    )
    auto_disable_window_seconds = _number(label="… within (seconds)")
    auto_reenable_after_seconds = _number(
        label="Probe it again after (seconds)", help_text="0: only a person enables it again."
    )

    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    GROUPS: ClassVar = [
        ("What", "", ["name", "description", "worker", "job_type", "data"]),
        ("When", "", ["kind", "cron", "execute_at", "timezone"]),
        (
            "Schedule details",
            "Bounds, overlap, missed runs and clock changes",
            [
                "starts_at",
                "ends_at",
                "jitter_seconds",
                "concurrent_execution_policy",
                "misfire_policy",
                "misfire_limit",
                "start_deadline_seconds",
                "dst_gap",
                "dst_overlap",
            ],
        ),
        (
            "Attempts and failure",
            "Timeout, retries, waiting for a worker, auto-disable",
            [
                "timeout_seconds",
                "max_attempts",
                "retry_preset",
                "retry_base_seconds",
                "retry_cap_seconds",
                "retry_jitter_seconds",
                "retry_on_timeout",
                "retry_on_zombie",
                "on_worker_unavailable",
                "queue_ttl_seconds",
                "auto_disable_threshold",
                "auto_disable_window_seconds",
                "auto_reenable_after_seconds",
            ],
        ),
    ]
    LABELS: ClassVar = {
        "job_type": "Job type",
        "retry_on_timeout": "Retry after a timeout",
        "retry_on_zombie": "Retry when its worker vanished",
        "timezone": "Time zone",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in self.LABELS.items():
            self.fields[name].label = label
        for name in ("worker", "job_type"):
            self.fields[name].widget.attrs |= {"list": f"{name}s", "spellcheck": "false", "autocapitalize": "off"}
        for name, bounds in BOUNDS.items():
            self.fields[name].widget.attrs |= {"min": plain(bounds.low), "max": plain(bounds.high)}
        for name, value in _settings_defaults().items():
            self.fields[name].widget.attrs["placeholder"] = value

    def groups(self) -> list[tuple[str, str, list[forms.BoundField], bool]]:
        """Title, what is in it, its fields, and whether it must be open since a field has an error."""
        return [
            (title, about, [self[name] for name in names], any(name in self.errors for name in names))
            for title, about, names in self.GROUPS
        ]

    def clean(self) -> dict[str, Any]:
        """Only the schedule that was chosen counts; times get the job's zone."""
        values = self.cleaned_data
        kind = values.get("kind")
        if kind == "cron" and not values.get("cron") and "cron" not in self.errors:
            self.add_error("cron", "A schedule needs a cron, for example 0 6 * * *.")
        if kind == "once" and not values.get("execute_at") and "execute_at" not in self.errors:
            self.add_error("execute_at", "Say when it is to run.")
        if kind != "cron":
            values["cron"] = ""
        if kind != "once":
            values["execute_at"] = None
        try:
            zone = zone_named(values.get("timezone") or "UTC")
        except ValueError as error:
            self.add_error("timezone", str(error))
            return values
        for name in ("execute_at", "starts_at", "ends_at"):
            if values.get(name):
                values[name] = values[name].replace(tzinfo=zone)
        return values

    def definition(self) -> dict[str, Any]:
        """The fields that `jobs.definitions` takes."""
        values = {name: value for name, value in self.cleaned_data.items() if name not in ("kind", "version")}
        values["jitter_seconds"] = values["jitter_seconds"] or 0.0
        if values["misfire_limit"] is None:
            values["misfire_limit"] = 10
        return values

    def add_refusal(self, fields: Mapping[str, list[str]], message: str) -> None:
        """Show what `jobs.definitions` refused, at the fields to blame."""
        for name, texts in fields.items():
            for text in texts:
                self.add_error(name if name in self.fields else None, text)
        if not fields:
            self.add_error(None, message)


def initial_of(job: Job) -> dict[str, Any]:
    """A job's definition as the form shows it."""
    zone = zone_named(job.timezone)
    values = {name: getattr(job, name) for name in JobForm.base_fields if name != "kind"}
    for name in ("execute_at", "starts_at", "ends_at"):
        if values[name]:
            values[name] = values[name].astimezone(zone).strftime(LOCAL_FORMAT)
    for name in ("retry_on_timeout", "retry_on_zombie"):
        values[name] = {None: "", True: "true", False: "false"}[values[name]]
    return {**values, "kind": job.schedule_kind}


def _settings_defaults() -> dict[str, str]:
    """What holds where neither the job nor its type says anything."""
    settings = conf()
    return {
        "timeout_seconds": f"{settings.default_timeout_seconds:g}",
        "max_attempts": str(settings.default_max_attempts),
        "queue_ttl_seconds": f"{settings.default_queue_ttl_seconds:g}",
        "auto_disable_threshold": str(settings.auto_disable_threshold),
        "auto_disable_window_seconds": f"{settings.auto_disable_window_seconds:g}",
        "auto_reenable_after_seconds": f"{settings.auto_reenable_after_seconds:g}",
    }
