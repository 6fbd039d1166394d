"""The list of jobs, a job's page, the form, and what it asks for while one types."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs import definitions
from jobs.models import Job
from jobs.views import inputs_of
from occurrences.models import Occurrence
from occurrences.states import Status
from tests import factories
from tickwork.ids import uuid7

pytestmark = pytest.mark.django_db

TYPED: dict[str, Any] = {
    "name": "Nightly",
    "worker": "steady",
    "job_type": "work",
    "data": '{"a": 1}',
    "kind": "cron",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "concurrent_execution_policy": "0",
    "misfire_policy": "fire_once",
    "misfire_limit": "10",
    "dst_gap": "run_after",
    "dst_overlap": "once",
    "jitter_seconds": "0",
}


def text_of(response: Any) -> str:
    """What one reads on the page."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


# ── the list ───────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_paged_by_name_without_gaps_or_repeats(viewer: Client) -> None:
    for number in range(55):
        factories.make_job(name=f"job {number // 2:02}")
    seen, url = [], "/jobs/"
    for _ in range(2):
        page = viewer.get(url).context["page"]()
        seen += [job.pk for job in page.rows]
        url = f"/jobs/?after={page.next_key}"
    assert page.next_key is None
    expected = list(Job.objects.order_by("name", "pk").values_list("pk", flat=True))
    assert seen == expected


def test_jobs_are_found_by_name_and_by_state(viewer: Client) -> None:
    user = factories.make_operator()
    factories.make_job(name="alpha")
    definitions.pause(factories.make_job(name="beta"), by=user)
    disabled = factories.make_job(name="gamma")
    Job.objects.filter(pk=disabled.pk).update(is_active=False, disabled_by=Job.DisabledBy.FAILURES)
    definitions.retire(factories.make_job(name="alpha retired"), by=user)

    def found(query: str) -> list[str]:
        return [job.name for job in viewer.get(f"/jobs/{query}").context["page"]().rows]

    assert found("?q=ALPH") == ["alpha"]
    assert found("?state=active") == ["alpha"]
    assert found("?state=paused") == ["beta"]
    assert found("?state=disabled") == ["gamma"]
    assert found("") == ["alpha", "beta", "gamma"]
    assert viewer.get("/jobs/?state=odd").status_code == 404


def test_the_list_says_when_how_and_what_became_of_the_last_run(viewer: Client) -> None:
    job = factories.make_job(name="Nightly", cron="30 2 * * *", timezone="Europe/Berlin")
    earlier, later = sorted([uuid7(), uuid7()])
    factories.make_occurrence(job, id=later, status=Status.FAILED)
    factories.make_occurrence(job, id=earlier, status=Status.COMPLETED)
    text = text_of(viewer.get("/jobs/"))
    assert "At 02:30 every day" in text
    assert "Europe/Berlin" in text
    assert "Failed" in text
    assert "Completed" not in text


def test_the_list_costs_the_same_for_one_job_and_for_many(viewer: Client, django_assert_max_num_queries: Any) -> None:
    for _ in range(30):
        factories.make_occurrence(factories.make_job(cron="@hourly"), status=Status.COMPLETED)
    with django_assert_max_num_queries(6) as captured:
        assert viewer.get("/jobs/").status_code == 200
    assert not any("COUNT(" in query["sql"] for query in captured.captured_queries)


# ── a job's page ───────────────────────────────────────────────────────────────────────────────────


def test_a_jobs_page_tells_its_next_runs_in_its_own_zone_and_where_its_rules_come_from(viewer: Client) -> None:
    factories.make_job_type(name="work", defaults={"timeout_seconds": 77})
    job = factories.make_job(cron="30 2 * * *", timezone="America/New_York", max_attempts=9)
    response = viewer.get(f"/jobs/{job.pk}/")
    text = text_of(response)
    assert len(re.findall(r"02:30:00 E[SD]T", text)) == 10
    policy = {label: (value, source) for label, value, source in response.context["policy"]()}
    assert policy["Attempts"] == ("9", "job")
    assert policy["Longest run of one attempt"] == ("77 s", "job type")
    assert policy["Backoff"] == ("default", "setting")


def test_a_disabled_job_says_why_and_enabling_it_again_resets_the_count(operator: Client) -> None:
    job = factories.make_job(cron="@hourly")
    Job.objects.filter(pk=job.pk).update(
        is_active=False,
        disabled_by=Job.DisabledBy.FAILURES,
        next_run_at=None,
        consecutive_failure_count=5,
        disabled_at=timezone.now(),
        disabled_reason="5 failures in a row",
    )
    text = text_of(operator.get(f"/jobs/{job.pk}/"))
    assert "5 failures in a row" in text
    assert "Enable again" in text
    assert "Disabled after failures" in text_of(operator.get("/?part=now"))
    assert operator.post(f"/jobs/{job.pk}/enable/").status_code == 302
    job.refresh_from_db()
    assert (job.is_active, job.consecutive_failure_count) == (True, 0)
    assert job.next_run_at is not None


