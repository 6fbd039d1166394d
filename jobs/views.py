"""The pages on which a job is defined: new, edit, and the answers that they ask for while one types.

Pages that also show runs, the list of jobs among them, are in `occurrences.views`.
"""

from __future__ import annotations

import zoneinfo
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from jobs import definitions
from jobs.errors import OperationRefused
from jobs.forms import JobForm, LocalDateTimeField, initial_of
from jobs.models import Job, JobType
from jobs.pages import page
from jobs.scheduling.cron import Cron
from jobs.scheduling.describe import describe
from jobs.scheduling.dst import zone as zone_named
from jobs.scheduling.policy import Schedule, upcoming

PREVIEWED = 5


@page("jobs.add_job", form=True)
def new(request: HttpRequest) -> HttpResponse:
    """An empty form, and the job that comes of it."""
    form = JobForm(
        request.POST or None,
        initial={"worker": request.GET.get("worker", ""), "job_type": request.GET.get("job_type", ""), "data": {}},
    )
    if request.method == "POST" and form.is_valid():
        try:
            job = definitions.create_job(by=_person(request), **form.definition())
        except OperationRefused as error:
            form.add_refusal(error.fields, str(error))
        else:
            messages.success(request, f"The job “{job.name}” was created.")
            return redirect("job_detail", job.pk)
    return _form_page(request, form, None)


@page("jobs.change_job", form=True)
def edit(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """The form of a job; saving makes a new version, unless somebody else made one meanwhile."""
    job = get_object_or_404(Job.objects.existing(), pk=job_id)
    form = JobForm(request.POST or None, initial=initial_of(job))
    if request.method == "POST" and form.is_valid():
        if form.cleaned_data["version"] != job.version:
            form.add_error(
                None,
                f"Somebody saved version {job.version} of this job meanwhile. Open the form again to see it.",
            )
        else:
            try:
                job = definitions.update_job(job, by=_person(request), **form.definition())
            except OperationRefused as error:
                form.add_refusal(error.fields, str(error))
            else:
                messages.success(request, f"Saved as version {job.version}.")
                return redirect("job_detail", job.pk)
    return _form_page(request, form, job)


def _person(request: HttpRequest) -> Any:
    return request.user


def _form_page(request: HttpRequest, form: JobForm, job: Job | None) -> HttpResponse:
    known = list(JobType.objects.values_list("worker", "name"))
    context = {
        "form": form,
        "job": job,
        "workers": sorted({worker for worker, _ in known}),
        "job_types": sorted({name for _, name in known}),
        "zones": sorted(zoneinfo.available_timezones()),
    }
    return render(request, "jobs/form.html", context, status=422 if form.errors else 200)


@page("jobs.view_job")
def preview(request: HttpRequest) -> HttpResponse:
    """The schedule being typed, in words, with its next fire times, or what is wrong with it. A fragment."""
    given = request.GET
    context: dict[str, Any] = {"zone": given.get("timezone") or "UTC"}
    try:
        bounds = {name: _wall_time(given.get(name), context["zone"]) for name in ("execute_at", "starts_at", "ends_at")}
        kind = given.get("kind", "cron")
        schedule = Schedule(
            cron=given.get("cron") or None if kind == "cron" else None,
            execute_at=bounds["execute_at"] if kind == "once" else None,
            timezone=context["zone"],
            dst_gap=given.get("dst_gap", "run_after"),  # type: ignore[arg-type]
            dst_overlap=given.get("dst_overlap", "once"),  # type: ignore[arg-type]
            starts_at=bounds["starts_at"],
            ends_at=bounds["ends_at"],
        )
        context["fires"] = upcoming(schedule, timezone.now(), PREVIEWED)
        context["words"] = describe(Cron.parse(schedule.cron)) if schedule.cron else ""
        context["kind"] = kind
    except (ValueError, OverflowError) as error:  # a CronError is a ValueError
        context["error"] = str(error)
    return render(request, "jobs/_preview.html", context)


def _wall_time(text: str | None, zone: str) -> Any:
    if not text:
        return None
    try:
        return LocalDateTimeField().clean(text).replace(tzinfo=zone_named(zone))
    except ValidationError as error:
        raise ValueError(" ".join(error.messages)) from None


@page("jobs.view_job")
def schema(request: HttpRequest) -> HttpResponse:
    """What the chosen job type takes, from the schema that its worker registered. A fragment."""
    worker, name = request.GET.get("worker", ""), request.GET.get("job_type", "")
    job_type = JobType.objects.filter(worker=worker, name=name).first()
    context = {
        "worker": worker,
        "name": name,
        "job_type": job_type,
        "inputs": inputs_of(job_type.data_schema) if job_type else [],
    }
    return render(request, "jobs/_schema.html", context)


def inputs_of(schema: Any) -> list[dict[str, Any]]:
    """The properties of an object schema, for people: name, type in words, whether required, default, description.

    Follows one `$ref` into `$defs`, the form in which schemas of Python functions come. Anything unusual is left out.
    """
    root = _resolved(schema, schema)
    properties = root.get("properties")
    if not isinstance(properties, dict):
        return []
    required: Any = root.get("required")
    inputs = []
    for name, raw in properties.items():
        value = _resolved(raw, schema)
        inputs.append(
            {
                "name": name,
                "type": _type_words(value, schema),
                "required": isinstance(required, list) and name in required,
                "default": value.get("default", raw.get("default") if isinstance(raw, dict) else None),
                "has_default": "default" in value or (isinstance(raw, dict) and "default" in raw),
                "description": (raw.get("description") if isinstance(raw, dict) else "")
                or value.get("description", ""),
            }
        )
    return inputs


def _resolved(value: Any, schema: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/") and isinstance(schema, dict):
        target = (schema.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
        return target if isinstance(target, dict) else {}
    return value


def _type_words(value: dict[str, Any], schema: Any, depth: int = 0) -> str:
    if isinstance(value.get("enum"), list):
        return "one of " + ", ".join(str(choice) for choice in value["enum"])
    for key in ("anyOf", "oneOf"):
        if isinstance(value.get(key), list) and depth < 3:
            return " or ".join(_type_words(_resolved(choice, schema), schema, depth + 1) for choice in value[key])
    kind = value.get("type", "anything")
    words = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
    return f"{words} ({value['format']})" if value.get("format") else words
