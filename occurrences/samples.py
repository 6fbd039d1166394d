"""The first start's sample jobs: real work to look at, marked as samples, removable with one click."""

from __future__ import annotations

from typing import Any

from jobs.definitions import create_job, update_job
from jobs.models import Job

HEALTH_PAGE = "/health/live"


def create_samples(*, address: str, sql_database: str | None) -> int:
    """Make the samples when there is no job at all yet; returns how many.

    `address`: where the web server answers, for the HTTP sample; `sql_database`: the name under which the builtin
    worker knows Tickwork's own database. Without it there are no SQL samples.
    """
    if Job.objects.exists():
        return 0
    occurrence_counts = "SELECT status, COUNT(*) AS runs FROM occurrences_occurrence GROUP BY status ORDER BY status"
    night = (
        "SELECT j.name, COUNT(*) AS runs FROM occurrences_occurrence o JOIN jobs_job j ON j.id = o.job_id "
        "GROUP BY j.name ORDER BY runs DESC"
    )
    samples: list[dict[str, Any]] = [
        {
            "name": "Local API answers",
            "description": "Asks this server's health page every 15 seconds.",
            "job_type": "http_request",
            "data": {"url": address + HEALTH_PAGE, "timeout_seconds": 5},
            "cron": "*/15 * * * * *",
        },
        {
            "name": "Count occurrences",
            "description": "Counts Tickwork's own occurrences by status every minute, with a read-only SQL query.",
            "job_type": "sql_query",
            "data": {"database": sql_database, "sql": occurrence_counts},
            "cron": "* * * * *",
        },
        {
            "name": "Nightly report",
            "description": "Runs per job, at 02:30 every night.",
            "job_type": "sql_query",
            "data": {"database": sql_database, "sql": night},
            "cron": "30 2 * * *",
        },
    ]
    if sql_database is None:
        samples = [sample for sample in samples if sample["job_type"] != "sql_query"]
    for sample in samples:
        create_job(by=None, worker="builtin", is_sample=True, **sample)
    return len(samples)


def follow_address(address: str) -> None:
    """Point the sample that asks the server's health page at `address`: the port may be another one than last time."""
    for job in Job.objects.existing().filter(is_sample=True, job_type="http_request"):
        url = job.data.get("url")
        if isinstance(url, str) and url.endswith(HEALTH_PAGE) and url != address + HEALTH_PAGE:
            update_job(job, by=None, data={**job.data, "url": address + HEALTH_PAGE})
