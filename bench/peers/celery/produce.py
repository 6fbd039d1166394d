"""The Celery peer's producer: one `delay()` per run (Celery has no call that enqueues many)."""

import django

django.setup()

from bench_app import app, nothing  # noqa: E402

from bench.protocol import serve  # noqa: E402


def enqueue(runs: int, batch: int) -> None:
    """Enqueue `runs` tasks by as many calls."""
    for number in range(runs):
        nothing.delay(number)


if __name__ == "__main__":
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=10)
    serve(enqueue)
