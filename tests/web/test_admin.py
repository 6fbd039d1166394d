"""Django's administration: what the system writes can only be looked at, the rest goes through the usual doors."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from occurrences.models import FailedOccurrence, LoopPass, OutboxMessage
from occurrences.states import Status
from tests import factories
from tests.web.conftest import browser_of
from tests.web.test_job_pages import text_of

pytestmark = pytest.mark.django_db
OURS = [model for label in ("jobs", "workers_app", "occurrences") for model in apps.get_app_config(label).get_models()]
EDITED = {"job", "failedoccurrence"}


@pytest.fixture
def root(db: None) -> Client:
    """A superuser's browser."""
    return browser_of(User.objects.create_superuser("root"))


def one_of_each() -> None:
    """A row in every table."""
    now = timezone.now()
    failure = factories.make_failure()
    assert failure.occurrence
    factories.make_attempt(failure.occurrence)
    factories.make_log(failure.occurrence, 1)
    factories.make_instance(factories.make_worker())
    factories.make_job_type()
    LoopPass.objects.create(role="dispatch", process="here", started_at=now, last_pass_at=now)
    OutboxMessage.objects.create(
        event_type="job.dispatch", exchange="x", routing_key="k", body="{}", occurred_at=now, next_attempt_at=now
    )


def typed(job: Job, **changes: Any) -> dict[str, Any]:
    """The admin's form of a job, as a browser sends it."""
    form = admin.site._registry[Job].form(instance=job)
    values: dict[str, Any] = {}
    for name in form.fields:
        value = form[name].value()
        if name in ("execute_at", "starts_at", "ends_at"):
            values |= {f"{name}_0": "", f"{name}_1": ""}
        else:
            values[name] = "" if value is None else value
    return {**values, **changes}


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_every_table_can_be_listed_and_looked_at_and_most_not_edited(model: Any, root: Client) -> None:
    one_of_each()
    base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    assert root.get(base).status_code == 200
    assert root.get(base, {"q": "nothing"}).status_code == 200
    row = model.objects.first()
    if row is not None:
        assert root.get(f"{base}{row.pk}/change/").status_code == 200
        assert root.post(f"{base}{row.pk}/delete/", {"post": "yes"}).status_code == 403
        if model._meta.model_name not in EDITED:
            assert root.post(f"{base}{row.pk}/change/", {}).status_code == 403
    if model is not Job:
        assert root.get(f"{base}add/").status_code == 403


def test_a_list_of_occurrences_counts_only_up_to_a_cap(root: Client, django_assert_max_num_queries: Any) -> None:
    for _ in range(3):
        factories.make_occurrence()
    with django_assert_max_num_queries(8) as captured:
        root.get("/admin/occurrences/occurrence/")
    counts = [query["sql"] for query in captured.captured_queries if "COUNT(" in query["sql"]]
    assert counts
    assert all("LIMIT" in sql for sql in counts)


def test_an_occurrence_is_found_by_its_id(root: Client) -> None:
    wanted, other = factories.make_occurrence(), factories.make_occurrence()
    page = root.get("/admin/occurrences/occurrence/", {"q": str(wanted.pk)}).content.decode()
    assert str(wanted.pk) in page
    assert str(other.pk) not in page


def test_a_job_that_is_saved_here_gets_a_version_under_the_persons_name(root: Client) -> None:
    job = factories.make_job(name="first")
    response = root.post(f"/admin/jobs/job/{job.pk}/change/", typed(job, name="second", cron="@hourly"))
    assert response.status_code == 302, response.context["errors"]
    job.refresh_from_db()
    assert (job.name, job.version) == ("second", 2)
    assert job.next_run_at is not None
    author = job.versions.get(number=2).created_by
    assert author
    assert author.username == "root"


def test_a_job_is_made_here_too(root: Client) -> None:
    response = root.post("/admin/jobs/job/add/", typed(Job(name="new", worker="steady", job_type="work"), data="{}"))
    assert response.status_code == 302, response.context["errors"]
    assert Job.objects.get().versions.count() == 1


def test_what_the_definitions_refuse_is_shown_at_its_field_and_leaves_nothing_behind(root: Client) -> None:
    job = factories.make_job(name="first")
    response = root.post(f"/admin/jobs/job/{job.pk}/change/", typed(job, name="second", cron="99 * * * *"))
    assert response.status_code == 200
    assert "minute" in " ".join(response.context["adminform"].form.errors["cron"])
    job.refresh_from_db()
    assert (job.name, job.version, job.versions.count()) == ("first", 1, 1)


def test_jobs_are_paused_enabled_and_retired_in_bulk(root: Client) -> None:
    one, two = factories.make_job(cron="@hourly"), factories.make_job(cron="@hourly")

    def act(name: str) -> str:
        ticked = {"action": name, "_selected_action": [one.pk, two.pk]}
        return text_of(root.post("/admin/jobs/job/", ticked, follow=True))

    assert "2 paused." in act("pause")
    assert not Job.objects.filter(is_active=True).exists()
    assert "2 enabled." in act("enable")
    assert "2 retired." in act("retire")
    assert "was retired and cannot be changed" in act("pause")


def test_a_failure_is_resolved_here_under_the_persons_name(root: Client) -> None:
    failure = factories.make_failure()
    url = f"/admin/occurrences/failedoccurrence/{failure.pk}/change/"
    assert root.post(url, {"action": "fixed", "note": ""}).status_code == 200
    assert root.post(url, {"action": "fixed", "note": "by hand"}).status_code == 302
    failure.refresh_from_db()
    assert (failure.action, failure.note) == ("fixed", "by hand")
    assert failure.resolved_by
    assert failure.resolved_by.username == "root"
    assert root.post(url, {"action": "ignored", "note": "again"}).status_code == 403


