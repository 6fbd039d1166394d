"""Failures over the API: look, resolve, reopen, retry, one or many."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from occurrences.models import FailedOccurrence, Occurrence
from occurrences.states import Status
from tests import factories
from tests.db.api_client import WHO_QUERIES, Api, problem

pytestmark = pytest.mark.django_db
FIXED = {"action": "fixed", "note": "restarted the mail server"}


@pytest.fixture
def api() -> Api:
    """The operator at the API."""
    return Api(factories.make_operator())


def ids(response: Any) -> list[str]:
    """The ids in a page."""
    return [row["id"] for row in response.json()["results"]]


def test_failures_are_listed_newest_first_in_one_query(api: Api, django_assert_num_queries: Any) -> None:
    made = [factories.make_failure() for _ in range(3)]
    resolved = factories.make_failure()
    api.post(f"/failures/{resolved.pk}/resolve", FIXED)
    with django_assert_num_queries(WHO_QUERIES + 1) as queries:
        page = api.get("/failures").json()["results"]
    assert "COUNT(" not in queries.captured_queries[-1]["sql"]
    assert [row["id"] for row in page] == sorted((str(failure.pk) for failure in (resolved, *made)), reverse=True)
    assert {row["id"]: row["resolved_by"] for row in page}[str(resolved.pk)] == "olga"
    assert {row["job_name"] for row in page} == {failure.job.name for failure in (resolved, *made) if failure.job}
    assert "traceback" not in page[0]


def test_failures_are_filtered(api: Api) -> None:
    zombie = factories.make_failure(kind=FailedOccurrence.Kind.ZOMBIE)
    other = factories.make_failure()
    api.post(f"/failures/{other.pk}/resolve", FIXED)
    assert ids(api.get("/failures", kind="zombie")) == [str(zombie.pk)]
    assert ids(api.get("/failures", resolved="true")) == [str(other.pk)]
    assert ids(api.get("/failures", resolved="false")) == [str(zombie.pk)]
    assert ids(api.get("/failures", job=str(other.job_id))) == [str(other.pk)]
    for name, value in (("kind", "bad"), ("resolved", "maybe"), ("job", "1"), ("opened", "1")):
        assert list(problem(api.get("/failures", **{name: value}), 400, "invalid")["errors"]) == [name]


def test_one_failure_shows_everything_also_when_it_belongs_to_nothing(api: Api) -> None:
    failure = factories.make_failure()
    assert api.get(f"/failures/{failure.pk}").json()["traceback"] == "Traceback …"
    lost = FailedOccurrence.objects.create(
        kind="rejected", fingerprint="1" * 32, raw="{broken", failed_at=factories.NOON, error_message="not JSON"
    )
    body = api.get(f"/failures/{lost.pk}").json()
    assert (body["occurrence"], body["job"], body["job_name"], body["raw"]) == (None, None, None, "{broken")
    problem(api.get(f"/failures/{uuid4()}"), 404, "not_found")


def test_a_failure_is_resolved_once_and_reopened(api: Api) -> None:
    failure = factories.make_failure()
    body = api.post(f"/failures/{failure.pk}/resolve", FIXED).json()
    assert (body["action"], body["note"], body["resolved_by"]) == ("fixed", FIXED["note"], "olga")
    assert body["resolved_at"] is not None
    problem(api.post(f"/failures/{failure.pk}/resolve", FIXED), 409, "already_resolved")
    assert api.post(f"/failures/{failure.pk}/reopen").json()["resolved_at"] is None
    problem(api.post(f"/failures/{failure.pk}/reopen"), 409, "already_open")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"action", "note"}),
        ({"action": "fixed", "note": " "}, {"note"}),
        ({"action": "burnt", "note": "x"}, {"action"}),
        ({**FIXED, "by": "me"}, {"by"}),
        ({"action": ["fixed"], "note": "x"}, {"action"}),
    ],
)
def test_a_resolution_needs_an_action_and_a_note(api: Api, body: dict[str, Any], fields: set[str]) -> None:
    failure = factories.make_failure()
    assert set(problem(api.post(f"/failures/{failure.pk}/resolve", body), 400)["errors"]) == fields
    failure.refresh_from_db()
    assert failure.resolved_at is None


def test_a_failure_is_retried_with_its_data_or_with_edited_ones(api: Api) -> None:
    occurrence = factories.make_occurrence(factories.make_job(data={"a": 1}), status=Status.FAILED)
    failure = factories.make_failure(occurrence)
    response = api.post(f"/failures/{failure.pk}/retry", {"data": {"a": 2}, "note": "typo"})
    assert response.status_code == 202, response.content
    assert (response.json()["action"], response.json()["note"]) == ("retried", "typo")
    occurrence.refresh_from_db()
    assert (occurrence.status, occurrence.data) == (Status.QUEUED, {"a": 2})
    problem(api.post(f"/failures/{failure.pk}/retry"), 409, "not_retryable")


def test_many_failures_are_resolved_in_one_go_and_only_the_open_ones_count(
    api: Api, django_assert_num_queries: Any
) -> None:
    failures = [str(factories.make_failure().pk) for _ in range(3)]
    api.post(f"/failures/{failures[0]}/resolve", FIXED)
    with django_assert_num_queries(WHO_QUERIES + 1):
        response = api.post("/failures/resolve", {"ids": [*failures, str(uuid4())], **FIXED})
    assert (response.status_code, response.json()) == (200, {"resolved_count": 2})
    assert not FailedOccurrence.objects.filter(resolved_at=None).exists()


def test_many_failures_are_retried_in_one_go(api: Api) -> None:
    failures = [str(factories.make_failure().pk) for _ in range(3)]
    response = api.post("/failures/retry", {"ids": failures, "note": "network is back"})
    assert (response.status_code, response.json()) == (202, {"retried_count": 3})
    assert set(Occurrence.objects.values_list("status", flat=True)) == {Status.QUEUED}
    assert set(FailedOccurrence.objects.values_list("action", "note")) == {("retried", "network is back")}


@pytest.mark.parametrize(
    ("ids", "place"),
    [
        ([], "ids"),
        ("x", "ids"),
        (None, "ids"),
        ({"a": 1}, "ids"),
        ([str(uuid4())] * 501, "ids"),
        (["x"], "ids.0"),
        ([str(uuid4()), None], "ids.1"),
        ([1], "ids.0"),
        ([True], "ids.0"),
    ],
)
def test_many_need_a_list_of_ids(api: Api, ids: Any, place: str) -> None:
    for path, more in (("resolve", FIXED), ("retry", {})):
        assert list(problem(api.post(f"/failures/{path}", {"ids": ids, **more}), 400, "invalid")["errors"]) == [place]
