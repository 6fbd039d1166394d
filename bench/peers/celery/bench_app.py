"""The Celery peer's application and its job that does nothing.

What is set beyond Celery's defaults, and for whose good:
tracked and safe, as Tickwork is by nature: `task_track_started` (the start is a row), `task_acks_late` and
`task_reject_on_worker_lost` (a crash loses no task), results in PostgreSQL. Messages and queue are durable by default;
in Celery's favour: a high prefetch, rate limits off, no events, JSON only, and publisher confirms left off (its
default), which makes `delay()` faster at the price of a weaker promise.
"""

import os

from celery import Celery

app = Celery("bench", broker=os.environ["BROKER_URL"])
app.conf.update(
    result_backend="django-db",
    result_expires=None,
    task_ignore_result=False,
    task_track_started=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    task_send_sent_event=False,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    worker_disable_rate_limits=True,
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "100")),
    worker_hijack_root_logger=False,
    broker_pool_limit=10,
    broker_connection_retry_on_startup=True,
    enable_utc=True,
    # Celery's Django side closes the database connection around every task unless told how often to reuse it.
    CELERY_DB_REUSE_MAX=1_000_000_000,
)


@app.task
def nothing(number: int) -> None:
    """Do nothing."""