def test_failures_are_retried_resolved_and_reopened_in_bulk(root: Client) -> None:
    one, two = factories.make_failure(), factories.make_failure()

    def act(name: str, *rows: FailedOccurrence, note: str = "") -> str:
        ticked = {"action": name, "note": note, "_selected_action": [row.pk for row in rows]}
        return text_of(root.post("/admin/occurrences/failedoccurrence/", ticked, follow=True))

    assert "A note is needed" in act("resolve_fixed", one, two)
    assert "2 resolved." in act("resolve_fixed", one, two, note="new certificate")
    one.refresh_from_db()
    assert (one.action, one.note) == ("fixed", "new certificate")
    assert "1 open again." in act("reopen", one)
    told = act("retry", one, two, note="after the deployment")
    assert "1 started again." in told
    assert "1 could not be started again" in told
    one.refresh_from_db()
    assert (one.action, one.note) == ("retried", "after the deployment")
    assert one.occurrence
    assert one.occurrence.status == Status.QUEUED


def test_a_failure_is_retried_here_with_its_own_or_with_edited_data_that_fit(root: Client) -> None:
    schema = {"type": "object", "properties": {"month": {"type": "integer"}}}
    factories.make_job_type(name="work", data_schema=schema)

    def retry(failure: FailedOccurrence, data: str) -> Any:
        typed = {"action": "retried", "note": "", "job_data": data}
        return root.post(f"/admin/occurrences/failedoccurrence/{failure.pk}/change/", typed)

    job = factories.make_job(data={"month": 13})
    own, edited = (factories.make_failure(factories.make_occurrence(job, status=Status.FAILED)) for _ in range(2))
    assert own.occurrence
    assert edited.occurrence
    refused = retry(edited, '{"month": "May"}')
    assert refused.status_code == 200
    assert "is not of type" in " ".join(refused.context["adminform"].form.errors["job_data"])
    assert retry(edited, '{"month": 12}').status_code == 302
    assert retry(own, '{"month": 13}').status_code == 302
    for failure, month in ((own, 13), (edited, 12)):
        failure.refresh_from_db()
        assert failure.occurrence
        assert failure.action == "retried"
        assert (failure.occurrence.status, failure.occurrence.data) == (Status.QUEUED, {"month": month})


def test_a_dead_letter_that_belongs_to_nothing_is_resolved_but_not_retried(root: Client) -> None:
    dead = FailedOccurrence.objects.create(kind="rejected", fingerprint="0" * 32, failed_at=timezone.now())
    url = f"/admin/occurrences/failedoccurrence/{dead.pk}/change/"
    refused = root.post(url, {"action": "retried", "note": ""})
    assert "belongs to no occurrence" in " ".join(refused.context["adminform"].form.errors["action"])
    assert root.post(url, {"action": "ignored", "note": "an old client"}).status_code == 302


def test_failures_are_found_by_job_and_by_id(root: Client) -> None:
    wanted = factories.make_failure(factories.make_occurrence(factories.make_job(name="ledger"), status=Status.FAILED))
    factories.make_failure()
    assert wanted.occurrence
    for text in ("LEDG", str(wanted.pk), str(wanted.occurrence.pk)):
        page = root.get("/admin/occurrences/failedoccurrence/", {"q": text})
        assert list(page.context["cl"].result_list) == [wanted], text


def test_occurrences_are_listed_by_status_and_in_no_order_that_reads_the_whole_table(root: Client) -> None:
    failed = factories.make_occurrence(status=Status.FAILED)
    factories.make_occurrence(status=Status.COMPLETED)
    page = root.get("/admin/occurrences/occurrence/", {"status": "3"})
    assert list(page.context["cl"].result_list) == [failed]
    assert root.get("/admin/occurrences/occurrence/", {"status": "odd"}).status_code == 200
    assert "?o=" not in page.content.decode()


@pytest.mark.parametrize("kind", ["job", "occurrence", "failedoccurrence"])
def test_a_row_leads_to_its_own_page(kind: str, root: Client) -> None:
    failure = factories.make_failure()
    assert failure.occurrence
    rows: dict[str, tuple[Any, str]] = {
        "job": (failure.job, "jobs"),
        "occurrence": (failure.occurrence, "occurrences"),
        "failedoccurrence": (failure, "failures"),
    }
    row, folder = rows[kind]
    page = root.get(f"/admin/{row._meta.app_label}/{kind}/{row.pk}/change/").content.decode()
    assert f'href="/{folder}/{row.pk}/"' in page


def test_occurrences_are_cancelled_in_bulk_and_a_refusal_stops_none_of_the_others(root: Client) -> None:
    waiting, done = factories.make_occurrence(), factories.make_occurrence(status=Status.COMPLETED)
    ticked = {"action": "cancel", "_selected_action": [done.pk, waiting.pk]}
    text = text_of(root.post("/admin/occurrences/occurrence/", ticked, follow=True))
    assert "1 cancelled" in text
    assert "at its end already" in text
    waiting.refresh_from_db()
    assert waiting.status == Status.CANCELLED


def test_staff_without_permission_gets_no_action() -> None:
    looker = factories.make_user("staff", may=("view",), is_staff=True)
    client = browser_of(looker)
    occurrence = factories.make_occurrence()
    page = client.get("/admin/occurrences/occurrence/").content.decode()
    assert 'value="cancel"' not in page
    client.post("/admin/occurrences/occurrence/", {"action": "cancel", "_selected_action": [occurrence.pk]})
    occurrence.refresh_from_db()
    assert occurrence.status == Status.QUEUED
