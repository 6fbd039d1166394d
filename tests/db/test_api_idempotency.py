"""Idempotency keys: a repeated request gets the first answer, and its change is made once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.utils import timezone
from rest_framework.response import Response

from jobs import definitions
from jobs.idempotency import KeyInProgress, answer_once, request_hash
from jobs.models import IdempotencyRecord, Job
from occurrences.models import Occurrence
from occurrences.states import Status
from tests import factories
from tests.db.api_client import Api, problem
from tests.db.conftest import SetConf
from tests.db.test_api_access import CHANGES
from tests.waiting import PATIENCE_SECONDS

JOB = {"name": "x", "worker": "w", "job_type": "t"}
KEY = "9b1d1c0e-key"


@pytest.fixture
def api(db: None) -> Api:
    """The operator at the API."""
    return Api(factories.make_operator())


def is_replay(response: Any) -> bool:
    """Whether the answer says that it is a kept one."""
    return bool(response.headers.get("Idempotent-Replayed") == "true")


def test_a_repeat_gets_the_first_answer_and_changes_nothing(api: Api) -> None:
    first = api.post("/jobs", JOB, key=KEY)
    again = api.post("/jobs", JOB, key=KEY)
    assert (first.status_code, is_replay(first)) == (201, False)
    assert (again.status_code, is_replay(again)) == (201, True)
    assert again.json() == first.json()
    assert again["Location"] == first["Location"]
    assert again["Content-Type"] == first["Content-Type"]
    assert Job.objects.count() == 1


BODIES: dict[tuple[str, str], Callable[[dict[str, str]], Any]] = {
    ("POST", "/jobs"): lambda ids: JOB,
    ("PATCH", "/jobs/{id}"): lambda ids: {"description": "new"},
    ("POST", "/jobs/{id}/trigger-batch"): lambda ids: {"items": [{"a": 1}, None]},
    ("POST", "/schedule/preview"): lambda ids: {"cron": "@daily"},
    ("POST", "/failures/resolve"): lambda ids: {"ids": [ids["failures"]], "action": "fixed", "note": "n"},
    ("POST", "/failures/retry"): lambda ids: {"ids": [ids["failures"]]},
    ("POST", "/failures/{id}/resolve"): lambda ids: {"action": "ignored", "note": "n"},
}


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_every_change_is_made_once(api: Api, method: str, path: str) -> None:
    job = factories.make_job()
    status = Status.QUEUED if path.endswith("/cancel") else Status.FAILED
    occurrence = factories.make_occurrence(job, status=status)
    failure = factories.make_failure(occurrence)
    if path.endswith("/retry-now"):
        Occurrence.objects.update(status=0, ended_at=None, next_attempt_at=timezone.now() + timedelta(hours=1))
    if path.endswith("/reopen"):
        api.post(f"/failures/{failure.pk}/resolve", {"action": "fixed", "note": "n"})
    ids = {"jobs": str(job.pk), "occurrences": str(occurrence.pk), "failures": str(failure.pk)}
    target = path.replace("{id}", ids.get(path.split("/")[1], ""))
    body = BODIES[method, path](ids) if (method, path) in BODIES else {}
    first = api.send(method, target, body, key=KEY)
    assert first.status_code in (200, 201, 202, 204), first.content
    again = api.send(method, target, body, key=KEY)
    assert (again.status_code, is_replay(first), is_replay(again)) == (first.status_code, False, True)
    assert again.content == b"" if first.status_code == 204 else again.json() == first.json()


def test_the_same_request_in_other_words_is_the_same(api: Api) -> None:
    api.send("POST", "/jobs", key=KEY, raw=b'{"name":"x","worker":"w","job_type":"t","data":{"a":1,"b":2}}')
    other = api.send(
        "POST", "/jobs/", key=KEY, raw=b'{ "data":{"b":2,"a":1}, "job_type":"t","worker":"w","name":"\\u0078"}'
    )
    assert is_replay(other)


def test_a_key_cannot_be_used_for_another_request(api: Api) -> None:
    job = factories.make_job()
    api.post(f"/jobs/{job.pk}/pause", {}, key=KEY)
    for answer in (
        api.post(f"/jobs/{job.pk}/pause", {"note": "x"}, key=KEY),
        api.post(f"/jobs/{job.pk}/enable", {}, key=KEY),
        api.patch(f"/jobs/{job.pk}", {}, key=KEY),
        api.delete(f"/jobs/{job.pk}", key=KEY),
    ):
        problem(answer, 409, "idempotency_key_reuse")
    job.refresh_from_db()
    assert (job.is_active, job.retired_at) == (False, None)


def test_keys_of_two_people_have_nothing_to_do_with_each_other(api: Api) -> None:
    api.post("/jobs", JOB, key=KEY)
    assert not is_replay(Api(factories.make_operator("otto")).post("/jobs", JOB, key=KEY))
    assert Job.objects.count() == 2


def test_without_a_key_each_request_is_its_own(api: Api) -> None:
    api.post("/jobs", JOB)
    api.post("/jobs", JOB)
    assert Job.objects.count() == 2
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_where_a_key_is_wanted_a_change_without_one_is_refused(
    api: Api, method: str, path: str, set_conf: SetConf
) -> None:
    set_conf(idempotency_required=True)
    target, body = path.replace("{id}", str(uuid4())), {"cron": "@daily"}
    if path == "/schedule/preview":
        assert api.send(method, target, body).status_code == 200
    else:
        problem(api.send(method, target, body), 400, "idempotency_key_missing")
        assert api.send(method, target, body, key=KEY).status_code in (400, 404)
    assert api.get("/jobs").status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\tb", "a\x7f"])
def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    problem(api.post("/jobs", JOB, key=key), 400, "idempotency_key_invalid")
    assert not Job.objects.exists()


def test_a_refusal_is_repeated_as_well(api: Api) -> None:
    wrong = {**JOB, "cron": "99 * * * *"}
    first = problem(api.post("/jobs", wrong, key=KEY), 400, "invalid")
    again = api.post("/jobs", wrong, key=KEY)
    assert problem(again, 400, "invalid") == first
    assert is_replay(again)


def test_who_may_no_longer_do_it_is_not_shown_the_kept_answer(api: Api) -> None:
    assert api.post("/jobs", JOB, key=KEY).status_code == 201
    User.objects.get().user_permissions.clear()
    problem(api.post("/jobs", JOB, key=KEY), 403, "permission_denied")


def test_after_its_time_a_key_begins_anew(api: Api) -> None:
    api.post("/jobs", JOB, key=KEY)
    record = IdempotencyRecord.objects.get()
    assert record.expires_at - record.created_at == timedelta(hours=24)
    IdempotencyRecord.objects.update(expires_at=timezone.now())
    assert not is_replay(api.post("/jobs", JOB, key=KEY))
    assert is_replay(api.post("/jobs", JOB, key=KEY))
    assert Job.objects.count() == 2


def test_what_broke_inside_is_undone_and_may_be_tried_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    create, api.client.raise_request_exception = definitions.create_job, False

    def create_and_break(**fields: Any) -> None:
        create(**fields)
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr(definitions, "create_job", create_and_break)
        problem(api.post("/jobs", JOB, key=KEY), 500, "internal_error")
    assert not Job.objects.exists()
    assert api.post("/jobs", JOB, key=KEY).status_code == 201


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "kept"),
    [(400, True), (404, True), (409, True), (401, False), (403, False), (429, False), (500, False), (503, False)],
)
def test_an_answer_that_is_no_success_undoes_its_change_and_only_a_lasting_one_is_kept(status: int, kept: bool) -> None:
    def work() -> Response:
        factories.make_job()
        return Response({"detail": "no"}, status=status)

    answer_once(work, scope="s", key="k", request_hash="h")
    assert not Job.objects.exists()
    assert IdempotencyRecord.objects.exists() is kept


@pytest.mark.django_db
def test_a_change_whose_answer_cannot_be_kept_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(**fields: Any) -> None:
        raise IntegrityError

    def work() -> Response:
        factories.make_job()
        return Response({}, status=201)

    monkeypatch.setattr(IdempotencyRecord.objects, "create", taken)
    with pytest.raises(KeyInProgress):
        answer_once(work, scope="s", key="k", request_hash="h")
    assert not Job.objects.exists()


BODIES_TO_TELL_APART: tuple[Any, ...] = ({}, {"a": 1}, {"a": "1"}, {"a": None}, [], None)


def test_the_hash_tells_requests_apart_by_method_path_and_body() -> None:
    hashes = {
        request_hash(method, path, body)
        for method in ("POST", "PATCH")
        for path in ("/a", "/a/b")
        for body in BODIES_TO_TELL_APART
    }
    assert len(hashes) == 24
    assert {len(value) for value in hashes} == {64}


# ── at the same time ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def at_once(transactional_db: None) -> None:
    """Several connections to one database; SQLite lets one writer in at a time, so there nothing is at once."""
    if connection.vendor != "postgresql":
        pytest.skip("this happens on PostgreSQL only; the run on PostgreSQL has it")


def in_thread(work: Callable[[], Any], answers: list[Any]) -> threading.Thread:
    """Start `work` in a thread with a connection of its own."""

    def run() -> None:
        try:
            answers.append(work())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.usefixtures("at_once")
def test_a_repeat_while_the_first_is_being_worked_on_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    api, create = Api(factories.make_operator()), definitions.create_job
    is_inside, may_go_on = threading.Event(), threading.Event()

    def create_slowly(**fields: Any) -> Job:
        is_inside.set()
        assert may_go_on.wait(PATIENCE_SECONDS)
        return create(**fields)

    monkeypatch.setattr(definitions, "create_job", create_slowly)
    answers: list[Any] = []
    first = in_thread(lambda: api.post("/jobs", JOB, key=KEY), answers)
    try:
        assert is_inside.wait(PATIENCE_SECONDS)
        early = Api(User.objects.get()).post("/jobs", JOB, key=KEY)
    finally:
        may_go_on.set()
        first.join()
    problem(early, 409, "idempotency_in_progress")
    assert early["Retry-After"] == "1"
    assert [answer.status_code for answer in answers] == [201]
    late = api.post("/jobs", JOB, key=KEY)
    assert is_replay(late)
    assert late.json() == answers[0].json()
    assert Job.objects.count() == 1


@pytest.mark.usefixtures("at_once")
def test_many_at_once_make_the_change_once() -> None:
    job, user = factories.make_job(), factories.make_operator()
    apis, start = [Api(user) for _ in range(8)], threading.Barrier(8)
    answers: list[Any] = []

    def ask(api: Api) -> Any:
        start.wait(PATIENCE_SECONDS)
        return api.post(f"/jobs/{job.pk}/trigger", {"data": {"a": 1}}, key=KEY)

    threads = [in_thread(lambda api=api: ask(api), answers) for api in apis]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert Occurrence.objects.count() == 1
    assert len(answers) == 8
    first = [answer for answer in answers if answer.status_code == 202 and not is_replay(answer)]
    assert len(first) == 1
    for answer in answers:
        if answer.status_code == 409:
            problem(answer, 409, "idempotency_in_progress")
        else:
            assert answer.json() == first[0].json()
