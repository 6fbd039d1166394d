"""Live and ready, and what they tell to whom."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test import Client
from django.utils import timezone

from occurrences.models import LoopPass, OutboxMessage
from scheduler_project import health
from tests import factories
from tests.waiting import PATIENCE_SECONDS
from tests.web.conftest import browser_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(settings: Any, tmp_path: Path) -> None:
    """A broker that answers."""
    settings.BROKER_URL = f"sqlite:///{tmp_path / 'broker.sqlite3'}"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine too, what answers is found well, and what was found is fresh."""
    for name in ("BROKER_SECONDS", "LIVE_SECONDS", "REUSED_SECONDS"):
        monkeypatch.setattr(health, name, PATIENCE_SECONDS)


@pytest.fixture
def all_roles() -> None:
    """Every loop made a pass just now."""
    now = timezone.now()
    for role in health.ROLES:
        LoopPass.objects.create(role=role, process="here", started_at=now, last_pass_at=now)


def ready(client: Client | None = None) -> Any:
    """The answer, looked at anew."""
    health.forget()
    return (client or Client()).get("/health/ready")


def test_live_asks_nothing_but_the_process(django_assert_num_queries: Callable[[int], Any]) -> None:
    with django_assert_num_queries(0):
        response = Client().get("/health/live")
    assert response.json() == {"status": "ok"}


@pytest.mark.usefixtures("all_roles")
def test_ready_when_everything_works() -> None:
    response = ready()
    assert response.status_code == 200, response.content
    body = response.json()
    assert body["status"] == "ready"
    assert {check["status"] for check in body["checks"].values()} == {"ok"}
    assert set(body["checks"]) == {"database", "broker", "outbox", "live", *health.ROLES}


@pytest.mark.usefixtures("all_roles")
@pytest.mark.parametrize("role", sorted(health.ROLES))
def test_not_ready_while_a_role_is_missing_or_silent(role: str) -> None:
    LoopPass.objects.filter(role=role).update(last_pass_at=timezone.now() - timedelta(minutes=5))
    response = ready()
    assert response.status_code == 503
    assert 300 <= response.json()["checks"][role]["last_pass_age_seconds"] < 400
    LoopPass.objects.filter(role=role).delete()
    assert ready().json()["checks"][role]["summary"] == "is not running"


@pytest.mark.usefixtures("all_roles")
def test_one_living_process_of_a_role_is_enough() -> None:
    at = timezone.now() - timedelta(hours=1)
    LoopPass.objects.create(role="dispatch", process="crashed", started_at=at, last_pass_at=at)
    assert ready().status_code == 200


@pytest.mark.usefixtures("all_roles")
def test_an_old_outbox_is_a_warning_with_its_figures() -> None:
    old = timezone.now() - timedelta(minutes=10)
    common = {"event_type": "job.dispatch", "exchange": "x", "routing_key": "k", "body": "{}", "occurred_at": old}
    OutboxMessage.objects.create(next_attempt_at=old, attempt_count=2, last_error="nacked", **common)
    OutboxMessage.objects.create(next_attempt_at=timezone.now() + timedelta(hours=1), **common)
    response = ready()
    assert response.status_code == 200
    outbox = response.json()["checks"]["outbox"]
    assert (outbox["status"], outbox["pending"], outbox["failed"]) == ("warning", 1, 1)
    assert outbox["oldest_due_age_seconds"] >= 600


@pytest.mark.usefixtures("all_roles")
def test_a_message_that_is_refused_for_long_is_a_warning_though_its_next_attempt_is_not_due() -> None:
    now = timezone.now()
    OutboxMessage.objects.create(
        event_type="job.dispatch", exchange="x", routing_key="k", body="{}", occurred_at=now - timedelta(minutes=10),
        next_attempt_at=now + timedelta(minutes=5), attempt_count=7, last_error="unroutable",
    )  # fmt: skip
    outbox = ready().json()["checks"]["outbox"]
    assert (outbox["status"], outbox["pending"], outbox["failed"]) == ("warning", 0, 1)
    assert outbox["summary"].startswith("1 refused by the broker, the oldest for 6")


@pytest.mark.usefixtures("all_roles")
def test_a_broker_that_is_away_is_told_in_full_to_staff_only_and_never_with_its_password(settings: Any) -> None:
    settings.BROKER_URL = "amqp://guest:hunter2secret@127.0.0.1:1/"
    response = ready()
    assert response.status_code == 503
    assert response.json()["checks"]["broker"]["status"] == "failed"
    assert "detail" not in response.json()["checks"]["broker"]
    staff = factories.make_user("sam", is_staff=True)
    told = ready(browser_of(staff))
    assert told.json()["checks"]["broker"]["detail"]
    assert b"hunter2secret" not in told.content


def test_a_database_that_is_away_is_told_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise DatabaseError("connection refused")

    health.forget()
    monkeypatch.setattr(connection, "cursor", refuse)
    result = health.readiness()
    assert not result.is_ready
    assert result.as_json(with_details=True)["checks"]["database"]["detail"] == "connection refused"


@pytest.mark.usefixtures("all_roles")
def test_live_updates_that_cannot_be_sent_are_a_warning_only(settings: Any) -> None:
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": ["redis://127.0.0.1:1"]},
        }
    }
    response = ready()
    assert response.status_code == 200
    assert response.json()["checks"]["live"]["status"] == "warning"


@pytest.mark.usefixtures("all_roles")
def test_asking_often_costs_nothing(django_assert_num_queries: Callable[[int], Any]) -> None:
    ready()
    with django_assert_num_queries(0):
        assert Client().get("/health/ready").status_code == 200


@pytest.mark.usefixtures("all_roles")
def test_the_strip_says_it_in_words(viewer: Client) -> None:
    assert b"All systems work" in viewer.get("/health/strip").content
    LoopPass.objects.filter(role="dispatch").delete()
    health.forget()
    strip = viewer.get("/health/strip").content
    assert b"Not ready" in strip
    assert b"Dispatcher" in strip
