"""The inbox of failures and the page of workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from occurrences.models import FailedOccurrence
from occurrences.states import Status
from tests import factories
from tests.web.test_job_pages import text_of

pytestmark = pytest.mark.django_db


def test_the_inbox_shows_open_ones_by_kind_and_resolved_ones_apart(viewer: Client) -> None:
    kinds = FailedOccurrence.Kind
    expired = factories.make_failure(kind=kinds.QUEUE_TTL_EXPIRED)
    zombie = factories.make_failure(kind=kinds.ZOMBIE)
    done = factories.make_failure(resolved_at=timezone.now(), action="fixed", note="by hand")

    def found(query: str) -> list[Any]:
        return [row.pk for row in viewer.get(f"/failures/{query}").context["page"]().rows]

    assert found("") == sorted([zombie.pk, expired.pk], reverse=True)
    assert found("?kind=zombie") == [zombie.pk]
    assert found("?show=resolved") == [done.pk]
    assert viewer.get("/failures/?kind=odd").status_code == 404


def test_a_failure_is_resolved_with_action_and_note_under_the_name_of_who_did_it(operator: Client) -> None:
    failure = factories.make_failure()
    response = operator.post(f"/failures/{failure.pk}/resolve/", {"action": "fixed", "note": "  corrected the month  "})
    assert response["Location"] == f"/failures/{failure.pk}/"
    failure.refresh_from_db()
    assert (failure.action, failure.note) == ("fixed", "corrected the month")
    assert failure.resolved_by
    assert failure.resolved_by.username == "olga"
    text = text_of(operator.get(f"/failures/{failure.pk}/"))
    assert "corrected the month" in text
    operator.post(f"/failures/{failure.pk}/reopen/")
    failure.refresh_from_db()
    assert failure.resolved_at is None


@pytest.mark.parametrize(
    ("typed", "told"), [({"action": "fixed"}, "Say what was done"), ({"action": "odd", "note": "x"}, "valid choice")]
)
def test_a_resolution_that_lacks_something_is_not_made(typed: dict[str, str], told: str, operator: Client) -> None:
    failure = factories.make_failure()
    response = operator.post(f"/failures/{failure.pk}/resolve/", typed)
    assert response.status_code == 422
    assert told in text_of(response)
    failure.refresh_from_db()
    assert failure.resolved_at is None


def test_a_failure_is_retried_with_edited_data(operator: Client) -> None:
    failure = factories.make_failure()
    assert failure.occurrence
    response = operator.post(f"/failures/{failure.pk}/retry/", {"data": '{"a": 2}'})
    assert response["Location"] == f"/occurrences/{failure.occurrence.pk}/"
    failure.refresh_from_db()
    failure.occurrence.refresh_from_db()
    assert failure.action == "retried"
    assert (failure.occurrence.status, failure.occurrence.data) == (Status.QUEUED, {"a": 2})
    again = operator.post(f"/failures/{failure.pk}/retry/", follow=True)
    assert "cannot be retried" in text_of(again)
    bad = factories.make_failure()
    assert operator.post(f"/failures/{bad.pk}/retry/", {"data": "nonsense"}).status_code == 422


def test_what_somebody_resolved_first_is_not_resolved_again(operator: Client) -> None:
    failure = factories.make_failure(resolved_at=timezone.now(), action="ignored", note="first")
    typed = {"action": "fixed", "note": "second"}
    assert "dealt with it meanwhile" in text_of(operator.post(f"/failures/{failure.pk}/resolve/", typed, follow=True))
    failure.refresh_from_db()
    assert failure.note == "first"


def test_the_failures_of_one_job_are_reached_from_its_page(viewer: Client) -> None:
    mine = factories.make_failure(factories.make_occurrence(factories.make_job(name="ledger"), status=Status.FAILED))
    factories.make_failure()
    assert mine.job
    page = text_of(viewer.get(f"/jobs/{mine.job.pk}/"))
    assert "1 open failure" in page
    response = viewer.get(f"/failures/?job={mine.job.pk}")
    assert response.context["page"]().rows == [mine]
    assert "Of the job ledger" in text_of(response)
    mine.resolved_at, mine.action = timezone.now(), "fixed"
    mine.save()
    assert "open failure" not in text_of(viewer.get(f"/jobs/{mine.job.pk}/"))


def test_a_failures_page_stays_current_unless_it_shows_a_mistake(operator: Client) -> None:
    failure = factories.make_failure()
    page = operator.get(f"/failures/{failure.pk}/").content.decode()
    assert 'data-live-topic="failures"' in page
    part = operator.get(f"/failures/{failure.pk}/?part=main")
    assert b"<html" not in part.content
    assert "Retry with edited data" in text_of(part)
    refused = operator.post(f"/failures/{failure.pk}/resolve/", {"action": "fixed", "note": ""})
    assert "data-live-topic" not in refused.content.decode()


def test_a_dead_letter_without_an_occurrence_has_a_page(operator: Client) -> None:
    dead = FailedOccurrence.objects.create(
        kind=FailedOccurrence.Kind.REJECTED,
        error_type="ContractError",
        fingerprint="0" * 32,
        raw="{odd",
        failed_at=timezone.now(),
    )
    text = text_of(operator.get(f"/failures/{dead.pk}/"))
    assert "Dead letter" in text
    assert "{odd" in text
    assert "Retry with edited data" not in text
    assert "Dead letter" in text_of(operator.get("/failures/"))


def test_many_are_resolved_or_retried_at_once(operator: Client) -> None:
    one, two, three, four = (factories.make_failure() for _ in range(4))
    text = text_of(
        operator.post(
            "/failures/resolve/", {"failure": [one.pk, two.pk], "action": "ignored", "note": "old"}, follow=True
        )
    )
    assert "2 resolved" in text
    text = text_of(operator.post("/failures/retry/", {"failure": [two.pk, three.pk]}, follow=True))
    assert "1 started again" in text
    assert "1 could not be started again" in text
    assert list(FailedOccurrence.objects.filter(resolved_at=None)) == [four]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({}, "Tick the failures first"),
        ({"failure": "nonsense"}, "Tick the failures first"),
        ({"failure": ["01a1fc30-704e-796b-8373-a9921992741c"] * 501}, "At most 500"),
        ({"failure": "01a1fc30-704e-796b-8373-a9921992741c", "action": "fixed"}, "Nothing was resolved"),
    ],
)
def test_what_cannot_be_done_to_many_is_told(typed: dict[str, Any], told: str, operator: Client) -> None:
    assert told in text_of(operator.post("/failures/resolve/", typed, follow=True))


def test_workers_show_instances_by_heartbeat_age_and_their_job_types(viewer: Client) -> None:
    now = timezone.now()
    steady = factories.make_worker("steady")
    factories.make_instance(steady, last_heartbeat_at=now, running_count=3, concurrency=4, pending_event_count=17)
    factories.make_instance(steady, name="silent-1", last_heartbeat_at=now - timedelta(hours=1))
    factories.make_instance(steady, name="stopped-1", last_heartbeat_at=now, stopped_at=now)
    factories.make_job_type(name="build", description="Builds it.", data_schema={"type": "object"})
    factories.make_worker("empty")
    response = viewer.get("/workers/")
    row = next(row for row in response.context["workers"]() if row["worker"].name == "steady")
    assert (len(row["alive"]), len(row["gone"]), row["running"], row["capacity"]) == (1, 2, 3, 4)
    text = text_of(response)
    for expected in ("3 of 4", "17", "silent-1", "stopped-1", "build", "Builds it.", "Nobody is there"):
        assert expected in text
