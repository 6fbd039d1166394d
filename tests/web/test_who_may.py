"""Who sees which page and who may press which button."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from occurrences.models import FailedOccurrence, Occurrence
from occurrences.states import Status
from tests import factories
from tests.web.conftest import browser_of

pytestmark = pytest.mark.django_db


def addresses() -> dict[str, str]:
    """Every page, with a row behind it where it needs one."""
    failure = factories.make_failure()
    assert failure.occurrence
    job = factories.make_job(cron="0 6 * * *")
    return {
        "overview": "/",
        "jobs": "/jobs/",
        "job": f"/jobs/{job.pk}/",
        "occurrences": "/occurrences/",
        "occurrence": f"/occurrences/{failure.occurrence.pk}/",
        "failures": "/failures/",
        "resolved": "/failures/?show=resolved",
        "failure": f"/failures/{failure.pk}/",
        "workers": "/workers/",
        "preview": "/jobs/preview/?cron=0+6+*+*+*",
        "schema": "/jobs/schema/?worker=steady&job_type=work",
        "health": "/health/strip",
    }


PAGES = ["overview", "jobs", "job", "occurrences", "occurrence", "failures", "resolved", "failure", "workers",
         "preview", "schema", "health"]  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_viewer_sees_the_page_a_stranger_and_nobody_do_not(name: str, viewer: Client, stranger: Client) -> None:
    url = addresses()[name]
    assert viewer.get(url).status_code == 200
    assert stranger.get(url).status_code == 403
    response = Client().get(url)
    assert response.status_code == 302
    assert response["Location"].startswith("/login/?next=")


@pytest.mark.parametrize("url", ["/jobs/new/", "/jobs/{job}/edit/"])
def test_only_who_may_define_jobs_sees_the_form(url: str, viewer: Client, operator: Client) -> None:
    url = url.format(job=factories.make_job().pk)
    assert operator.get(url).status_code == 200
    assert viewer.get(url).status_code == 403
    assert viewer.post(url, {}).status_code == 403


ACTIONS = [
    ("job_run", "job"), ("job_pause", "job"), ("job_enable", "job"), ("job_retire", "job"), ("remove_samples", ""),
    ("occurrence_cancel", "occurrence"), ("occurrence_retry", "occurrence"), ("occurrence_retry_now", "occurrence"),
    ("failure_resolve", "failure"), ("failure_reopen", "failure"), ("failure_retry", "failure"),
    ("failures_resolve", ""), ("failures_retry", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), ACTIONS)
def test_a_button_of_the_operator_is_refused_to_a_viewer_to_nobody_and_to_a_link(
    name: str, kind: str, viewer: Client, operator: Client
) -> None:
    failure = factories.make_failure()
    rows = {"job": failure.job, "occurrence": failure.occurrence, "failure": failure, "": None}
    row = rows[kind]
    url = reverse(name, args=[row.pk] if row else [])
    assert viewer.post(url).status_code == 403
    assert operator.get(url).status_code == 405
    anonymous = Client().post(url)
    assert anonymous.status_code == 302
    assert anonymous["Location"].startswith("/login/")
    assert FailedOccurrence.objects.get().resolved_at is None
    assert Occurrence.objects.get().status == Status.FAILED


def test_a_viewer_is_given_nothing_to_tick(viewer: Client, operator: Client) -> None:
    factories.make_failure()
    assert 'type="checkbox"' in operator.get("/failures/").content.decode()
    assert 'type="checkbox"' not in viewer.get("/failures/").content.decode()


def test_a_form_without_its_csrf_token_changes_nothing() -> None:
    job = factories.make_job()
    client = Client(enforce_csrf_checks=True)
    client.force_login(factories.make_operator())
    response = client.post(f"/jobs/{job.pk}/run/")
    assert response.status_code == 403
    assert b"too old" in response.content
    assert not Occurrence.objects.exists()


def test_after_an_action_one_is_never_sent_to_another_site(operator: Client) -> None:
    occurrence = factories.make_occurrence()
    response = operator.post(f"/occurrences/{occurrence.pk}/cancel/", {"next": "https://evil.example/"})
    assert response["Location"] == "/"


@pytest.fixture
def roles() -> None:
    """The groups as the migration makes them; a test database that was flushed has lost them."""
    editor = SimpleNamespace(connection=connection)  # all that the migration needs of one
    importlib.import_module("occurrences.migrations.0002_roles").make_roles(apps, editor)


@pytest.mark.usefixtures("roles")
def test_members_of_the_shipped_groups_may_look_and_act() -> None:
    for name, may_act in (("viewer", False), ("operator", True)):
        user = User.objects.create(username=f"member of {name}")
        user.groups.add(Group.objects.get(name=name))
        client = browser_of(user)
        job = factories.make_job()
        assert client.get("/").status_code == 200
        assert client.get("/workers/").status_code == 200
        assert client.get("/failures/").status_code == 200
        assert client.get("/jobs/new/").status_code == (200 if may_act else 403)
        assert client.post(f"/jobs/{job.pk}/run/").status_code == (302 if may_act else 403)
        assert not user.has_perm("jobs.view_idempotencyrecord")


def test_login_and_logout() -> None:
    user = factories.make_viewer()
    user.set_password("correct horse battery")
    user.save()
    client = Client()
    wrong = client.post("/login/", {"username": "victor", "password": "wrong"})
    assert wrong.status_code == 200
    assert b"correct username and password" in wrong.content
    right = client.post(
        "/login/?next=/jobs/", {"username": "victor", "password": "correct horse battery", "next": "/jobs/"}
    )
    assert right["Location"] == "/jobs/"
    assert client.get("/jobs/").status_code == 200
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/jobs/").status_code == 302


@pytest.mark.parametrize(("url", "status"), [("/nothing/", 404), ("/jobs/not-an-id/", 404)])
def test_what_is_not_there_says_so_within_the_frame(url: str, status: int, viewer: Client) -> None:
    response = viewer.get(url)
    assert response.status_code == status
    assert b"There is nothing here" in response.content
    assert b"Main" in response.content
