"""Create, edit, pause, enable and retire jobs: what people and programs may do to a definition.

The pages, the admin and the API all come here. Every edit is a new JobVersion, and every function either does all of
it or raises one of `jobs.errors` with the fields to blame.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from jobs import announcer, schedules
from jobs.bounds import BOUNDS
from jobs.errors import InvalidDefinition, NotPossibleNow
from jobs.job_types import check_data, policy_of
from jobs.models import Job, JobVersion
from jobs.policies import PolicyError
from jobs.scheduling.cron import Cron, CronError
from jobs.scheduling.dst import zone
from tickwork.broker.topology import NAME

Author = AbstractBaseUser | None

DEFINITION_FIELDS = (
    "name", "description", "worker", "job_type", "data", "cron", "execute_at", "timezone", "starts_at", "ends_at",
    "jitter_seconds", "dst_gap", "dst_overlap", "misfire_policy", "misfire_limit", "start_deadline_seconds",
    "concurrent_execution_policy", "timeout_seconds", "max_attempts", "retry_preset", "retry_base_seconds",
    "retry_cap_seconds", "retry_jitter_seconds", "retry_on_timeout", "retry_on_zombie", "on_worker_unavailable",
    "queue_ttl_seconds", "auto_disable_threshold", "auto_disable_window_seconds", "auto_reenable_after_seconds",
)  # fmt: skip
_SCHEDULE_FIELDS = {"cron", "execute_at", "timezone", "starts_at", "ends_at", "dst_gap", "dst_overlap"}


@transaction.atomic
def create_job(
    *, by: Author, now: datetime | None = None, is_active: bool = True, is_sample: bool = False, **fields: Any
) -> Job:
    """A new job, at its version 1.

    `fields` are names of DEFINITION_FIELDS; `name`, `worker` and `job_type` are needed. A job with neither `cron`
    nor `execute_at` runs only on call. Raises InvalidDefinition with the messages by field.
    """
    now = now or timezone.now()
    disabled_by = "" if is_active else Job.DisabledBy.PERSON
    job = Job(is_active=is_active, disabled_by=disabled_by, is_sample=is_sample, created_at=now, updated_at=now)
    _assign(job, fields)
    _validate(job)
    job.next_run_at = schedules.first_tick(job, after=now) if is_active else None
    _save(job, force_insert=True)
    _write_version(job, by, now)
    return job


@transaction.atomic
def update_job(job: Job, *, by: Author, now: datetime | None = None, **changes: Any) -> Job:
    """Change a job; a new version is written when anything did change. Raises InvalidDefinition, NotPossibleNow
    (retired).
    """
    now = now or timezone.now()
    job = _locked(job)
    before = {name: getattr(job, name) for name in changes if name in DEFINITION_FIELDS}
    _assign(job, changes)
    _validate(job)
    changed = {name for name, value in before.items() if getattr(job, name) != value}
    if not changed:
        return job
    job.version += 1
    job.updated_at = now
    if changed & _SCHEDULE_FIELDS and job.is_active:
        job.next_run_at = schedules.first_tick(job, after=now)
    _save(job)
    _write_version(job, by, now)
    return job


@transaction.atomic
def pause(job: Job, *, by: Author, note: str = "", now: datetime | None = None) -> Job:
    """Stop its schedule, or the probe runs of one that was disabled; what runs goes on. Pausing a paused job changes
    nothing.
    """
    job = _locked(job)
    if job.is_active or job.probe_at or job.is_probing:
        who = by.get_username() if by else "the system"
        job.is_active = job.is_probing = False
        job.next_run_at = job.probe_at = None
        job.disabled_by = Job.DisabledBy.PERSON
        job.disabled_at = now or timezone.now()
        job.disabled_reason = f"paused by {who}" + (f": {note}" if note else "")
        _save(job)
    return job


@transaction.atomic
def enable(job: Job, *, by: Author, now: datetime | None = None) -> Job:
    """Start its schedule again from now on and reset the failure count; ticks in between are not made up for.

    Raises InvalidDefinition for one whose definition can no longer be used.
    """
    now = now or timezone.now()
    job = _locked(job)
    if not job.is_active:
        _validate(job)
        job.is_active, job.is_probing, job.probe_at = True, False, None
        job.disabled_by, job.disabled_at, job.disabled_reason = "", None, ""
        job.next_run_at = schedules.first_tick(job, after=now)
    job.consecutive_failure_count, job.first_failure_at, job.recent_failures_at = 0, None, []
    _save(job)
    return job


@transaction.atomic
def retire(job: Job, *, by: Author, now: datetime | None = None) -> Job:
    """End a job for good: it disappears from the lists, its occurrences stay until retention."""
    job = _locked(job)
    job.retired_at = now or timezone.now()
    job.is_active, job.is_probing, job.next_run_at, job.probe_at = False, False, None, None
    _save(job)
    return job


@transaction.atomic
def remove_samples(*, by: Author, now: datetime | None = None) -> int:
    """Retire the sample jobs of the first start; returns how many."""
    samples = list(Job.objects.existing().filter(is_sample=True))
    for job in samples:
        retire(job, by=by, now=now)
    return len(samples)


def upcoming(job: Job, count: int, *, after: datetime | None = None) -> list[datetime]:
    """The next `count` fire times in UTC; empty for a paused job or one without a schedule."""
    return schedules.coming_ticks(job, after=after or timezone.now(), count=count)


def definition(job: Job) -> dict[str, Any]:
    """The defining fields of a job as plain values."""
    return {name: getattr(job, name) for name in DEFINITION_FIELDS}


def _locked(job: Job) -> Job:
    job = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
    if job.retired_at:
        raise NotPossibleNow(f"The job {job.name!r} was retired and cannot be changed.", code="job_retired")
    return job


def _save(job: Job, *, force_insert: bool = False) -> None:
    """Write the row, and tell the open pages once it is committed."""
    job.save(force_insert=force_insert)
    transaction.on_commit(lambda: announcer.announce_job(job.pk))


def _write_version(job: Job, by: Author, now: datetime) -> None:
    author: Any = by
    JobVersion.objects.create(
        job=job, number=job.version, definition=definition(job), created_at=now, created_by=author
    )


def _assign(job: Job, fields: Mapping[str, Any]) -> None:
    errors: dict[str, list[str]] = {}
    for name, value in fields.items():
        if name not in DEFINITION_FIELDS:
            near = difflib.get_close_matches(name, DEFINITION_FIELDS, n=1)
            errors[name] = ["There is no such field." + (f" Did you mean {near[0]}?" if near else "")]
            continue
        setattr(job, name, value.strip() if isinstance(value, str) else value)
    if errors:
        raise InvalidDefinition("Some fields are not known.", fields=errors)


def _validate(job: Job) -> None:
    """Every rule about a definition, all messages at once."""
    errors: dict[str, list[str]] = {}

    def wrong(name: str, message: str) -> None:
        errors.setdefault(name, []).append(message)

    try:
        job.clean_fields(exclude=["id", "data"])
    except ValidationError as error:
        for name, messages in error.message_dict.items():
            for message in messages:
                wrong(name, message)
    for name in ("worker", "job_type"):
        if name not in errors and not NAME.match(getattr(job, name)):
            wrong(name, "Letters, digits, '-' and '_', at most 64, beginning with a letter or digit.")
    for name, bounds in BOUNDS.items():
        value = getattr(job, name)
        if isinstance(value, int | float) and not bounds.allows(value):
            errors[name] = [f"Must be {bounds}."]  # in the place of what the column could hold
    _validate_schedule(job, errors, wrong)
    if not errors:
        try:
            policy_of(job)
        except PolicyError as error:
            wrong(error.field, str(error))
    if not {"worker", "job_type", "data"} & set(errors):
        try:
            check_data(job.worker, job.job_type, job.data)
        except InvalidDefinition as error:
            for message in error.fields["data"]:
                wrong("data", message)
    if errors:
        raise InvalidDefinition("The job definition is not valid.", fields=errors)


def _validate_schedule(job: Job, errors: dict[str, list[str]], wrong: Any) -> None:
    if job.cron and job.execute_at:
        wrong("execute_at", "A job has a cron schedule or a time to execute at, not both.")
    if job.cron and "cron" not in errors:
        try:
            Cron.parse(job.cron)
        except CronError as error:
            wrong("cron", str(error))
    if "timezone" not in errors:
        try:
            zone(job.timezone)
        except ValueError as error:
            wrong("timezone", str(error))
    for name in ("execute_at", "starts_at", "ends_at"):
        value = getattr(job, name)
        if name not in errors and isinstance(value, datetime) and value.utcoffset() is None:
            wrong(name, "Needs a time zone offset.")
    starts_at, ends_at = job.starts_at, job.ends_at
    if not {"starts_at", "ends_at"} & set(errors) and starts_at and ends_at and ends_at <= starts_at:
        wrong("ends_at", "Must be later than starts_at.")
    if not (_SCHEDULE_FIELDS | {"jitter_seconds"}) & set(errors):
        try:
            schedules.schedule_of(job)
        except ValueError as error:
            wrong("cron" if job.cron else "execute_at", str(error))
