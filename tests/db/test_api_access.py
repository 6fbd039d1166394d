"""Who may do what over the API, for every address and method; and that each change honours idempotency keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.urls import URLPattern
from rest_framework.test import APIClient

from jobs.idempotency import METHODS, Idempotent
from scheduler_project.api_urls import router
from tests import factories
from tests.db.api_client import BASE, Api, problem

pytestmark = pytest.mark.django_db

SOME_ID = "01900000-0000-7000-8000-000000000000"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
# Which permission each change needs, beside which nothing helps; changes of other routes fail the test that reads this.
NEEDS = {
    ("POST", "/jobs"): ("add_job",),
    ("PATCH", "/jobs/{id}"): ("change_job",),
    ("DELETE", "/jobs/{id}"): ("delete_job",),
    ("POST", "/jobs/{id}/pause"): ("change_job",),
    ("POST", "/jobs/{id}/enable"): ("change_job",),
    ("POST", "/jobs/{id}/trigger"): ("change_job",),
    ("POST", "/jobs/{id}/trigger-batch"): ("change_job",),
    ("POST", "/schedule/preview"): ("view_job",),
    ("POST", "/occurrences/{id}/cancel"): ("change_occurrence",),
    ("POST", "/occurrences/{id}/retry"): ("change_occurrence",),
    ("POST", "/occurrences/{id}/retry-now"): ("change_occurrence",),
    ("POST", "/failures/resolve"): ("change_failedoccurrence",),
    ("POST", "/failures/retry"): ("change_failedoccurrence", "change_occurrence"),
    ("POST", "/failures/{id}/resolve"): ("change_failedoccurrence",),
    ("POST", "/failures/{id}/reopen"): ("change_failedoccurrence",),
    ("POST", "/failures/{id}/retry"): ("change_failedoccurrence", "change_occurrence"),
}


def address(route: URLPattern) -> str:
    """The route as people write it: `/jobs/{id}/pause`."""
    before, _, after = str(route.pattern).removeprefix("^").removesuffix("/?$").partition("(?P<pk>")
    return "/" + before + ("{id}" + after[after.index(")") + 1 :] if after else "")


def calls() -> list[tuple[str, str, Any]]:
    """(method, address, view class) of everything that the API offers."""
    return [
        (method.upper(), address(route), route.callback.cls)  # type: ignore[attr-defined]
        for route in router.urls
        if isinstance(route, URLPattern) and hasattr(route.callback, "actions")
        for method in route.callback.actions
    ]


CALLS = calls()
READS = [path for method, path, _ in CALLS if method == "GET"]
CHANGES = [(method, path) for method, path, _ in CALLS if method != "GET"]


def test_every_change_is_known_here_with_what_it_needs() -> None:
    assert set(CHANGES) == set(NEEDS)
    assert len(READS) >= 12


def test_every_change_honours_an_idempotency_key() -> None:
    assert {method for method, _ in CHANGES} <= METHODS
    assert all(issubclass(view, Idempotent) for _, _, view in CALLS)


def test_every_address_is_in_the_reference() -> None:
    text = REFERENCE.read_text()
    missing = [f"{method} {path}" for method, path, _ in CALLS if f"`{method} {path}`" not in text]
    assert missing == []


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in CALLS])
def test_nobody_comes_in_without_a_token_and_a_stranger_sees_nothing(method: str, path: str) -> None:
    path = path.replace("{id}", SOME_ID)
    answer = Api().client.generic(method, BASE + path)
    problem(answer, 401, "not_authenticated")
    assert answer["WWW-Authenticate"] == "Token"
    problem(Api(factories.make_stranger()).client.generic(method, BASE + path), 403, "permission_denied")


@pytest.mark.parametrize("path", READS)
def test_a_viewer_may_look_everywhere(path: str) -> None:
    answer = Api(factories.make_viewer()).get(path.replace("{id}", SOME_ID))
    assert answer.status_code == (404 if "{id}" in path else 200), answer.content


@pytest.mark.parametrize(("method", "path"), [call for call in CHANGES if call[1] != "/schedule/preview"])
def test_a_viewer_changes_nothing(method: str, path: str) -> None:
    api = Api(factories.make_viewer())
    problem(api.send(method, path.replace("{id}", SOME_ID), {}), 403, "permission_denied")


@pytest.mark.parametrize(("method", "path"), list(NEEDS))
def test_a_change_needs_exactly_its_permissions(method: str, path: str) -> None:
    target, needs = path.replace("{id}", SOME_ID), NEEDS[method, path]
    allowed = Api(factories.make_user("anna", may=needs)).send(method, target, {})
    assert allowed.status_code in (400, 404), allowed.content
    for missing in needs:
        others = tuple(name for name in ("view", *factories.OPERATOR_MAY) if name != missing)
        if missing == "view_job":
            others = factories.OPERATOR_MAY
        refused = Api(factories.make_user(f"all but {missing}", may=others)).send(method, target, {})
        assert missing in problem(refused, 403, "permission_denied")["detail"]


def test_a_wrong_token_and_that_of_a_dismissed_person_are_refused() -> None:
    user = factories.make_operator()
    api = Api(user)
    assert api.get("/jobs").status_code == 200
    user.is_active = False
    user.save()
    problem(api.get("/jobs"), 401, "authentication_failed")
    for credentials in ("Token nonsense", "Token", "Token a b", "Token \xff"):
        api.client.credentials(HTTP_AUTHORIZATION=credentials)
        problem(api.get("/jobs"), 401, "authentication_failed")


def test_a_browser_session_may_look_and_needs_the_csrf_token_to_change() -> None:
    operator = factories.make_operator()
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(operator)
    assert client.get(f"{BASE}/jobs").status_code == 200
    body = {"name": "x", "worker": "w", "job_type": "t"}
    assert "CSRF" in problem(client.post(f"{BASE}/jobs", body, format="json"), 403, "permission_denied")["detail"]
    client.cookies["csrftoken"] = "a" * 32
    assert client.post(f"{BASE}/jobs", body, format="json", headers={"X-CSRFToken": "a" * 32}).status_code == 201


def test_an_address_that_does_not_exist_is_a_problem_and_not_a_page() -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = Api(factories.make_operator(f"o{method}")).client.generic(method, f"{BASE}/job/1")
        assert "/api/v1/job/1" in problem(answer, 404, "not_found")["detail"]
    for address in ("/api/", "/api/v1/", "/api/v2/jobs"):
        assert address in problem(APIClient().get(address), 404, "not_found")["detail"]


def test_a_foreign_host_name_is_a_problem_that_names_the_setting() -> None:
    answer = APIClient().get(f"{BASE}/jobs", headers={"Host": "elsewhere.example"})
    assert "DJANGO_ALLOWED_HOSTS" in problem(answer, 400, "host_not_allowed")["detail"]
    page = APIClient().get("/login/", headers={"Host": "elsewhere.example"})
    assert (page.status_code, page["Content-Type"]) == (400, "text/html; charset=utf-8")


def test_a_method_that_an_address_does_not_have_is_refused() -> None:
    api = Api(factories.make_operator())
    for method, path in (("PUT", f"/jobs/{SOME_ID}"), ("DELETE", "/jobs"), ("GET", "/failures/retry")):
        problem(api.client.generic(method, BASE + path), 405, "method_not_allowed")


def test_options_are_not_offered_and_head_is_get_without_a_body() -> None:
    api = Api(factories.make_operator())
    for _, path, _ in CALLS:
        assert api.client.options(BASE + path.replace("{id}", SOME_ID)).status_code == 405
    answer = api.client.head(f"{BASE}/jobs")
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_trailing_slash_makes_no_difference() -> None:
    api = Api(factories.make_operator())
    assert api.get("/jobs/").json() == api.get("/jobs").json()
    assert api.post("/jobs/", {"name": "x", "worker": "w", "job_type": "t"}).status_code == 201
