"""Who is there: registrations, heartbeats and goodbyes of worker instances, and what that says about the living.

Called by intake inside its transaction. Times on record are the scheduler's own; the worker's clock is only shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from jobs import job_types
from jobs.conf import conf
from jobs.models import JobType
from jobs.policies import resolve
from tickwork.contracts import Heartbeat, JobTypeInfo, Registered
from tickwork.logs import get_logger
from workers_app.models import Worker, WorkerInstance

log = get_logger("tickwork.registry")
_DEFAULTS = ("timeout_seconds", "max_attempts", "retry_preset")


def register(worker: str, instance: str, event: Registered, *, now: datetime) -> None:
    """An instance started (or came back): note it, its worker, and each of its job types."""
    Worker.objects.update_or_create(
        name=worker, defaults={"last_seen_at": now}, create_defaults={"first_seen_at": now, "last_seen_at": now}
    )
    said = {
        "worker_id": worker,
        "host": event.host[:255],
        "pid": event.pid,
        "version": event.version[:32],
        "concurrency": event.concurrency,
        "job_types": [info.name for info in event.job_types],
        "last_heartbeat_at": now,
        "worker_clock_at": event.at,
        "stopped_at": None,
    }
    WorkerInstance.objects.update_or_create(name=instance, defaults=said, create_defaults={**said, "started_at": now})
    for info in event.job_types:
        _register_type(worker, info, now)
    job_types.forget()


def _register_type(worker: str, info: JobTypeInfo, now: datetime) -> None:
    said = {
        "description": info.description,
        "data_schema": info.data_schema,
        "result_schema": info.result_schema,
        "defaults": _usable_defaults(worker, info),
        "isolation": info.isolation[:16],
        "last_seen_at": now,
    }
    JobType.objects.update_or_create(
        worker=worker, name=info.name, defaults=said, create_defaults={**said, "first_seen_at": now}
    )


def _usable_defaults(worker: str, info: JobTypeInfo) -> dict[str, Any]:
    """The author's defaults, each only if a policy can be made of it: a worker's mistake must not stop its jobs."""
    usable: dict[str, Any] = {}
    for name in _DEFAULTS:
        value = getattr(info, name)
        if value is None:
            continue
        try:
            resolve(call={}, job={}, job_type={name: value}, setting={})
        except ValueError as error:
            log.warning("registry.default_ignored", worker=worker, job_type=info.name, reason=str(error))
        else:
            usable[name] = value
    return usable


def heartbeat(worker: str, instance: str, event: Heartbeat, *, now: datetime) -> None:
    """The instance lives. One that was never registered here (a restored database) is noted with what is known."""
    seen = {
        "last_heartbeat_at": now,
        "worker_clock_at": event.at,
        "running_count": len(event.running),
        "pending_event_count": event.pending_events,
    }
    if not WorkerInstance.objects.filter(pk=instance).update(**seen, stopped_at=None):
        Worker.objects.get_or_create(name=worker, defaults={"first_seen_at": now, "last_seen_at": now})
        WorkerInstance.objects.create(name=instance, worker_id=worker, started_at=now, **seen)


def stopped(instance: str, *, now: datetime) -> None:
    """The instance drained and left."""
    WorkerInstance.objects.filter(pk=instance).update(stopped_at=now, running_count=0)


@dataclass(frozen=True)
class Living:
    """Which of some instances may still be running something, seen at one moment."""

    last_heard_at: Mapping[str, datetime]
    silent_since: datetime

    def __contains__(self, instance: object) -> bool:
        heard_at = self.last_heard_at.get(str(instance))
        return heard_at is not None and heard_at > self.silent_since


def living(
    last_words: Iterable[tuple[str, datetime | None]],
    *,
    hearing_since: datetime,
    heard_until: datetime,
    lost_after_seconds: float,
) -> Living:
    """Which of these instances are not known to be gone: said no goodbye, and were heard less than
    `lost_after_seconds` before `heard_until`, by a heartbeat or by the `last_words` (instance, when) that the caller
    knows of.

    Silence only counts while somebody listened: from `hearing_since` on, up to the moment until which all was heard.
    """
    heard: dict[str, datetime] = {}
    for name, said_at in last_words:
        heard[name] = max(heard.get(name, hearing_since), said_at or hearing_since)
    rows = WorkerInstance.objects.filter(pk__in=heard).values_list("name", "last_heartbeat_at", "stopped_at")
    for name, heard_at, stopped_at in rows:
        if stopped_at is None:
            heard[name] = max(heard[name], heard_at)
        else:
            del heard[name]
    return Living(heard, heard_until - timedelta(seconds=lost_after_seconds))


def alive(*, now: datetime) -> QuerySet[WorkerInstance]:
    """The instances that said no goodbye and were heard lately."""
    lost = now - timedelta(seconds=conf().worker_lost_after_seconds)
    return WorkerInstance.objects.filter(stopped_at=None, last_heartbeat_at__gte=lost)


def nobody_takes(worker: str, job_type: str, *, now: datetime) -> str:
    """Why no instance would take a run of this job type now, as a sentence for people; empty when one would."""
    known = list(alive(now=now).filter(worker=worker).values_list("job_types", flat=True))
    if not known:
        return f"No instance of the worker “{worker}” is connected."
    # A list that is empty is not known: the instance was heard of only after it had registered.
    if not any(job_type in names or not names for names in known):
        return f"The worker “{worker}” is connected, but does not know the job type “{job_type}”."
    return ""
