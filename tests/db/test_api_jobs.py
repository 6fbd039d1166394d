"""Jobs, their versions, job types, schedules and workers over the API."""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs import definitions
from jobs.models import Job
from tests import factories
from tests.db.api_client import WHO_QUERIES, Api, problem

pytestmark = pytest.mark.django_db
NOBODY = "01900000-0000-7000-8000-000000000000"
NEW_JOB = {"name": "nightly report", "worker": "reports", "job_type": "build_report"}


@pytest.fixture
def api() -> Api:
    """The operator at the API."""
    return Api(factories.make_operator())


def names(response: Any) -> list[str]:
    """The names in a page, sorted."""
    return sorted(row["name"] for row in response.json()["results"])


def test_a_job_is_created_with_its_place_and_its_next_fire(api: Api) -> None:
    response = api.post(
        "/jobs", {**NEW_JOB, "cron": "0 3 * * *", "timezone": "Europe/Berlin", "data": {"a": [1, None]}}
    )
    assert response.status_code == 201, response.content
    body = response.json()
    assert body["schedule_kind"] == "cron"
    assert body["version"] == 1
    assert body["is_active"] is True
    assert body["next_run_at"].endswith("Z")
    assert body["data"] == {"a": [1, None]}
    assert response["Location"] == f"/api/v1/jobs/{body['id']}"
    assert api.get(f"/jobs/{body['id']}").json() == body
    assert Job.objects.get().versions.get().created_by == User.objects.get(username="olga")


def test_a_job_may_begin_paused(api: Api) -> None:
    body = api.post("/jobs", {**NEW_JOB, "cron": "* * * * *", "is_active": False}).json()
    assert body["is_active"] is False
    assert body["next_run_at"] is None


def test_every_rule_that_a_definition_breaks_is_told_by_field(api: Api) -> None:
    body = problem(
        api.post("/jobs", {**NEW_JOB, "cron": "61 * * * *", "max_attempts": 101, "timezone": "Moon/Sea"}), 400
    )
    assert body["code"] == "invalid"
    assert set(body["errors"]) == {"cron", "max_attempts", "timezone"}
    assert "minute" in body["errors"]["cron"][0]
    assert not Job.objects.exists()


def test_missing_fields_are_named(api: Api) -> None:
    assert set(problem(api.post("/jobs", {}), 400, "invalid")["errors"]) == {"name", "worker", "job_type"}


def test_an_unknown_field_is_refused_with_the_nearest_known_one(api: Api) -> None:
    body = problem(api.post("/jobs", {**NEW_JOB, "timout_seconds": 5, "xyzzy": 1}), 400, "invalid")
    assert body["errors"]["timout_seconds"] == ["There is no such field. Did you mean timeout_seconds?"]
    assert body["errors"]["xyzzy"] == ["There is no such field."]


def test_what_the_scheduler_sets_cannot_be_set(api: Api) -> None:
    body = problem(api.post("/jobs", {**NEW_JOB, "next_run_at": "2030-01-01T00:00:00Z", "version": 7}), 400, "invalid")
    assert set(body["errors"]) == {"next_run_at", "version"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", {"a": 1}),
        ("name", ""),
        ("name", "x" * 201),
        ("data", [1]),
        ("data", "text"),
        ("execute_at", "tomorrow"),
        ("execute_at", "2030-01-01T00:00:00"),
        ("execute_at", "0001-01-01T00:00:00+14:00"),
        ("timeout_seconds", "nan"),
        ("timeout_seconds", "inf"),
        ("timeout_seconds", -1),
        ("timeout_seconds", True),
        ("max_attempts", 0),
        ("max_attempts", 1.5),
        ("max_attempts", 10**12),
        ("misfire_limit", 2**63),
        ("auto_disable_threshold", 1001),
        ("auto_disable_threshold", 2**40),
        ("is_active", "perhaps"),
        ("dst_gap", "jump"),
        ("dst_gap", ["run_after"]),
        ("concurrent_execution_policy", 9),
        ("retry_preset", "none such"),
        ("worker", "no/slash"),
        ("cron", "* * * *"),
        ("retry_on_timeout", {}),
    ],
)
def test_a_value_of_a_wrong_type_or_range_is_refused_by_field(api: Api, field: str, value: Any) -> None:
    assert field in problem(api.post("/jobs", {**NEW_JOB, field: value}), 400, "invalid")["errors"]
    assert not Job.objects.exists()


