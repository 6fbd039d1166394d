"""Tickwork's side: the producer. `operations.trigger` per run, or `operations.trigger_many` per batch."""

from __future__ import annotations

import django

django.setup()

from bench.protocol import serve  # noqa: E402
from jobs import definitions  # noqa: E402
from jobs.models import Job  # noqa: E402
from occurrences import operations  # noqa: E402


def enqueue(job: Job, runs: int, batch: int) -> None:
    """Trigger `runs` occurrences in calls of `batch`."""
    for start in range(0, runs, batch):
        if batch == 1:
            operations.trigger(job, data={"number": start})
        else:
            operations.trigger_many(job, [{"number": n} for n in range(start, min(start + batch, runs))])


def main() -> None:
    """Define the job and answer the harness."""
    job = definitions.create_job(by=None, name="bench", worker="bench", job_type="nothing", data={"number": 0})
    serve(lambda runs, batch: enqueue(job, runs, batch))


if __name__ == "__main__":
    main()
