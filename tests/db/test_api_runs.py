"""Triggering jobs, and looking at, cancelling and retrying occurrences over the API."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs import job_types
from occurrences.models import Occurrence, OutboxMessage
from occurrences.states import Status
from tests import factories
from tests.db.api_client import WHO_QUERIES, Api, problem
from tickwork.ids import uuid7

pytestmark = pytest.mark.django_db
NOBODY = "01900000-0000-7000-8000-000000000000"


@pytest.fixture
def api() -> Api:
    """The operator at the API."""
    return Api(factories.make_operator())


def ids(response: Any) -> list[str]:
    """The ids in a page."""
    return [row["id"] for row in response.json()["results"]]


# ── trigger ────────────────────────────────────────────────────────────────────────────────────────


def test_a_trigger_makes_an_occurrence_and_its_message(api: Api) -> None:
    job = factories.make_job(data={"a": 1})
    response = api.post(f"/jobs/{job.pk}/trigger")
    assert response.status_code == 202, response.content
    body = response.json()
    assert response["Location"] == f"/api/v1/occurrences/{body['id']}"
    assert (body["status"], body["status_code"]) == ("queued", 0)
    assert (body["job"], body["job_name"]) == (str(job.pk), job.name)
    assert (body["trigger"], body["triggered_by"]) == ("api", "olga")
    assert body["data"] == {"a": 1}
    assert str(OutboxMessage.objects.get().occurrence_id) == body["id"]
    assert api.client.get(response["Location"]).json() == body


def test_a_trigger_takes_data_and_policy_for_this_run_only(api: Api) -> None:
    job = factories.make_job(data={"a": 1}, max_attempts=2)
    body = api.post(f"/jobs/{job.pk}/trigger", {"data": {"b": 2}, "policy": {"max_attempts": 7}}).json()
    assert body["data"] == {"b": 2}
    assert body["max_attempts"] == 7
    assert api.post(f"/jobs/{job.pk}/trigger").json()["max_attempts"] == 2


def test_data_that_do_not_fit_the_schema_of_the_job_type_are_refused(api: Api) -> None:
    schema = {"type": "object", "properties": {"month": {"type": "string"}}, "required": ["month"]}
    factories.make_job_type(worker="reports", name="build", data_schema=schema)
    job_types.forget()
    job = factories.make_job(worker="reports", job_type="build", data={"month": "May"})
    assert "month" in problem(api.post(f"/jobs/{job.pk}/trigger", {"data": {"month": 5}}), 400)["errors"]["data"][0]
    items = {"items": [{"month": "May"}, {}]}
    assert list(problem(api.post(f"/jobs/{job.pk}/trigger-batch", items), 400)["errors"]) == ["items.1"]
    assert list(problem(api.post(f"/jobs/{job.pk}/trigger-batch", {"items": [{}]}), 400)["errors"]) == ["items.0"]
    assert not Occurrence.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"data": [1]}, "data"),
        ({"data": "x"}, "data"),
        ({"date": {}}, "date"),
        ({"policy": {"max_attempts": 101}}, "policy.max_attempts"),
        ({"policy": {"timeout": 1}}, "policy.timeout"),
        ({"policy": {"timeout_seconds": "inf"}}, "policy.timeout_seconds"),
        ({"policy": 3}, "policy"),
        ([1], "body"),
    ],
)
def test_a_trigger_with_a_wrong_body_is_refused_by_field(api: Api, body: dict[str, Any], field: str) -> None:
    job = factories.make_job()
    assert list(problem(api.post(f"/jobs/{job.pk}/trigger", body), 400, "invalid")["errors"]) == [field]
    assert not Occurrence.objects.exists()


def test_a_policy_that_makes_no_sense_is_refused(api: Api) -> None:
    job = factories.make_job()
    for policy in ({"retry_preset": "none such"}, {"timeout_seconds": -1}, {"queue_ttl_seconds": 31 * 86400}):
        body = problem(api.post(f"/jobs/{job.pk}/trigger", {"policy": policy}), 400, "invalid")
        assert list(body["errors"]) == [f"policy.{name}" for name in policy]
    assert not Occurrence.objects.exists()


def test_a_policy_value_that_is_null_or_empty_is_left_to_the_job(api: Api) -> None:
    job = factories.make_job(max_attempts=7, retry_preset="flare")
    policy = {"max_attempts": None, "retry_preset": "", "on_worker_unavailable": None, "timeout_seconds": 5}
    made = api.post(f"/jobs/{job.pk}/trigger", {"policy": policy}).json()
    assert (made["max_attempts"], made["timeout_seconds"], made["policy"]["retry"]["preset"]) == (7, 5, "flare")


def test_a_batch_makes_one_run_for_each_item_in_its_order(api: Api) -> None:
    job = factories.make_job(data={"own": True})
    response = api.post(f"/jobs/{job.pk}/trigger-batch", {"items": [{"n": 0}, {"n": 1}, None]})
    assert response.status_code == 202, response.content
    rows = Occurrence.objects.in_bulk(response.json()["ids"], field_name="id")
    made = [next(row for row in rows.values() if str(row.pk) == identifier) for identifier in response.json()["ids"]]
    assert [row.data for row in made] == [{"n": 0}, {"n": 1}, {"own": True}]
    assert OutboxMessage.objects.count() == 3


@pytest.mark.parametrize(
    ("items", "place"),
    [
        ([], "items"),
        ([{}] * 501, "items"),
        ({"a": {}}, "items"),
        ("x", "items"),
        (None, "items"),
        ([{}, 1], "items.1"),
    ],
)
def test_a_batch_of_nothing_of_too_many_or_of_other_things_is_refused(api: Api, items: Any, place: str) -> None:
    job = factories.make_job()
    assert list(problem(api.post(f"/jobs/{job.pk}/trigger-batch", {"items": items}), 400)["errors"]) == [place]
    assert not Occurrence.objects.exists()


def test_a_batch_costs_the_same_number_of_queries_whatever_its_size(
    api: Api, django_assert_max_num_queries: Any
) -> None:
    job = factories.make_job()
    with django_assert_max_num_queries(WHO_QUERIES + 10):
        assert (
            len(api.post(f"/jobs/{job.pk}/trigger-batch", {"items": [{"n": n} for n in range(500)]}).json()["ids"])
            == 500
        )


# ── look ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_list_is_filtered_by_status_job_and_time(api: Api) -> None:
    job, other = factories.make_job(), factories.make_job()
    done = factories.make_occurrence(job, status=Status.COMPLETED)
    late = factories.make_occurrence(job, status=Status.TIMED_OUT)
    waiting = factories.make_occurrence(other)
    assert ids(api.get("/occurrences")) == sorted([str(waiting.pk), str(late.pk), str(done.pk)], reverse=True)
    assert ids(api.get("/occurrences", status="timed_out")) == [str(late.pk)]
    assert set(ids(api.get("/occurrences", status="2,QUEUED"))) == {str(waiting.pk), str(done.pk)}
    assert ids(api.get("/occurrences", job=str(other.pk))) == [str(waiting.pk)]
    assert ids(api.get("/occurrences", job=str(job.pk), status="queued")) == []


def test_the_list_is_cut_by_the_time_at_which_an_occurrence_was_made(api: Api) -> None:
    early = factories.make_occurrence(id=uuid7())
    now = timezone.now()
    assert ids(api.get("/occurrences", since=(now - timedelta(minutes=1)).isoformat())) == [str(early.pk)]
    assert ids(api.get("/occurrences", since=(now + timedelta(minutes=1)).isoformat())) == []
    assert ids(api.get("/occurrences", until=(now + timedelta(minutes=1)).isoformat())) == [str(early.pk)]
    assert ids(api.get("/occurrences", until=(now - timedelta(minutes=1)).isoformat())) == []
    assert ids(api.client.get("/api/v1/occurrences?since=2020-01-01T00:00:00+02:00")) == [str(early.pk)]
    assert ids(api.get("/occurrences", since="0001-01-01T00:00:00Z", until="9999-12-31T23:59:59Z")) == [str(early.pk)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "asleep"),
        ("status", "9"),
        ("status", "queued,²"),
        ("job", "17"),
        ("since", "yesterday"),
        ("since", "2030-01-01"),
        ("since", "2030-13-01T00:00:00Z"),
        ("until", "2030-01-01T00:00:00"),
        ("until", "0001-01-01T00:00:00+14:00"),
        ("stauts", "queued"),
        ("status", "\0"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused_by_name(api: Api, name: str, value: str) -> None:
    assert list(problem(api.get("/occurrences", **{name: value}), 400, "invalid")["errors"]) == [name]


def test_a_page_of_occurrences_costs_one_query_and_counts_nothing(api: Api, django_assert_num_queries: Any) -> None:
    for _ in range(4):
        factories.make_occurrence()
    with django_assert_num_queries(WHO_QUERIES + 1) as queries:
        page = api.get("/occurrences", page_size=3).json()
    sql = queries.captured_queries[-1]["sql"]
    assert "COUNT(" not in sql
    assert '"history"' not in sql
    assert {row["job_name"] for row in page["results"]}.isdisjoint({""})
    with django_assert_num_queries(WHO_QUERIES + 1) as queries:
        assert len(ids(api.get(page["next"]))) == 1
    assert '"occurrences_occurrence"."id" <' in queries.captured_queries[-1]["sql"]


def test_one_occurrence_shows_its_history_and_attempts_in_two_queries(api: Api, django_assert_num_queries: Any) -> None:
    occurrence = factories.make_occurrence(status=Status.FAILED, attempt=3, error={"type": "KeyError", "message": "x"})
    factories.make_attempt(occurrence, number=1, error={"type": "OSError", "message": "gone"})
    factories.make_attempt(occurrence, number=2, outcome="timed_out")
    with django_assert_num_queries(WHO_QUERIES + 2):
        body = api.get(f"/occurrences/{occurrence.pk}").json()
    assert [(row["number"], row["outcome"]) for row in body["attempts"]] == [
        (1, "failed"),
        (2, "timed_out"),
        (3, "failed"),
    ]
    assert [row["error"] and row["error"]["type"] for row in body["attempts"]] == ["OSError", None, "KeyError"]
    assert body["history"] == [
        {"status": "failed", "attempt": 1, "at": "2030-01-15T12:00:00Z", "by": "test", "reason": ""}
    ]


def test_a_running_occurrence_shows_its_current_attempt_without_an_outcome(api: Api) -> None:
    occurrence = factories.make_occurrence(status=Status.RUNNING, progress=0.5)
    body = api.get(f"/occurrences/{occurrence.pk}").json()
    assert [(row["number"], row["outcome"]) for row in body["attempts"]] == [(1, None)]
    assert body["progress"] == 0.5


def test_logs_are_read_in_order_and_followed_from_where_one_stopped(api: Api) -> None:
    occurrence = factories.make_occurrence(status=Status.RUNNING)
    for sequence in (2, 1, 3):
        factories.make_log(occurrence, sequence, fields={"n": sequence})
    factories.make_log(occurrence, 1, attempt=2)
    factories.make_log(factories.make_occurrence(), 1)
    path = f"/occurrences/{occurrence.pk}/logs"
    first = api.get(path, limit=2).json()
    assert [(row["attempt"], row["sequence"]) for row in first["results"]] == [(1, 1), (1, 2)]
    assert (first["after"], first["more"]) == ("1.2", True)
    second = api.get(path, after=first["after"]).json()
    assert [(row["attempt"], row["sequence"]) for row in second["results"]] == [(1, 3), (2, 1)]
    assert (second["after"], second["more"]) == ("2.1", False)
    assert api.get(path, after="2.1").json() == {"results": [], "after": "2.1", "more": False}
    factories.make_log(occurrence, 2, attempt=2)
    assert len(api.get(path, after="2.1").json()["results"]) == 1
    assert len(api.get(path, attempt=1).json()["results"]) == 3


@pytest.mark.parametrize(
    "query",
    [
        {"after": "x"},
        {"after": "1"},
        {"after": "99999.999999999"},
        {"limit": 0},
        {"limit": 5000},
        {"attempt": 0},
        {"of": 1},
    ],
)
def test_logs_are_asked_for_with_what_can_be_read(api: Api, query: dict[str, Any]) -> None:
    occurrence = factories.make_occurrence()
    answer = api.get(f"/occurrences/{occurrence.pk}/logs", **query)
    if query.get("after") == "99999.999999999":
        assert answer.json()["results"] == []
    else:
        assert list(problem(answer, 400, "invalid")["errors"]) == list(query)


# ── act ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_occurrence_is_cancelled_at_once(api: Api) -> None:
    made = api.post(f"/jobs/{factories.make_job().pk}/trigger").json()["id"]
    response = api.post(f"/occurrences/{made}/cancel", {"reason": "not today"})
    assert response.status_code == 200, response.content
    body = response.json()
    assert body["status"] == "cancelled"
    assert body["history"][-1]["by"] == "olga"
    assert "not today" in json.dumps(body)
    problem(api.post(f"/occurrences/{made}/cancel"), 409, "already_final")


def test_a_running_occurrence_is_asked_to_stop(api: Api) -> None:
    made = api.post(f"/jobs/{factories.make_job().pk}/trigger").json()["id"]
    Occurrence.objects.filter(pk=made).update(status=1, instance="steady-host-1-abcd", started_at=timezone.now())
    response = api.post(f"/occurrences/{made}/cancel")
    assert response.status_code == 202, response.content
    assert response.json()["status"] == "running"
    assert response.json()["cancel_requested_at"] is not None


def test_a_finished_occurrence_is_retried_under_its_id_also_with_other_data(api: Api) -> None:
    made = api.post(f"/jobs/{factories.make_job(data={'a': 1}).pk}/trigger").json()["id"]
    problem(api.post(f"/occurrences/{made}/retry"), 409, "not_final")
    api.post(f"/occurrences/{made}/cancel")
    response = api.post(f"/occurrences/{made}/retry", {"data": {"a": 2}})
    assert response.status_code == 202, response.content
    body = response.json()
    assert (body["id"], body["status"], body["data"]) == (made, "queued", {"a": 2})


def test_a_wait_for_the_next_attempt_can_be_ended(api: Api) -> None:
    made = api.post(f"/jobs/{factories.make_job().pk}/trigger").json()["id"]
    problem(api.post(f"/occurrences/{made}/retry-now"), 409, "not_waiting")
    later = timezone.now() + timedelta(hours=1)
    Occurrence.objects.filter(pk=made).update(next_attempt_at=later)
    response = api.post(f"/occurrences/{made}/retry-now")
    assert response.status_code == 202, response.content
    assert response.json()["next_attempt_at"] is None


@pytest.mark.parametrize("action", ["", "/logs", "/cancel", "/retry", "/retry-now"])
@pytest.mark.parametrize("identifier", [NOBODY, "7", "-" * 36])
def test_an_occurrence_that_does_not_exist_is_not_found(api: Api, identifier: str, action: str) -> None:
    path = f"/occurrences/{identifier}{action}"
    problem(api.get(path) if action in ("", "/logs") else api.post(path), 404, "not_found")
