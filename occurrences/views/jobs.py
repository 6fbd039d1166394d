"""The list of jobs and a job's own page with its runs, and the buttons there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import OuterRef, Q, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from jobs import definitions
from jobs.job_types import policy_of
from jobs.models import Job
from jobs.pages import PAGE_SIZE, Page, action, capped_count, chosen, key_of, page, render_page, user_name
from jobs.policies import ResolvedPolicy
from jobs.scheduling.cron import Cron, CronError
from jobs.scheduling.describe import describe
from jobs.templatetags.pages import seconds as seconds_text
from occurrences import operations
from occurrences.forms import DataForm
from occurrences.models import Occurrence
from workers_app import registry

STATES = {"active": "Active", "paused": "Paused", "disabled": "Disabled after failures"}
LISTED = (
    "status",
    "attempt",
    "max_attempts",
    "instance",
    "trigger",
    "triggered_by",
    "scheduled_for",
    "created_at",
    "queued_at",
    "next_attempt_at",
    "started_at",
    "ended_at",
    "progress",
    "reason",
    "job",
)


@page("jobs.view_job")
def job_list(request: HttpRequest) -> HttpResponse:
    """Jobs by name, with their schedule in words and how their last run went."""
    state = chosen(request, "state", STATES)
    search = request.GET.get("q", "").strip()[:200]
    context = {
        "search": search,
        "state": state,
        "states": STATES,
        "page": lambda: _listed(request, search, state),
    }
    return render_page(request, "occurrences/job_list.html", context, parts={"rows": "occurrences/_job_rows.html"})


def _listed(request: HttpRequest, search: str, state: str) -> Page[Job]:
    rows = Job.objects.existing()
    if search:
        rows = rows.filter(Q(name__icontains=search) | Q(worker__icontains=search) | Q(job_type__icontains=search))
    if state:
        rows = rows.filter(_state(state))
    after = key_of(request, "after")
    if after is not None and (last := Job.objects.filter(pk=after).values_list("name", flat=True).first()) is not None:
        rows = rows.filter(Q(name__gt=last) | Q(name=last, pk__gt=after))
    newest = Occurrence.objects.filter(job=OuterRef("pk")).newest_first().values("pk")[:1]
    found: list[Any] = list(rows.order_by("name", "pk").annotate(last_run_id=Subquery(newest))[: PAGE_SIZE + 1])
    runs = Occurrence.objects.only(*LISTED).in_bulk([job.last_run_id for job in found if job.last_run_id])
    for job in found:
        job.last_run = runs.get(job.last_run_id)
        job.words = schedule_words(job)
    return Page.cut(found, size=PAGE_SIZE, is_first=after is None)


def _state(name: str) -> Q:
    by_person = Q(disabled_by__in=("", Job.DisabledBy.PERSON))
    stopped = Q(is_active=False)
    return {"active": Q(is_active=True), "disabled": stopped & ~by_person, "paused": stopped & by_person}[name]


def schedule_words(job: Job) -> str:
    """The schedule as a sentence."""
    if job.execute_at:
        return "Once"
    if not job.cron:
        return "On call only"
    try:
        return describe(Cron.parse(job.cron))
    except CronError:  # written before the rules became stricter
        return job.cron


@page("jobs.view_job")
def job_detail(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """One job: what it is, when it runs next, how it went lately."""
    job = get_object_or_404(Job, pk=job_id)
    runs = Occurrence.objects.filter(job=job).only(*LISTED)
    context = {
        "job": job,
        "words": schedule_words(job),
        "data_form": DataForm(initial={"data": job.data}),
        "upcoming": lambda: definitions.upcoming(job, 10),
        "recent": lambda: list(runs.newest_first()[:30]),
        "page": lambda: Page.newest_first(runs, request, size=20),
        "versions": lambda: list(job.versions.select_related("created_by")[:20]),
        "policy": lambda: _policy_rows(job),
        "nobody_takes": lambda: registry.nobody_takes(job.worker, job.job_type, now=timezone.now()),
        "open_failures": lambda: capped_count(job.failures.filter(resolved_at=None)),
    }
    parts = {"state": "occurrences/_job_state.html", "runs": "occurrences/_job_runs.html"}
    return render_page(request, "occurrences/job_detail.html", context, parts=parts)


_POLICY_LABELS = {
    "timeout_seconds": "Longest run of one attempt",
    "max_attempts": "Attempts",
    "retry_preset": "Backoff",
    "retry_base_seconds": "First wait",
    "retry_cap_seconds": "Longest wait",
    "retry_jitter_seconds": "Random extra wait",
    "retry_on_timeout": "Retry after a timeout",
    "retry_on_zombie": "Retry when its worker vanished",
    "on_worker_unavailable": "When no worker takes it",
    "queue_ttl_seconds": "Time for a worker to take it",
}


def _policy_rows(job: Job) -> list[tuple[str, str, str]]:
    """Each policy value in words and where it came from."""
    try:
        policy = policy_of(job)
    except ValueError as error:
        return [("Not valid", str(error), "")]
    return [(label, _policy_text(policy, name), policy.sources.get(name, "")) for name, label in _POLICY_LABELS.items()]


def _policy_text(policy: ResolvedPolicy, name: str) -> str:
    holder: Any = (
        policy.retry if name.startswith("retry_") and hasattr(policy.retry, name.removeprefix("retry_")) else policy
    )
    value = getattr(holder, name.removeprefix("retry_") if holder is policy.retry else name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return seconds_text(value) if name.endswith("_seconds") else str(value)


@action("jobs.change_job")
def run_now(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Make an occurrence at once, with the job's data or with those typed for this run, and go to its page."""
    job = get_object_or_404(Job.objects.existing(), pk=job_id)
    if "data" not in request.POST:
        return redirect("occurrence_detail", operations.trigger(job, by=user_name(request)))
    form = DataForm(request.POST)
    made: list[UUID] = []
    if form.accepted_by(lambda data: made.append(operations.trigger(job, data=data, by=user_name(request)))):
        return redirect("occurrence_detail", made[0])
    return render(request, "occurrences/run_form.html", {"job": job, "data_form": form}, status=422)


@action("jobs.change_job")
def pause(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Stop the job's schedule."""
    return _change(
        request,
        job_id,
        definitions.pause,
        "“{}” is paused; what runs goes on.",
        note=request.POST.get("note", "").strip()[:500],
    )


@action("jobs.change_job")
def enable(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Start the job's schedule again."""
    return _change(request, job_id, definitions.enable, "“{}” is active.")


@action("jobs.delete_job")
def retire(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """End the job for good."""
    return _change(request, job_id, definitions.retire, "“{}” was retired.", then="job_list")


def _change(
    request: HttpRequest, job_id: UUID, deed: Any, told: str, *, then: str = "", **options: Any
) -> HttpResponse:
    job = deed(get_object_or_404(Job, pk=job_id), by=request.user, **options)
    messages.success(request, told.format(job.name))
    return redirect(then) if then else redirect("job_detail", job.pk)