def test_a_word_that_is_none_of_a_few_is_refused_with_those_that_are(api: Api) -> None:
    body = problem(api.post("/jobs", {**NEW_JOB, "dst_gap": "x" * 5000, "concurrent_execution_policy": 1}), 400)
    assert body["errors"] == {
        "dst_gap": ["Allowed are run_after, skip."],
        "concurrent_execution_policy": ["Allowed are 0, 2."],
    }


def test_null_empties_what_a_job_says_itself(api: Api) -> None:
    said = {"cron": "@daily", "retry_preset": "flare", "on_worker_unavailable": "fail", "max_attempts": 7}
    job = api.post("/jobs", {**NEW_JOB, **said}).json()
    emptied = api.patch(f"/jobs/{job['id']}", dict.fromkeys(said)).json()
    assert [emptied[name] for name in said] == ["", "", "", None]
    assert emptied["next_run_at"] is None


def test_what_can_be_no_id_or_name_leads_nowhere(api: Api) -> None:
    for place in ("jobs", "job-types", "workers", "occurrences", "failures"):
        for name in ("%00", "%ff", "a%00b", "-" * 36, "a.b", "x" * 65):
            problem(api.get(f"/{place}/{name}"), 404, "not_found")


def test_what_does_not_exist_is_named(api: Api) -> None:
    for path, what in (("jobs", "job"), ("job-types", "job type"), ("workers", "worker")):
        assert problem(api.get(f"/{path}/{uuid4()}"), 404)["detail"] == f"There is no such {what}."


def test_the_list_shows_jobs_newest_first_without_the_retired(api: Api) -> None:
    first, second, gone = (factories.make_job() for _ in range(3))
    definitions.retire(gone, by=None)
    ids = sorted([str(first.pk), str(second.pk)], reverse=True)
    assert [row["id"] for row in api.get("/jobs").json()["results"]] == ids
    assert api.get(f"/jobs/{gone.pk}").json()["retired_at"] is not None


def test_the_list_is_filtered(api: Api) -> None:
    factories.make_job(name="Morning mail", worker="mailer", job_type="send")
    factories.make_job(name="evening mail", worker="mailer", job_type="count", is_active=False)
    factories.make_job(name="report", worker="reports", job_type="send")
    assert names(api.get("/jobs", name="MAIL")) == ["Morning mail", "evening mail"]
    assert names(api.get("/jobs", worker="mailer", is_active="true")) == ["Morning mail"]
    assert names(api.get("/jobs", is_active="false")) == ["evening mail"]
    assert names(api.get("/jobs", job_type="send")) == ["Morning mail", "report"]
    assert names(api.get("/jobs", name="100%")) == []


def test_a_filter_that_does_not_exist_or_cannot_be_read_is_refused(api: Api) -> None:
    assert "Did you mean is_active" in problem(api.get("/jobs", isactive="true"), 400)["errors"]["isactive"][0]
    assert "is_active" in problem(api.get("/jobs", is_active="maybe"), 400)["errors"]
    assert "name" in problem(api.get("/jobs", name="a\0b"), 400)["errors"]


def test_pages_lead_to_each_row_once_and_back_again(api: Api) -> None:
    made = sorted(str(factories.make_job().pk) for _ in range(5))
    seen, page = [], api.get("/jobs", page_size=2).json()
    while True:
        seen += [row["id"] for row in page["results"]]
        if page["next"] is None:
            break
        page = api.get(page["next"]).json()
    assert seen == made[::-1]
    assert [row["id"] for row in api.get(page["previous"]).json()["results"]] == [made[2], made[1]]


@pytest.mark.parametrize("size", ["0", "501", "-1", "two", "", "1e2", "٣"])
def test_a_page_size_that_is_not_allowed_is_refused(api: Api, size: str) -> None:
    assert "page_size" in problem(api.get("/jobs", page_size=size), 400, "invalid")["errors"]