def test_a_job_that_was_disabled_shows_no_next_run_but_its_probe(operator: Client) -> None:
    job = factories.make_job(cron="@hourly")
    next_run_at = timezone.now() + timedelta(hours=1)
    Job.objects.filter(pk=job.pk).update(
        is_active=False,
        disabled_by=Job.DisabledBy.FAILURES,
        next_run_at=next_run_at,
        consecutive_failure_count=2,
        disabled_at=timezone.now(),
        disabled_reason="2 failures within 60 min",
        probe_at=next_run_at + timedelta(hours=2),
    )
    for url in ("/jobs/?part=rows", f"/jobs/{job.pk}/?part=state"):
        assert next_run_at.isoformat(timespec="milliseconds") not in operator.get(url).content.decode()
    assert "2 failures within 60 min. A probe run follows in" in text_of(operator.get(f"/jobs/{job.pk}/"))


def test_the_pause_with_a_note_is_offered_while_the_job_is_active(operator: Client) -> None:
    job = factories.make_job(cron="@hourly")
    assert "Pause and say why" in text_of(operator.get(f"/jobs/{job.pk}/"))
    definitions.pause(job, by=None)
    assert "Pause and say why" not in text_of(operator.get(f"/jobs/{job.pk}/"))


def test_pause_keeps_the_note_and_retire_ends_the_job(operator: Client) -> None:
    job = factories.make_job(cron="@hourly")
    operator.post(f"/jobs/{job.pk}/pause/", {"note": "until Monday"})
    job.refresh_from_db()
    assert not job.is_active
    assert "until Monday" in text_of(operator.get(f"/jobs/{job.pk}/"))
    assert operator.post(f"/jobs/{job.pk}/retire/")["Location"] == "/jobs/"
    assert operator.post(f"/jobs/{job.pk}/run/").status_code == 404
    page = operator.post(f"/jobs/{job.pk}/enable/", follow=True)
    assert "was retired" in text_of(page)


def test_run_now_leads_to_the_new_occurrence(operator: Client) -> None:
    job = factories.make_job(data={"a": 1})
    response = operator.post(f"/jobs/{job.pk}/run/")
    occurrence = Occurrence.objects.get()
    assert response["Location"] == f"/occurrences/{occurrence.pk}/"
    assert (occurrence.triggered_by, occurrence.data) == ("olga", {"a": 1})
    operator.post(f"/jobs/{job.pk}/run/", {"data": '{"b": 2}'})
    assert Occurrence.objects.exclude(pk=occurrence.pk).get().data == {"b": 2}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("{", "Not valid JSON: line 1"),
        ("[1]", "must be a JSON object"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "Not valid JSON"),
    ],
)
def test_data_that_are_no_json_object_come_back_with_the_reason(data: str, told: str, operator: Client) -> None:
    job = factories.make_job()
    response = operator.post(f"/jobs/{job.pk}/run/", {"data": data})
    assert response.status_code == 422
    assert told in text_of(response)
    assert not Occurrence.objects.exists()


def test_runs_of_a_job_are_paged_by_key(viewer: Client) -> None:
    job = factories.make_job()
    made = [factories.make_occurrence(job, status=Status.COMPLETED).pk for _ in range(25)]
    factories.make_occurrence()
    first = viewer.get(f"/jobs/{job.pk}/").context["page"]()
    second = viewer.get(f"/jobs/{job.pk}/?before={first.next_key}").context["page"]()
    assert [row.pk for row in first.rows + second.rows] == sorted(made, reverse=True)
    assert viewer.get(f"/jobs/{job.pk}/?before=nonsense").status_code == 404


# ── the form ───────────────────────────────────────────────────────────────────────────────────────


def test_a_new_job_is_made_from_the_form(operator: Client) -> None:
    response = operator.post("/jobs/new/", TYPED)
    job = Job.objects.get()
    assert response["Location"] == f"/jobs/{job.pk}/"
    assert (job.name, job.cron, job.timezone, job.data) == ("Nightly", "30 2 * * *", "Europe/Berlin", {"a": 1})
    assert job.max_attempts is None
    assert job.versions.get().created_by is not None


def test_times_are_read_in_the_jobs_own_zone_and_shown_so_again(operator: Client) -> None:
    operator.post(
        "/jobs/new/", {**TYPED, "kind": "once", "execute_at": "2031-07-01T08:30", "timezone": "America/New_York"}
    )
    job = Job.objects.get()
    assert job.execute_at == datetime(2031, 7, 1, 12, 30, tzinfo=UTC)
    assert job.cron == ""
    assert b'value="2031-07-01T08:30:00"' in operator.get(f"/jobs/{job.pk}/edit/").content


