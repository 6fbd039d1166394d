"""What Prometheus reads at `/metrics`: how far behind the scheduler is, what waits, who is there.

Each figure is read from the database when asked for, so one scrape of any web process tells of the whole installation,
and a role that hangs is seen by its age. Needs a login or an API token, with the permission to view occurrences.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Sum
from django.http import HttpResponse
from django.utils import timezone
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.views import APIView

from jobs.models import Job
from occurrences.hearing import Hearing
from occurrences.models import FailedOccurrence, LoopPass, Occurrence
from occurrences.states import LIVE, Status
from scheduler_project.health import readiness
from workers_app import registry

LOOPS_SHOWN = timedelta(hours=1)


class Metrics(Collector):
    """All metrics of one moment."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """In the order of the life of an occurrence."""
        yield from self._checks()
        yield from self._jobs()
        yield from self._occurrences()
        yield from self._loops()
        yield from self._workers()

    def _checks(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("tickwork_check_ok", "1 when this check of /health/ready is ok.", labels=["check"])
        for check in readiness().checks:
            state.add_metric([check.name], float(check.state == "ok"))
            if check.name == "outbox":
                for name, value in check.figures.items():
                    yield _gauge(f"tickwork_outbox_{name}", _OUTBOX_HELP[name], value)
        yield state

    def _jobs(self) -> Iterator[Metric]:
        due_at = Job.objects.filter(is_active=True).aggregate(at=Min("next_run_at"))["at"]
        late = max((self._now - due_at).total_seconds(), 0.0) if due_at else 0.0
        yield _gauge("tickwork_dispatch_lag_seconds", "How long the oldest due job has waited for a dispatcher.", late)
        yield _gauge(
            "tickwork_jobs_disabled",
            "Jobs that their failures, or a schedule that cannot be read, have stopped.",
            Job.objects.existing().disabled().count(),
        )

    def _occurrences(self) -> Iterator[Metric]:
        live = GaugeMetricFamily("tickwork_occurrences", "Occurrences that are not at their end.", labels=["status"])
        rows = Occurrence.objects.with_status(LIVE).order_by().values_list("status")
        counts = dict(rows.annotate(count=Count("pk")))
        for status in sorted(LIVE):
            live.add_metric([Status(status).name.lower()], counts.get(status, 0))
        yield live
        yield _gauge(
            "tickwork_failures_open",
            "Failed occurrences that nobody has resolved or retried.",
            FailedOccurrence.objects.filter(resolved_at=None).count(),
        )

    def _loops(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "tickwork_loop_last_pass_age_seconds", "Time since a loop's last pass.", labels=["role", "process"]
        )
        done = CounterMetricFamily(
            "tickwork_loop_done", "What a loop handled since its process started.", labels=["role", "process"]
        )
        for row in LoopPass.objects.filter(last_pass_at__gte=self._now - LOOPS_SHOWN):
            age.add_metric([row.role, row.process], max((self._now - row.last_pass_at).total_seconds(), 0.0))
            done.add_metric([row.role, row.process], row.done_count)
        yield age
        yield done
        if hearing := Hearing.newest():
            yield _gauge(
                "tickwork_intake_lag_seconds",
                "Time since the moment until which all that workers said is on record.",
                max((self._now - hearing.until).total_seconds(), 0.0),
            )

    def _workers(self) -> Iterator[Metric]:
        families = {
            "instances": GaugeMetricFamily("tickwork_worker_instances", "Living instances.", labels=["worker"]),
            "running": GaugeMetricFamily("tickwork_worker_running", "Attempts at hand.", labels=["worker"]),
            "slots": GaugeMetricFamily("tickwork_worker_slots", "Attempts that may run at once.", labels=["worker"]),
            "unsent": GaugeMetricFamily(
                "tickwork_worker_unsent_reports", "Reports kept until the broker takes them.", labels=["worker"]
            ),
        }
        rows = registry.alive(now=self._now).order_by().values("worker")
        for row in rows.annotate(
            instances=Count("pk"),
            running=Sum("running_count"),
            slots=Sum("concurrency"),
            unsent=Sum("pending_event_count"),
        ):
            figures: dict[str, Any] = {**row}
            for name, family in families.items():
                family.add_metric([row["worker"]], figures[name])
        yield from families.values()


_OUTBOX_HELP = {
    "oldest_due_age_seconds": "How long the oldest due message has waited for a relay.",
    "pending": "Messages that are due (counted up to 10,001).",
    "failed": "Messages that the broker has refused so far (counted up to 10,001).",
    "oldest_failed_age_seconds": "How long the oldest refused message has existed.",
}


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class AsItIs(BaseContentNegotiation):
    """One form, whatever a scraper says it accepts; a refusal is a problem document as everywhere."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """The only one."""
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """The only one."""
        return renderers[0], renderers[0].media_type


class MetricsView(APIView):
    """GET /metrics: Prometheus' text format."""

    queryset = Occurrence.objects.none()
    content_negotiation_class = AsItIs

    def get(self, request: Request) -> HttpResponse:
        """All metrics, read now."""
        registry = CollectorRegistry()
        registry.register(Metrics(timezone.now()))
        return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
