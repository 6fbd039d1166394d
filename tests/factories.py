"""Rows for tests, and the cast: the operator (does what people do), the viewer (may look), the stranger (may nothing).

Each function gives a saved row that is consistent in itself; keyword arguments replace single values.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

from django.contrib.auth.models import Permission, User
from django.db.models import Q

from jobs import definitions
from jobs.job_types import policy_of
from jobs.models import Job, JobType
from occurrences.models import Attempt, FailedOccurrence, Occurrence, OccurrenceLog
from occurrences.states import FINAL, STARTED, Status
from workers_app.models import Worker, WorkerInstance

NOON = datetime(2030, 1, 15, 12, 0, tzinfo=UTC)
APPS = ("jobs", "occurrences", "workers_app")
OPERATOR_MAY = ("add_job", "change_job", "delete_job", "change_occurrence", "change_failedoccurrence")
_number = count(1)


# ── people ─────────────────────────────────────────────────────────────────────────────────────────


def make_user(username: str, *, may: tuple[str, ...] = (), **values: Any) -> User:
    """A person with exactly these permissions (code names); "view" stands for all view permissions of our apps."""
    user = User.objects.create(username=username, **values)
    wanted = Q(codename__in=[name for name in may if name != "view"])
    if "view" in may:
        wanted |= Q(codename__startswith="view_")
    user.user_permissions.set(Permission.objects.filter(wanted, content_type__app_label__in=APPS))
    return user


def make_operator(username: str = "olga") -> User:
    """Looks, defines, runs, cancels, retries, resolves."""
    return make_user(username, may=("view", *OPERATOR_MAY))


def make_viewer(username: str = "victor") -> User:
    """Looks."""
    return make_user(username, may=("view",))


def make_stranger(username: str = "stella") -> User:
    """Has an account, and nothing else."""
    return make_user(username)


# ── definitions and workers ────────────────────────────────────────────────────────────────────────


def make_job(**values: Any) -> Job:
    """A job that runs only on call, unless `cron` or `execute_at` is given."""
    number = next(_number)
    fields = {"name": f"job {number}", "worker": "steady", "job_type": "work", "by": None, **values}
    return definitions.create_job(**fields)


def make_job_type(**values: Any) -> JobType:
    """A job type that takes anything."""
    fields = {
        "worker": "steady",
        "name": f"work_{next(_number)}",
        "first_seen_at": NOON,
        "last_seen_at": NOON,
        **values,
    }
    return JobType.objects.create(**fields)


def make_worker(name: str = "steady", **values: Any) -> Worker:
    """A worker without instances."""
    return Worker.objects.create(name=name, **{"first_seen_at": NOON, "last_seen_at": NOON, **values})


def make_instance(worker: Worker, **values: Any) -> WorkerInstance:
    """A process of a worker."""
    fields = {
        "name": f"{worker.name}-host-{next(_number)}-abcd",
        "host": "host",
        "pid": 1,
        "version": "1",
        "concurrency": 4,
        "job_types": ["work"],
        "started_at": NOON,
        "last_heartbeat_at": NOON,
        **values,
    }
    return WorkerInstance.objects.create(worker=worker, **fields)


# ── what happened ──────────────────────────────────────────────────────────────────────────────────


def make_occurrence(job: Job | None = None, *, status: Status = Status.QUEUED, **values: Any) -> Occurrence:
    """An occurrence in this status with the times that belong to it; its history has one entry."""
    job = job or make_job()
    at = values.pop("at", NOON)
    started = status in STARTED or status in (Status.COMPLETED, Status.FAILED, Status.TIMED_OUT)
    fields = {
        "job_version": job.version,
        "worker": job.worker,
        "job_type": job.job_type,
        "data": job.data,
        "policy": policy_of(job).as_json(),
        "trigger": "manual",
        "created_at": at,
        "queued_at": at,
        "timeout_seconds": 60.0,
        "max_attempts": 3,
        "instance": "steady-host-1-abcd" if started else "",
        "started_at": at if started else None,
        "ended_at": at if status in FINAL else None,
        "error": {"type": "ValueError", "message": "no"} if status == Status.FAILED else None,
        "history": [[status.value, 1, at.isoformat(), "test", ""]],
        **values,
    }
    return Occurrence.objects.create(job=job, status=status.value, **fields)


def make_attempt(occurrence: Occurrence, **values: Any) -> Attempt:
    """An attempt that lies behind the occurrence."""
    fields = {"number": 1, "outcome": "failed", "instance": "steady-host-1-abcd", "ended_at": NOON, **values}
    return Attempt.objects.create(occurrence=occurrence, **fields)


def make_log(occurrence: Occurrence, sequence: int, **values: Any) -> OccurrenceLog:
    """A log line."""
    fields = {"attempt": 1, "logged_at": NOON, "level": "info", "message": f"line {sequence}", **values}
    return OccurrenceLog.objects.create(occurrence=occurrence, sequence=sequence, **fields)


def make_failure(occurrence: Occurrence | None = None, **values: Any) -> FailedOccurrence:
    """An open failure of a failed occurrence."""
    occurrence = occurrence or make_occurrence(status=Status.FAILED)
    fields = {
        "job": occurrence.job,
        "kind": FailedOccurrence.Kind.PERMANENT,
        "attempt": 1,
        "error_type": "ValueError",
        "error_message": "no",
        "traceback": "Traceback …",
        "fingerprint": "0" * 32,
        "failed_at": NOON,
        **values,
    }
    return FailedOccurrence.objects.create(occurrence=occurrence, **fields)
