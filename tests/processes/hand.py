"""The hand of an operator in a cluster under test: a process that has the scheduler's Django and does what it is told.

Started by `tests.processes.cluster`; `python -m tests.processes.hand`. One JSON object a line on standard input,
`{"do": name, ...arguments}`, one line back: `{"answer": …}` or `{"error": "…"}`. Tests themselves never touch the ORM:
they use one cluster after another, each with a database of its own.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import django
import msgspec

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.db import close_old_connections, transaction  # noqa: E402
from django.utils import timezone  # noqa: E402

from jobs import definitions  # noqa: E402
from jobs.models import Job  # noqa: E402
from occurrences import operations  # noqa: E402
from tickwork.ids import uuid7  # noqa: E402


def create_job(fields: dict[str, Any]) -> str:
    """A new job; returns its id."""
    return str(definitions.create_job(by=None, **_instants(fields)).pk)


def create_due_jobs(count: int, execute_at: str, fields: dict[str, Any]) -> list[str]:
    """Many one-time jobs with the same definition and time; returns their ids.

    The first is made as everybody makes one, the others are its copies: 5,000 calls would take longer than the test.
    """
    first = definitions.create_job(
        by=None, **_instants(fields | {"name": f"{fields['name']} 0", "execute_at": execute_at})
    )
    columns = [field.attname for field in Job._meta.concrete_fields if field.attname not in ("id", "name")]
    copies = [
        Job(id=uuid7(), name=f"{fields['name']} {number}", **{name: getattr(first, name) for name in columns})
        for number in range(1, count)
    ]
    Job.objects.bulk_create(copies, batch_size=1000)
    return [str(first.pk), *(str(job.pk) for job in copies)]


def trigger(job: str, datas: list[dict[str, Any] | None], call: dict[str, Any] | None = None) -> list[str]:
    """Run a job once for each of `datas`; returns the ids of the occurrences."""
    ids = operations.trigger_many(Job.objects.get(pk=job), datas, by="test", call=call)
    return [str(identifier) for identifier in ids]


def cancel(occurrence: str) -> str:
    """Cancel one; returns `cancelled` or `requested`."""
    return operations.cancel(UUID(occurrence), by="test", reason="cancelled by a test")


def retry(occurrence: str) -> None:
    """Start a finished one again."""
    operations.retry(UUID(occurrence), by=get_user_model().objects.get_or_create(username="test")[0])


@transaction.atomic
def end_schedules() -> list[str]:
    """Pause every job with a cron schedule; returns the last tick of each, as `id instant`."""
    said = []
    for job in Job.objects.select_for_update().filter(is_active=True).exclude(cron=""):
        said.append(f"{job.pk} {(job.last_tick_at or job.created_at).isoformat()}")
        definitions.pause(job, by=None)
    return said


def soon(seconds: float) -> str:
    """An instant that many seconds from now."""
    return (timezone.now() + timedelta(seconds=seconds)).isoformat()


DEEDS: dict[str, Callable[..., Any]] = {
    deed.__name__: deed for deed in (create_job, create_due_jobs, trigger, cancel, retry, end_schedules, soon)
}


def _instants(fields: dict[str, Any]) -> dict[str, Any]:
    names = ("execute_at", "starts_at", "ends_at")
    return {name: datetime.fromisoformat(value) if name in names else value for name, value in fields.items()}


def main() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line)
        close_old_connections()
        try:
            said: dict[str, Any] = {"answer": DEEDS[request.pop("do")](**request)}
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
