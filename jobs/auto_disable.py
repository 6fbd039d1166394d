"""The circuit breaker of a job: enough failures in a row within a sliding window disable it; probe, enable again.

Called inside the transaction that ends occurrences (`occurrences.transitions`) and by the zombie detector's pass
(`due_probes`). It never sends anything: it returns what people should be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from jobs import schedules
from jobs.conf import conf
from jobs.models import Job

DISABLED = "job.auto_disabled"
ENABLED = "job.auto_enabled"
_WRITTEN = (
    "consecutive_failure_count", "first_failure_at", "recent_failures_at", "is_active", "disabled_by",
    "disabled_at", "disabled_reason", "probe_at", "is_probing",
)  # fmt: skip


def record(outcomes: Sequence[tuple[UUID, bool]], *, now: datetime) -> list[dict[str, Any]]:
    """Note the ends of occurrences in order, each (job id, succeeded); returns the notifications that follow.

    A batch of successes costs one UPDATE that normally matches no row.
    """
    last: dict[UUID, bool] = {}
    failures: dict[UUID, int] = {}
    for job_id, succeeded in outcomes:
        first_of_job = job_id not in last
        last[job_id] = succeeded
        if succeeded:
            failures[job_id] = 0
        elif first_of_job or job_id in failures:
            failures[job_id] = failures.get(job_id, 0) + 1
    told: list[dict[str, Any]] = []
    if recovered := [job_id for job_id, succeeded in last.items() if succeeded]:
        told += _recovered(recovered, now=now)
    healed = {job_id for job_id, succeeded in outcomes if succeeded}
    if failing := {job_id for job_id, succeeded in last.items() if not succeeded}:
        jobs = list(Job.objects.select_for_update(no_key=True).filter(pk__in=failing).order_by("pk"))
        for job in jobs:
            if job.pk in healed:
                _forget_failures(job)
            told += _failed(job, count=failures[job.pk], now=now)
        _write(jobs)
    return told


def _recovered(job_ids: list[UUID], *, now: datetime) -> list[dict[str, Any]]:
    jobs = Job.objects.filter(pk__in=job_ids)
    probed = list(jobs.select_for_update(no_key=True).filter(is_probing=True).order_by("pk"))
    for job in probed:
        job.is_active, job.is_probing, job.probe_at = True, False, None
        job.disabled_by, job.disabled_at, job.disabled_reason = "", None, ""
        try:
            job.next_run_at = schedules.first_tick(job, after=now)  # as by hand: what was missed is not made up for
        except ValueError:  # its time zone is gone, for example: the dispatcher sets it aside, with the reason
            job.next_run_at = now
        job.save(update_fields=[*_WRITTEN, "next_run_at"])
    jobs.filter(consecutive_failure_count__gt=0).update(
        consecutive_failure_count=0, first_failure_at=None, recent_failures_at=[]
    )
    return [_notice(ENABLED, job.pk, job.name, "its probe run succeeded", now) for job in probed]


def _failed(job: Job, *, count: int, now: datetime) -> list[dict[str, Any]]:
    """`count` more failures, in memory. The job is disabled when its last `threshold` ones lie within the window."""
    settings = conf()
    threshold = settings.auto_disable_threshold if job.auto_disable_threshold is None else job.auto_disable_threshold
    window_seconds = job.auto_disable_window_seconds or settings.auto_disable_window_seconds
    job.consecutive_failure_count += count
    job.first_failure_at = job.first_failure_at or now
    times = [*job.recent_failures_at, *[now.timestamp()] * min(count, threshold)]
    job.recent_failures_at = times[max(len(times) - threshold, 0) :]
    if job.is_probing:
        job.is_probing = False
        job.probe_at = _cool_down_end(job, now)
    elif (
        job.is_active
        and 0 < threshold <= len(job.recent_failures_at)
        and now.timestamp() - job.recent_failures_at[0] <= window_seconds
    ):
        job.is_active = False
        job.disabled_by = Job.DisabledBy.FAILURES
        job.disabled_at = now
        job.disabled_reason = f"{threshold} consecutive failures within {window_seconds / 60:g} min"
        job.probe_at = _cool_down_end(job, now)
        return [_notice(DISABLED, job.pk, job.name, job.disabled_reason, now)]
    return []


def _write(jobs: Sequence[Job]) -> None:
    """All in one round trip. (Django's `bulk_update` takes ten times as long to put its one statement together.)"""
    columns = {field.name: field for field in Job._meta.concrete_fields}
    fields = [columns[name] for name in (*_WRITTEN, "id")]
    rows = [[field.get_db_prep_save(getattr(job, field.name), connection) for field in fields] for job in jobs]
    values = ", ".join(f"{name} = %s" for name in _WRITTEN)
    with connection.cursor() as cursor:
        cursor.executemany(f"UPDATE {Job._meta.db_table} SET {values} WHERE id = %s", rows)


def _forget_failures(job: Job) -> None:
    job.consecutive_failure_count, job.first_failure_at, job.recent_failures_at = 0, None, []


def _cool_down_end(job: Job, now: datetime) -> datetime | None:
    seconds = (
        conf().auto_reenable_after_seconds
        if job.auto_reenable_after_seconds is None
        else job.auto_reenable_after_seconds
    )
    return now + timedelta(seconds=seconds) if seconds else None


def claim_probes(*, now: datetime) -> list[Job]:
    """Disabled jobs whose cool-down is over, each claimed for one probe run by this caller; inside its transaction.

    The next cool-down begins now, so that a probe run which ends without success or failure is not the last one.
    """
    due = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
        probe_at__lte=now, is_active=False, retired_at=None
    )
    probes = list(due.order_by("probe_at")[:100])
    for job in probes:
        job.is_probing, job.probe_at = True, _cool_down_end(job, now)
    Job.objects.bulk_update(probes, ["is_probing", "probe_at"])
    return probes


def _notice(kind: str, job_id: UUID, name: str, reason: str, now: datetime) -> dict[str, Any]:
    return {"kind": kind, "job_id": str(job_id), "job_name": name, "reason": reason, "at": now}
