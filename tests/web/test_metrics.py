"""What a monitoring system reads, and who may."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.authtoken.models import Token

from jobs.models import Job
from occurrences.models import LoopPass
from occurrences.states import Status
from tests import factories
from workers_app.models import Worker, WorkerInstance

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(settings: Any, tmp_path: Any) -> None:
    """A broker that answers."""
    settings.BROKER_URL = f"sqlite:///{tmp_path / 'broker.sqlite3'}"


def scraped(client: Client, **headers: str) -> dict[tuple[str, ...], float]:
    """Each sample's value, by its name and the values of its labels in alphabetical order."""
    response = client.get("/metrics", headers=headers)
    assert response.status_code == 200, response.content
    assert response["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(response.content.decode())
    return {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}


def test_everything_that_tells_how_far_behind_the_scheduler_is(viewer: Client) -> None:
    now = timezone.now()
    job = factories.make_job()
    Job.objects.filter(pk=job.pk).update(is_active=True, next_run_at=now - timedelta(seconds=90))
    factories.make_occurrence(job)
    factories.make_occurrence(job, status=Status.RUNNING)
    LoopPass.objects.create(
        role="consume_events", process="here", started_at=now, last_pass_at=now - timedelta(seconds=20), done_count=7,
        hearing_since=now - timedelta(hours=1), heard_until=now - timedelta(seconds=45),
    )  # fmt: skip
    worker = Worker.objects.create(name="steady", first_seen_at=now, last_seen_at=now)
    for name in ("a", "b"):
        WorkerInstance.objects.create(
            name=name, worker=worker, started_at=now, last_heartbeat_at=now, concurrency=4, running_count=1,
            pending_event_count=3,
        )  # fmt: skip
    found = scraped(viewer)
    assert 90 <= found["tickwork_dispatch_lag_seconds",] < 900
    assert found["tickwork_occurrences", "queued"] == 1
    assert found["tickwork_occurrences", "running"] == 1
    assert found["tickwork_occurrences", "unknown"] == 0
    assert 20 <= found["tickwork_loop_last_pass_age_seconds", "consume_events", "here"] < 800
    assert found["tickwork_loop_done_total", "consume_events", "here"] == 7
    assert 45 <= found["tickwork_intake_lag_seconds",] < 900
    assert found["tickwork_worker_instances", "steady"] == 2
    assert found["tickwork_worker_running", "steady"] == 2
    assert found["tickwork_worker_slots", "steady"] == 8
    assert found["tickwork_worker_unsent_reports", "steady"] == 6
    assert found["tickwork_check_ok", "database"] == 1
    assert found["tickwork_check_ok", "dispatch"] == 0
    assert found["tickwork_outbox_pending",] == 0
    assert found["tickwork_failures_open",] == 0


def test_a_program_scrapes_with_its_token_and_whatever_it_says_it_accepts(client: Client) -> None:
    token = Token.objects.create(user=factories.make_viewer())
    found = scraped(client, authorization=f"Token {token.key}", accept="application/openmetrics-text;version=1.0.0")
    assert found["tickwork_jobs_disabled",] == 0


def test_nobody_else_reads_them(client: Client, stranger: Client) -> None:
    answers = [client.get("/metrics", headers={"accept": "text/plain"}), stranger.get("/metrics")]
    assert [(answer.status_code, answer["Content-Type"]) for answer in answers] == [
        (401, "application/problem+json"),
        (403, "application/problem+json"),
    ]