@pytest.mark.parametrize("cursor", ["x", "é", "cD0lMDA=", "bz0tNQ==", "cj15ZXM=", "AAAA", "bz0w"])
@pytest.mark.parametrize("path", ["/jobs", "/workers", "/occurrences", "/failures", "/job-types"])
def test_a_cursor_that_the_api_did_not_make_leads_nowhere(api: Api, path: str, cursor: str) -> None:
    problem(api.get(path, cursor=cursor), 404, "not_found")


def test_a_cursor_whose_place_is_no_id_leads_nowhere(api: Api) -> None:
    problem(api.get("/jobs", cursor=b64encode(b"p=nonsense").decode()), 404, "not_found")


def test_a_patch_changes_what_it_names_and_makes_a_version(api: Api) -> None:
    job = factories.make_job(cron="* * * * *", max_attempts=2)
    body = api.patch(f"/jobs/{job.pk}", {"cron": "0 5 * * *", "max_attempts": None}).json()
    assert (body["cron"], body["max_attempts"], body["version"]) == ("0 5 * * *", None, 2)
    assert body["name"] == job.name
    versions = api.get(f"/jobs/{job.pk}/versions").json()["results"]
    assert [(row["number"], row["created_by"]) for row in versions] == [(2, "olga"), (1, None)]
    assert versions[1]["definition"]["cron"] == "* * * * *"


def test_a_patch_does_not_pause(api: Api) -> None:
    job = factories.make_job()
    assert "/pause" in problem(api.patch(f"/jobs/{job.pk}", {"is_active": False}), 400)["errors"]["is_active"][0]


def test_a_job_is_paused_with_a_note_and_enabled_again(api: Api) -> None:
    job = factories.make_job(cron="* * * * *")
    paused = api.post(f"/jobs/{job.pk}/pause", {"note": "holidays"}).json()
    assert paused["is_active"] is False
    assert paused["next_run_at"] is None
    assert "holidays" in paused["disabled_reason"]
    assert "olga" in paused["disabled_reason"]
    enabled = api.post(f"/jobs/{job.pk}/enable").json()
    assert enabled["is_active"] is True
    assert enabled["next_run_at"] is not None


def test_a_deleted_job_is_retired_and_cannot_be_changed(api: Api) -> None:
    job = factories.make_job()
    response = api.delete(f"/jobs/{job.pk}")
    assert (response.status_code, response.content) == (204, b"")
    assert Job.objects.get().retired_at is not None
    for answer in (
        api.patch(f"/jobs/{job.pk}", {"name": "new"}),
        api.post(f"/jobs/{job.pk}/pause"),
        api.post(f"/jobs/{job.pk}/enable"),
        api.post(f"/jobs/{job.pk}/trigger"),
        api.delete(f"/jobs/{job.pk}"),
    ):
        problem(answer, 409, "job_retired")


def test_upcoming_fires_are_as_many_as_asked_for(api: Api) -> None:
    job = factories.make_job(cron="*/5 * * * *")
    assert len(api.get(f"/jobs/{job.pk}/upcoming").json()["upcoming"]) == 10
    fires = api.get(f"/jobs/{job.pk}/upcoming", count=3).json()["upcoming"]
    assert fires == sorted(fires)
    assert len(fires) == 3
    for count in ("0", "101", "many"):
        assert "count" in problem(api.get(f"/jobs/{job.pk}/upcoming", count=count), 400)["errors"]


@pytest.mark.parametrize("identifier", [NOBODY, "1", "not-a-uuid", "-" * 36, "'; drop table", "é"])
def test_a_job_that_does_not_exist_is_not_found(api: Api, identifier: str) -> None:
    for path in (f"/jobs/{identifier}", f"/jobs/{identifier}/versions", f"/jobs/{identifier}/upcoming"):
        problem(api.get(path), 404, "not_found")
    problem(api.patch(f"/jobs/{identifier}", {"name": "x"}), 404, "not_found")
    problem(api.post(f"/jobs/{identifier}/trigger"), 404, "not_found")


def test_a_page_of_jobs_costs_one_query_and_counts_nothing(api: Api, django_assert_num_queries: Any) -> None:
    for _ in range(5):
        factories.make_job()
    with django_assert_num_queries(WHO_QUERIES + 1) as queries:
        assert len(api.get("/jobs").json()["results"]) == 5
    assert not any("COUNT(" in query["sql"] for query in queries.captured_queries)