@pytest.mark.parametrize(
    ("typed", "field", "told"),
    [
        ({"cron": "99 * * * *"}, "cron", "minute"),
        ({"cron": ""}, "cron", "needs a cron"),
        ({"timezone": "Mars/Olympus"}, "timezone", "not known"),
        ({"kind": "once"}, "execute_at", "Say when"),
        ({"kind": "once", "execute_at": "tomorrow"}, "execute_at", "Not a date"),
        ({"max_attempts": "101"}, "max_attempts", "1 to 100"),
        ({"worker": "a.b"}, "worker", "Letters"),
        ({"data": "{"}, "data", "Not valid JSON"),
        ({"name": ""}, "name", "required"),
        ({"timeout_seconds": "nan"}, "timeout_seconds", ""),
        ({"jitter_seconds": "-1"}, "jitter_seconds", "from 0 to"),
        ({"retry_on_timeout": "maybe"}, "retry_on_timeout", "valid choice"),
    ],
)
def test_a_mistake_is_told_at_its_field_and_what_was_typed_stays(
    typed: dict[str, str], field: str, told: str, operator: Client
) -> None:
    response = operator.post("/jobs/new/", {**TYPED, **typed})
    assert response.status_code == 422
    assert told in " ".join(response.context["form"].errors[field])
    assert not Job.objects.exists()
    value = next(iter(typed.values()))
    assert html.escape(value) in response.content.decode()


def test_data_are_checked_against_the_schema_of_the_job_type(operator: Client) -> None:
    factories.make_job_type(name="work", data_schema={"type": "object", "properties": {"a": {"type": "string"}}})
    response = operator.post("/jobs/new/", TYPED)
    assert "string" in " ".join(response.context["form"].errors["data"])


def test_saving_makes_a_version_and_a_form_that_is_out_of_date_is_refused(operator: Client) -> None:
    job = factories.make_job(name="first")
    late = {**TYPED, "name": "late", "version": "1"}
    assert operator.post(f"/jobs/{job.pk}/edit/", {**TYPED, "name": "second", "version": "1"}).status_code == 302
    response = operator.post(f"/jobs/{job.pk}/edit/", late)
    assert response.status_code == 422
    assert "Somebody saved version 2" in text_of(response)
    job.refresh_from_db()
    assert (job.name, job.version) == ("second", 2)


def test_a_form_that_is_saved_as_it_is_shown_changes_nothing(operator: Client) -> None:
    job = factories.make_job(
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        retry_on_timeout=True,
        max_attempts=4,
        starts_at=timezone.now() + timedelta(days=1),
    )
    Job.objects.filter(pk=job.pk).update(starts_at=datetime(2031, 1, 1, 5, 0, tzinfo=UTC))
    form = operator.get(f"/jobs/{job.pk}/edit/").context["form"]
    typed = {name: field.value() for name, field in ((name, form[name]) for name in form.fields)}
    response = operator.post(
        f"/jobs/{job.pk}/edit/", {name: value for name, value in typed.items() if value is not None}
    )
    assert response.status_code == 302
    job.refresh_from_db()
    assert job.version == 1


# ── while one types ────────────────────────────────────────────────────────────────────────────────


def test_the_preview_says_the_schedule_in_words_with_its_next_five_fires(viewer: Client) -> None:
    response = viewer.get("/jobs/preview/", {"kind": "cron", "cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    assert "At 02:30 every day" in text_of(response)
    assert len(response.context["fires"]) == 5


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"cron": "99 * * * *"}, "minute"),
        ({"cron": "0 0 * * *", "timezone": "Mars/Olympus"}, "not known"),
        ({"cron": "0 0 * * *", "starts_at": "soon"}, "Not a date"),
        ({"cron": "0 0 * * *", "dst_gap": "odd"}, "dst_gap"),
        ({"cron": "0 0 * * *", "starts_at": "2031-01-02T00:00", "ends_at": "2031-01-01T00:00"}, "later"),
    ],
)
def test_the_preview_says_what_is_wrong(typed: dict[str, str], told: str, viewer: Client) -> None:
    response = viewer.get("/jobs/preview/", {"kind": "cron", **typed})
    assert response.status_code == 200
    assert told in response.context["error"]


def test_the_schema_is_shown_as_names_types_and_defaults(viewer: Client) -> None:
    schema = {
        "$ref": "#/$defs/work",
        "$defs": {
            "work": {
                "type": "object",
                "required": ["month"],
                "properties": {
                    "month": {"type": "string", "description": "As YYYY-MM"},
                    "fmt": {"enum": ["pdf", "csv"], "default": "pdf"},
                    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                },
            }
        },
    }
    factories.make_job_type(name="work", data_schema=schema)
    response = viewer.get("/jobs/schema/", {"worker": "steady", "job_type": "work"})
    rows = {row["name"]: row for row in response.context["inputs"]}
    assert rows["month"]["required"]
    assert rows["month"]["description"] == "As YYYY-MM"
    assert rows["fmt"]["type"] == "one of pdf, csv"
    assert rows["limit"]["type"] == "integer or null"
    assert rows["limit"]["has_default"]
    assert "has registered" in text_of(viewer.get("/jobs/schema/", {"worker": "steady", "job_type": "other"}))


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        {"$ref": 3},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"properties": 3},
        {"properties": {"a": 3}, "required": 1},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
    ],
)
def test_an_odd_schema_breaks_nothing(schema: Any) -> None:
    assert isinstance(inputs_of(schema), list)
