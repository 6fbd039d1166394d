"""Occurrences: the overview, the list, an occurrence's page, and its buttons."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from occurrences import operations
from occurrences.models import Occurrence
from occurrences.states import LIVE, Status
from occurrences.views import occurrences as occurrence_views
from tests import factories
from tests.web.test_job_pages import text_of
from tickwork.ids import uuid7

pytestmark = pytest.mark.django_db


def test_the_overview_shows_what_runs_failed_comes_and_who_is_there(viewer: Client) -> None:
    now = timezone.now()
    factories.make_occurrence(factories.make_job(name="long one"), status=Status.RUNNING, progress=0.4)
    factories.make_occurrence(factories.make_job(name="done one"), status=Status.COMPLETED, at=now)
    factories.make_failure(error_message="no such month")
    factories.make_job(name="hourly one", cron="@hourly")
    factories.make_instance(factories.make_worker("steady"), last_heartbeat_at=now)
    factories.make_instance(factories.make_worker("gone"), last_heartbeat_at=now - timedelta(hours=1))
    response = viewer.get("/")
    text = text_of(response)
    assert response.context["numbers"]() == {
        "running": 1,
        "waiting": 0,
        "completed": 1,
        "failed": 1,
        "open_failures": 1,
    }
    for expected in ("long one", "no such month", "hourly one", "steady-host"):
        assert expected in text
    assert "gone-host" not in text
    assert [minute[1:] for minute in response.context["minutes"]() if any(minute[1:])] == [(1, 0, 0)]


def test_numbers_stop_at_a_cap(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.pages.capped_count.__defaults__", (2,))
    monkeypatch.setattr("jobs.templatetags.pages.COUNT_CAP", 2)
    for _ in range(4):
        factories.make_occurrence()
    assert "2+ waiting" in text_of(viewer.get("/?part=numbers"))


def test_an_empty_installation_teaches_the_first_step(viewer: Client) -> None:
    text = text_of(viewer.get("/"))
    assert "from tickwork import Worker" in text
    assert "No worker is connected" in text


def test_samples_are_offered_for_removal_and_removed(operator: Client) -> None:
    factories.make_job(name="sample", is_sample=True)
    mine = factories.make_job(name="mine")
    assert "Remove samples" in text_of(operator.get("/"))
    assert "1 sample jobs were removed" in text_of(operator.post("/samples/remove/", follow=True))
    assert "Remove samples" not in text_of(operator.get("/"))
    mine.refresh_from_db()
    assert mine.retired_at is None


def test_a_part_of_a_page_is_its_own_fragment(viewer: Client) -> None:
    factories.make_occurrence(factories.make_job(name="the one"))
    response = viewer.get("/occurrences/?status=0&part=rows")
    assert b"<html" not in response.content
    assert "the one" in text_of(response)
    assert response["Cache-Control"] == "no-store"
    assert viewer.get("/occurrences/?part=odd").status_code == 404


def test_occurrences_are_filtered_by_status_and_job_and_paged_by_key(viewer: Client) -> None:
    job = factories.make_job()
    made = [factories.make_occurrence(job, status=Status.COMPLETED).pk for _ in range(60)]
    factories.make_occurrence(job, status=Status.RUNNING)
    factories.make_occurrence(status=Status.COMPLETED)
    first = viewer.get(f"/occurrences/?status=2&job={job.pk}").context["page"]()
    second = viewer.get(f"/occurrences/?status=2&job={job.pk}&before={first.next_key}").context["page"]()
    assert [row.pk for row in first.rows + second.rows] == sorted(made, reverse=True)
    assert viewer.get("/occurrences/?status=9").status_code == 404
    assert viewer.get("/occurrences/?job=x").status_code == 404


def test_a_search_for_a_rare_status_ends_and_goes_on_where_it_ended(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occurrence_views, "SEARCHED", 5)
    job = factories.make_job()
    first, *others = sorted(uuid7() for _ in range(8))
    old = factories.make_occurrence(job, id=first, status=Status.CANCELLED)
    for identifier in others:
        factories.make_occurrence(job, id=identifier, status=Status.COMPLETED)
    response = viewer.get("/occurrences/?status=4")
    assert response.context["page"]().rows == []
    assert "Search older ones" in text_of(response)
    further = viewer.get(f"/occurrences/?status=4&before={response.context['searched_to']}")
    assert [row.pk for row in further.context["page"]().rows] == [old.pk]
    assert "Search older ones" not in text_of(further)


def test_the_list_costs_the_same_for_one_and_for_many_and_counts_nothing(
    viewer: Client, django_assert_max_num_queries: Any
) -> None:
    for _ in range(30):
        factories.make_occurrence(status=Status.COMPLETED)
    with django_assert_max_num_queries(5) as captured:
        viewer.get("/occurrences/")
    sql = " ".join(query["sql"] for query in captured.captured_queries)
    assert "COUNT(" not in sql
    assert '"history"' not in sql


def test_an_occurrence_shows_its_times_attempts_error_data_and_logs(viewer: Client) -> None:
    now = timezone.now()
    occurrence = factories.make_occurrence(
        status=Status.FAILED,
        attempt=2,
        data={"month": "2031-01"},
        error={"type": "ValueError", "message": "no such month", "traceback": "File x"},
        history=[
            [0, 1, now.isoformat(), "dispatch", ""],
            [1, 1, (now + timedelta(seconds=4)).isoformat(), "host-1", ""],
            [3, 2, (now + timedelta(seconds=9)).isoformat(), "host-1", "Permanent error: no such month"],
        ],
    )
    factories.make_attempt(occurrence, number=1, outcome="timed_out")
    factories.make_log(occurrence, 1, message="<script>alert(1)</script>", fields={"rows": 7})
    failure = factories.make_failure(occurrence)
    response = viewer.get(f"/occurrences/{occurrence.pk}/")
    text = text_of(response)
    for expected in (
        "for 4.0 s",
        "for 5.0 s",
        "Attempt 2",
        "Timed out",
        "no such month",
        "File x",
        '"month": "2031-01"',
        "rows= 7",
    ):
        assert expected in text
    assert b"<script>alert" not in response.content
    assert f"/failures/{failure.pk}/".encode() in response.content


def test_only_the_last_lines_are_shown_and_all_are_to_be_had_as_text(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occurrence_views, "LOG_LINES", 3)
    occurrence = factories.make_occurrence(status=Status.RUNNING)
    for number in range(1, 6):
        factories.make_log(occurrence, number, fields={"n": number})
    text = text_of(viewer.get(f"/occurrences/{occurrence.pk}/?part=logs"))
    assert "line 3" in text
    assert "line 2" not in text
    response = viewer.get(f"/occurrences/{occurrence.pk}/log/")
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    lines = response.content.decode().splitlines()
    assert len(lines) == 5
    assert lines[0] == "1 2030-01-15T12:00:00.000+00:00 info     line 1 n=1"


def test_a_queued_one_that_nobody_takes_says_why_and_what_comes(viewer: Client) -> None:
    def text() -> str:
        return text_of(viewer.get(f"/occurrences/{queued.pk}/"))

    job = factories.make_job(job_type="work", queue_ttl_seconds=300)
    queued = factories.make_occurrence(job)
    assert (
        "No instance of the worker “steady” is connected. It waits up to 300 s (5 min) for one, then it fails."
        in text()
    )
    assert "No instance of the worker" in text_of(viewer.get(f"/jobs/{job.pk}/"))
    instance = factories.make_instance(
        factories.make_worker(), last_heartbeat_at=timezone.now(), job_types=["something_else"]
    )
    assert "does not know the job type “work”" in text()
    for known in (["work"], []):  # an empty list: heard of, but not since it registered
        instance.job_types = known
        instance.save()
        assert "It waits up to" not in text()
        assert "for one" not in text_of(viewer.get(f"/jobs/{job.pk}/"))


def test_data_that_the_job_type_refuses_come_back_as_they_were_typed(operator: Client) -> None:
    factories.make_job_type(name="work", data_schema={"type": "object", "required": ["month"]})
    failure = factories.make_failure(
        factories.make_occurrence(factories.make_job(data={"month": 5}), status=Status.FAILED)
    )
    assert failure.occurrence
    assert failure.job
    for url in (
        f"/jobs/{failure.job.pk}/run/",
        f"/occurrences/{failure.occurrence.pk}/retry/",
        f"/failures/{failure.pk}/retry/",
    ):
        response = operator.post(url, {"data": '{"typed": 1}'})
        assert response.status_code == 422, url
        assert "&#x27;month&#x27; is a required property" in response.content.decode()
        assert "&quot;typed&quot;: 1" in response.content.decode()


def test_a_waiting_attempt_can_be_started_now_or_its_wait_cancelled(operator: Client) -> None:
    later = timezone.now() + timedelta(hours=1)
    waiting = factories.make_occurrence(attempt=2, next_attempt_at=later)
    text = text_of(operator.get(f"/occurrences/{waiting.pk}/"))
    assert "Retry now" in text
    assert "Cancel the wait" in text
    operator.post(f"/occurrences/{waiting.pk}/retry-now/")
    waiting.refresh_from_db()
    assert waiting.next_attempt_at is None
    told = operator.post(f"/occurrences/{waiting.pk}/retry-now/", follow=True)
    assert "not waiting" in text_of(told)
    operator.post(f"/occurrences/{waiting.pk}/cancel/")
    waiting.refresh_from_db()
    assert waiting.status == Status.CANCELLED


def test_a_running_one_is_asked_to_stop_and_the_page_says_so_until_it_does(operator: Client) -> None:
    running = factories.make_occurrence(status=Status.RUNNING)
    text = text_of(
        operator.post(f"/occurrences/{running.pk}/cancel/", {"next": f"/occurrences/{running.pk}/"}, follow=True)
    )
    assert "Its worker was asked to stop" in text
    assert "Cancel requested" in text
    running.refresh_from_db()
    assert running.status == Status.RUNNING


def test_a_finished_one_is_retried_with_its_own_or_with_edited_data(operator: Client) -> None:
    failed = factories.make_occurrence(status=Status.FAILED, data={"a": 1})
    operator.post(f"/occurrences/{failed.pk}/retry/", {"data": '{"a": 2}'})
    failed.refresh_from_db()
    assert (failed.status, failed.attempt, failed.data) == (Status.QUEUED, 2, {"a": 2})
    refused = operator.post(f"/occurrences/{failed.pk}/retry/", follow=True)
    assert "only a finished one can be retried" in text_of(refused)
    assert operator.post(f"/occurrences/{failed.pk}/retry/", {"data": "["}).status_code == 422


def test_a_viewer_is_offered_no_buttons(viewer: Client) -> None:
    for status in Status:
        occurrence = factories.make_occurrence(status=status)
        page = viewer.get(f"/occurrences/{occurrence.pk}/").content.decode()
        assert "/retry" not in page
        assert "/cancel" not in page


def test_every_status_has_a_page(operator: Client) -> None:
    for status in Status:
        occurrence = factories.make_occurrence(status=status)
        assert status.label in text_of(operator.get(f"/occurrences/{occurrence.pk}/"))


def test_what_somebody_else_did_first_is_told(operator: Client) -> None:
    occurrence = factories.make_occurrence()
    operations.cancel(occurrence.pk, by="somebody")
    assert "at its end already" in text_of(operator.post(f"/occurrences/{occurrence.pk}/cancel/", follow=True))
    Occurrence.objects.all().delete()
    assert operator.post(f"/occurrences/{occurrence.pk}/cancel/").status_code == 404


@pytest.mark.parametrize("statuses", [[status] for status in Status] + [[Status.RUNNING, Status.UNKNOWN]])
def test_rows_of_some_statuses_are_those_and_live_and_failed_ones_come_by_their_index(
    statuses: list[Status],
) -> None:
    made = {status: factories.make_occurrence(status=status) for status in Status}
    rows = Occurrence.objects.with_status(statuses)
    assert set(rows) == {made[status] for status in statuses}
    is_covered = set(statuses) <= LIVE or set(statuses) <= {Status.FAILED, Status.TIMED_OUT}
    if connection.vendor == "sqlite" and is_covered:  # PostgreSQL reads a table of eight rows as a whole
        assert "USING INDEX occurrence_" in rows.explain()
