"""Input that cannot be read: every change answers it with a problem of the 4xx kind and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import definitions
from jobs.models import Job
from occurrences.states import Status
from tests import factories
from tests.db.api_client import BASE, Api, problem
from tests.db.test_api_access import CHANGES

NEW_JOB = b'{"name": "n", "worker": "w", "job_type": "t", "data": %s}'

UNREADABLE = {
    "nothing that is JSON": b"{broken",
    "empty text": b" ",
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "NaN": b'{"name": NaN}',
    "a lone surrogate": rb'{"name": "\ud800"}',
    "a lone second surrogate": rb'{"name": "x\udc00y"}',
    "a number out of range": b'{"name": 1e400}',
    "an endless number": b'{"name": ' + b"9" * 5000 + b"}",
    "too deep": b"[" * 100_000,
    "too deep for us": b'{"a":' * 70 + b"1" + b"}" * 70,
    "a raw control character": b'{"name": "a\x00b"}',
    "two values": b"{}{}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a list": b"[]",
    "a text": b'"x"',
    "a number": b"1",
    "null": b"null",
}


@pytest.fixture
def api(db: None) -> Api:
    """The operator at the API."""
    return Api(factories.make_operator())


@pytest.fixture
def paths(db: None) -> dict[str, str]:
    """Ids that exist, by what the address begins with."""
    job = factories.make_job()
    failure = factories.make_failure(factories.make_occurrence(job, status=Status.FAILED))
    return {"jobs": str(job.pk), "occurrences": str(failure.occurrence_id), "failures": str(failure.pk)}


def rows() -> list[Any]:
    """The whole content of the tables that the API changes."""
    with connection.cursor() as cursor:
        content: list[Any] = []
        for table in (
            "jobs_job",
            "jobs_jobversion",
            "occurrences_occurrence",
            "occurrences_failedoccurrence",
            "occurrences_outboxmessage",
        ):
            cursor.execute(f"SELECT * FROM {table} ORDER BY 1")
            content += cursor.fetchall()
    return content


@pytest.mark.parametrize(("method", "path"), [call for call in CHANGES if call[0] != "DELETE"])
def test_a_body_that_cannot_be_read_is_refused(api: Api, paths: dict[str, str], method: str, path: str) -> None:
    before = rows()
    target = path.replace("{id}", paths.get(path.split("/")[1], ""))
    for what, body in UNREADABLE.items():
        assert problem(api.send(method, target, raw=body), 400), what
        assert problem(api.send(method, target, raw=body, key=what), 400), what
    assert rows() == before


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (rb'{"a": "x\u0000y"}', "data.a"),
        (rb'{"a": [1, {"b": "\u0000"}]}', "data.a.1.b"),
        (rb'{"a\u0000": 1}', "data"),
        (b'{"a": 18446744073709551616}', "data.a"),
        (b'{"a": 1e20}', "data.a"),
        (b'{"a": [-9223372036854775809]}', "data.a.0"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(api: Api, data: bytes, place: str) -> None:
    assert list(problem(api.send("POST", "/jobs", raw=NEW_JOB % data), 400, "invalid")["errors"]) == [place]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "data",
    [
        rb'{"a": "\ud83d\ude00"}',
        b'{"a": 18446744073709551615, "b": -9223372036854775808}',
        b'{"a": 1.8e19, "b": 1e-400}',
        '{"ü": "\u2028"}'.encode(),
    ],
)
def test_what_is_odd_but_can_be_kept_is_kept(api: Api, data: bytes) -> None:
    response = api.send("POST", "/jobs", raw=NEW_JOB % data)
    assert response.status_code == 201, response.content
    assert response.json()["data"] == Job.objects.get().data


def test_a_text_that_only_looks_like_a_nul_is_kept(api: Api) -> None:
    response = api.send("POST", "/jobs", raw=NEW_JOB % rb'{"a": "x \\u0000 y"}')
    assert response.status_code == 201, response.content
    assert Job.objects.get().data == {"a": r"x \u0000 y"}


def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=1000):
        big = NEW_JOB % (b'{"a": "' + b"x" * 1000 + b'"}')
        problem(api.send("POST", "/jobs", raw=big), 413, "too_large")
        problem(api.send("POST", "/jobs", raw=big, key="k"), 413, "too_large")
        problem(api.raw("POST", "/jobs", b"a=" + b"x" * 2000, "application/x-www-form-urlencoded"), 415)
    assert not Job.objects.exists()


def test_job_data_that_are_too_large_are_refused_by_field(api: Api) -> None:
    big = NEW_JOB % (b'{"a": "' + b"x" * 300_000 + b'"}')
    assert list(problem(api.send("POST", "/jobs", raw=big), 400, "invalid")["errors"]) == ["data"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_a_body_of_another_kind_is_refused(api: Api, kind: str) -> None:
    problem(api.raw("POST", "/jobs", b'{"name": "x"}', kind), 415, "unsupported_media_type")


def test_an_answer_of_another_kind_is_not_given(api: Api) -> None:
    problem(api.client.get(f"{BASE}/jobs", headers={"Accept": "text/html"}), 406, "not_acceptable")


def test_a_body_whose_length_is_not_told_is_not_taken_for_an_empty_one(api: Api) -> None:
    job = factories.make_job(data={"a": 1})
    answer = api.client.generic(
        "POST",
        f"{BASE}/jobs/{job.pk}/trigger",
        headers={"Transfer-Encoding": "chunked"},
        content_type="application/json",
    )
    problem(answer, 411, "length_required")


def test_what_nobody_foresaw_is_a_problem_that_tells_nothing_of_the_inside(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(definitions, "create_job", break_down)
    api.client.raise_request_exception = False
    for key in (None, "k"):
        answer = api.send("POST", "/jobs", {"name": "x", "worker": "w", "job_type": "t"}, key=key)
        assert "secret" not in str(problem(answer, 500, "internal_error"))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *definitions.DEFINITION_FIELDS,
    "is_active",
    "id",
    "items",
    "ids",
    "action",
    "note",
    "count",
    "policy",
    "reason",
]


@settings(max_examples=150)
@given(body=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4), call=st.sampled_from(CHANGES))
def test_no_body_whatever_its_values_breaks_the_server(
    api: Api, paths: dict[str, str], body: dict[str, Any], call: tuple[str, str]
) -> None:
    method, path = call
    answer = api.send(method, path.replace("{id}", paths.get(path.split("/")[1], "")), body)
    assert answer.status_code < 500, answer.content
    valid = {"name": "x", "worker": "w", "job_type": "t"}
    assert api.post("/jobs", {**valid, **body}).status_code in (201, 400)