def test_versions_cost_the_same_however_many_people_wrote_them(api: Api, django_assert_num_queries: Any) -> None:
    job = factories.make_job()
    for name in ("anna", "berta", "clara"):
        definitions.update_job(job, by=factories.make_user(name), name=name)
    with django_assert_num_queries(WHO_QUERIES + 2):
        versions = api.get(f"/jobs/{job.pk}/versions").json()["results"]
    assert [row["created_by"] for row in versions] == ["clara", "berta", "anna", None]


# ── schedules ──────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_is_previewed_without_a_job(api: Api) -> None:
    body = api.post("/schedule/preview", {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "count": 3}).json()
    assert len(body["fires"]) == 3
    assert all(fire.endswith("Z") for fire in body["fires"])
    assert "02:30" in body["description"]
    assert not Job.objects.exists()


def test_a_preview_of_one_time_shows_it_until_it_has_passed(api: Api) -> None:
    soon = timezone.now() + timedelta(hours=1)
    assert len(api.post("/schedule/preview", {"execute_at": soon.isoformat()}).json()["fires"]) == 1
    past = timezone.now() - timedelta(hours=1)
    assert api.post("/schedule/preview", {"execute_at": past.isoformat()}).json()["fires"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"cron": "99 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "x" * 201}, "cron"),
        ({"cron": "* * * * *", "timezone": "Nowhere"}, "timezone"),
        ({"cron": "* * * * *", "timezone": "../etc/passwd"}, "timezone"),
        ({"cron": "* * * * *", "count": 1000}, "count"),
        ({"cron": "* * * * *", "dst_gap": "x"}, "dst_gap"),
        ({"cron": "* * * * *", "zone": "UTC"}, "zone"),
        ({"cron": "* * * * *", "starts_at": "2030-01-02T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"}, "ends_at"),
        ({"execute_at": "2030-01-02T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"}, "execute_at"),
        ({}, "cron"),
        ({"cron": "* * * * *", "execute_at": "2030-01-02T00:00:00Z"}, "cron"),
    ],
)
def test_a_schedule_that_is_wrong_is_told_by_field(api: Api, body: dict[str, Any], field: str) -> None:
    assert list(problem(api.post("/schedule/preview", body), 400, "invalid")["errors"]) == [field]


# ── job types and workers ──────────────────────────────────────────────────────────────────────────


def test_job_types_show_their_schemas(api: Api) -> None:
    made = factories.make_job_type(
        worker="mailer", name="send", data_schema={"type": "object"}, defaults={"max_attempts": 5}
    )
    factories.make_job_type(worker="reports")
    rows = api.get("/job-types", worker="mailer").json()["results"]
    assert [(row["name"], row["data_schema"], row["defaults"]) for row in rows] == [
        ("send", {"type": "object"}, {"max_attempts": 5})
    ]
    assert api.get(f"/job-types/{made.pk}").json() == rows[0]
    assert len(api.get("/job-types").json()["results"]) == 2


def test_workers_show_who_is_alive_in_two_queries(api: Api, django_assert_num_queries: Any) -> None:
    now = timezone.now()
    for name in ("mailer", "reports", "slow"):
        worker = factories.make_worker(name)
        factories.make_instance(worker, last_heartbeat_at=now, running_count=2)
        factories.make_instance(worker, last_heartbeat_at=now - timedelta(hours=1))
        factories.make_instance(worker, last_heartbeat_at=now, stopped_at=now)
    with django_assert_num_queries(WHO_QUERIES + 2):
        rows = api.get("/workers").json()["results"]
    assert [row["name"] for row in rows] == ["mailer", "reports", "slow"]
    assert sorted(instance["is_alive"] for instance in rows[0]["instances"]) == [False, True]
    assert api.get("/workers/mailer").json() == rows[0]
    problem(api.get("/workers/nobody"), 404, "not_found")


def test_workers_are_paged_by_name(api: Api) -> None:
    for name in ("b", "a", "c"):
        factories.make_worker(name)
    page = api.get("/workers", page_size=2).json()
    assert [row["name"] for row in page["results"]] == ["a", "b"]
    assert [row["name"] for row in api.get(page["next"]).json()["results"]] == ["c"]
