"""http_request against a real web server."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
import traceback
from datetime import UTC, datetime

import pytest

from tests.unit.builtin.running import OCCURRENCE, Context, run
from tests.unit.builtin.webserver import Answer, WebServer
from tests.waiting import eventually
from tickwork.builtin.http import http_request, retry_after_seconds
from tickwork.errors import JobError, PermanentError, RetryableError


async def test_the_result_tells_status_headers_and_body(web: WebServer) -> None:
    web.answers["/"] = Answer(201, {"content-type": "application/json", "etag": "x1", "set-cookie": "a=b"}, b'{"a": 1}')
    result = await run(http_request, url=web.url())
    assert (result["status"], result["body"], result["body_encoding"]) == (201, '{"a": 1}', "text")
    assert result["headers"]["etag"] == "x1"
    assert "set-cookie" not in result["headers"]
    assert result["body_truncated"] is False
    assert result["elapsed_ms"] >= 0


async def test_a_json_body_is_sent_as_json_and_a_text_body_as_it_is(web: WebServer) -> None:
    web.answers["/"] = Answer()
    await run(http_request, url=web.url(), method="POST", body={"a": [1, None]})
    await run(http_request, url=web.url(), method="PUT", body="a=b", headers={"Content-Type": "text/x-form"})
    assert json.loads(web.asked[0].body) == {"a": [1, None]}
    assert web.asked[0].headers["content-type"] == "application/json"
    assert (web.asked[1].method, web.asked[1].body) == ("PUT", b"a=b")
    assert web.asked[1].headers["content-type"] == "text/x-form"


async def test_a_call_that_changes_something_carries_the_occurrences_key_and_a_reading_one_does_not(
    web: WebServer,
) -> None:
    web.answers["/"] = Answer()
    await run(http_request, url=web.url(), method="POST")
    await run(http_request, url=web.url(), method="POST", headers={"idempotency-key": "own"})
    await run(http_request, url=web.url())
    keys = [asked.headers["idempotency-key"] for asked in web.asked]
    assert keys == [OCCURRENCE, "own", None]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_status_that_blames_the_request_is_permanent(web: WebServer, status: int) -> None:
    web.answers["/"] = Answer(status, {}, b"this is why")
    with pytest.raises(PermanentError, match=f"answered {status} .*this is why"):
        await run(http_request, url=web.url())


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
async def test_a_passing_status_is_retryable_and_honours_retry_after(web: WebServer, status: int) -> None:
    web.answers["/"] = Answer(status, {"retry-after": "17"})
    with pytest.raises(RetryableError) as caught:
        await run(http_request, url=web.url())
    assert caught.value.after == 17


@pytest.mark.parametrize("status", [409, 418, 500, 501])
async def test_any_other_unexpected_status_is_a_failure_without_an_opinion(web: WebServer, status: int) -> None:
    web.answers["/"] = Answer(status)
    with pytest.raises(JobError) as caught:
        await run(http_request, url=web.url())
    assert caught.value.retryable is None


async def test_of_a_web_page_the_error_quotes_only_the_title(web: WebServer) -> None:
    page = b"<!doctype html><style>p {}</style><title>Gone &amp;\n lost</title><p>Much more</p>"
    web.answers["/page"] = Answer(404, {"content-type": "text/html; charset=utf-8"}, page)
    with pytest.raises(PermanentError, match=r"answered 404 Not Found: Gone & lost$"):
        await run(http_request, url=web.url("/page"))
    web.answers["/page"] = Answer(404, {"content-type": "text/html"}, b"<p>No title</p>")
    with pytest.raises(PermanentError, match=r"answered 404 Not Found$"):
        await run(http_request, url=web.url("/page"))


async def test_expected_status_replaces_the_default(web: WebServer) -> None:
    web.answers["/gone"] = Answer(404)
    web.answers["/"] = Answer(200)
    assert (await run(http_request, url=web.url("/gone"), expected_status=[404, 410]))["status"] == 404
    with pytest.raises(JobError, match="answered 200"):
        await run(http_request, url=web.url(), expected_status=[404, 410])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("", None),
        ("-5", None),
        ("soon", None),
        ("1e9", None),
        ("9" * 400, 9_999_999_999.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after_seconds(value, now=datetime(2026, 10, 21, 7, 28, tzinfo=UTC)) == seconds


# ── redirects ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_redirect_is_followed_and_a_post_becomes_a_get_after_303(web: WebServer) -> None:
    web.answers["/"] = Answer(303, {"location": "/done"})
    web.answers["/done"] = Answer(200, {}, b"done")
    result = await run(http_request, url=web.url(), method="POST", body={"a": 1}, headers={"x-token": "t"})
    assert (result["body"], result["url"]) == ("done", web.url("/done"))
    assert [(asked.method, asked.body) for asked in web.asked] == [("POST", b'{"a":1}'), ("GET", b"")]
    assert web.asked[1].headers["x-token"] == "t"
    assert web.asked[1].headers["content-type"] is None


async def test_method_and_body_survive_307(web: WebServer) -> None:
    web.answers["/"] = Answer(307, {"location": "/there"})
    web.answers["/there"] = Answer()
    await run(http_request, url=web.url(), method="PUT", body="text")
    assert (web.asked[1].method, web.asked[1].body) == ("PUT", b"text")


async def test_secrets_do_not_follow_a_redirect_to_another_origin(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WebServer() as stranger:
        monkeypatch.setenv("TICKWORK_HTTP_ALLOWED_HOSTS", f"{web.host_and_port},{stranger.host_and_port}")
        web.answers["/"] = Answer(302, {"location": stranger.url("/")})
        stranger.answers["/"] = Answer()
        await run(
            http_request,
            url=web.url().replace("http://", "http://user:pass@"),
            headers={"X-Api-Key": "secret", "Cookie": "s=1", "Accept": "text/plain"},
        )
    first, second = web.asked[0].headers, stranger.asked[0].headers
    assert first["authorization"] == "Basic " + base64.b64encode(b"user:pass").decode()
    assert first["x-api-key"] == "secret"
    assert (second["authorization"], second["x-api-key"], second["cookie"]) == (None, None, None)
    assert second["accept"] == "text/plain"
    assert second["host"] == stranger.host_and_port


async def test_a_redirect_to_a_private_address_is_refused(web: WebServer) -> None:
    with WebServer() as inside:
        inside.answers["/"] = Answer(200, {}, b"inside")
        web.answers["/"] = Answer(302, {"location": inside.url("/")})
        with pytest.raises(PermanentError, match="not a public address"):
            await run(http_request, url=web.url())
    assert inside.asked == []


async def test_endless_redirects_and_other_schemes_are_refused(web: WebServer) -> None:
    web.answers["/round"] = Answer(302, {"location": "/round"})
    web.answers["/file"] = Answer(302, {"location": "file:///etc/passwd"})
    with pytest.raises(PermanentError, match="more than 10 redirects"):
        await run(http_request, url=web.url("/round"))
    with pytest.raises(PermanentError, match="only http:// and https://"):
        await run(http_request, url=web.url("/file"))


async def test_a_redirect_that_is_not_followed_is_the_answer(web: WebServer) -> None:
    web.answers["/"] = Answer(302, {"location": "/there"})
    result = await run(http_request, url=web.url(), follow_redirects=False)
    assert (result["status"], result["headers"]["location"]) == (302, "/there")


# ── the guard, the connection ──────────────────────────────────────────────────────────────────────


async def test_a_private_address_is_refused_unless_the_owner_allows_it(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.answers["/"] = Answer()
    monkeypatch.delenv("TICKWORK_HTTP_ALLOWED_HOSTS")
    with pytest.raises(PermanentError, match="TICKWORK_HTTP_ALLOWED_HOSTS"):
        await run(http_request, url=web.url())
    assert web.asked == []
    monkeypatch.setenv("TICKWORK_HTTP_ALLOW_PRIVATE", "true")
    assert (await run(http_request, url=web.url()))["status"] == 200


async def test_a_setting_that_is_neither_true_nor_false_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKWORK_HTTP_ALLOW_PRIVATE", "perhaps")
    with pytest.raises(PermanentError, match="TICKWORK_HTTP_ALLOW_PRIVATE must be true or false"):
        await run(http_request, url="http://127.0.0.1:9/")


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "file:///etc/passwd", "example.org", "http://", "http://[::1", "x"]
)
async def test_a_url_that_cannot_be_called_is_permanent(url: str) -> None:
    with pytest.raises(PermanentError):
        await run(http_request, url=url)


@pytest.mark.parametrize("url", ["http://ann:hid/den@h", "ann:hidden@h", "http://ann:hidden@h:x/"])
async def test_a_refused_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(PermanentError) as caught:
        await run(http_request, url=url)
    assert "hid" not in str(caught.value)


async def test_headers_that_break_out_of_their_line_are_permanent_and_not_repeated(web: WebServer) -> None:
    web.answers["/"] = Answer()
    for value in ("secret\r\nx-evil: 1", "secret\0", "s€cret"):
        with pytest.raises(PermanentError, match="characters") as caught:
            await run(http_request, url=web.url(), headers={"x-a": value})
        assert "cret" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(PermanentError, match="content-length cannot be given"):
        await run(http_request, url=web.url(), headers={"Content-Length": "5"})
    assert web.asked == []


async def test_a_server_that_does_not_listen_or_answer_in_time_is_retryable(web: WebServer) -> None:
    web.stalled.add("/slow")
    with pytest.raises(RetryableError, match=r"no complete answer within 0\.2 s"):
        await run(http_request, url=web.url("/slow"), timeout_seconds=0.2)
    with WebServer() as gone:
        url = gone.url()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TICKWORK_HTTP_ALLOW_PRIVATE", "true")
        with pytest.raises(RetryableError, match="accepts connections"):
            await run(http_request, url=url)


async def test_a_cancelled_call_ends_at_once(web: WebServer) -> None:
    web.stalled.add("/slow")
    call = asyncio.create_task(run(http_request, url=web.url("/slow"), timeout_seconds=60))
    await asyncio.to_thread(eventually, web.stalling.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_certificate_that_nobody_trusts_is_refused(
    monkeypatch: pytest.MonkeyPatch, self_signed: ssl.SSLContext
) -> None:
    monkeypatch.setenv("TICKWORK_HTTP_ALLOW_PRIVATE", "true")
    with WebServer(tls=self_signed) as server:
        server.answers["/"] = Answer()
        with pytest.raises(JobError, match="certificate verify failed") as caught:
            await run(http_request, url=server.url("/", scheme="https"))
    assert caught.value.retryable is None
    assert server.asked == []


# ── bodies, logs ───────────────────────────────────────────────────────────────────────────────────


async def test_a_large_body_is_cut_and_says_so(web: WebServer) -> None:
    web.answers["/"] = Answer(200, {"content-type": "text/plain"}, "é".encode() * 500_000)
    result = await run(http_request, url=web.url())
    assert result["body_truncated"] is True
    assert set(result["body"]) == {"é"}
    assert 60_000 < len(result["body"].encode()) <= 65_536


async def test_a_compressed_body_is_not_asked_for_and_cannot_explode(web: WebServer) -> None:
    web.answers["/"] = Answer(200, {"content-encoding": "gzip"}, gzip.compress(b"a" * 10_000_000))
    result = await run(http_request, url=web.url())
    assert web.asked[0].headers["accept-encoding"] == "identity"
    assert set(result["body"]) == {"a"}
    assert len(result["body"]) < 65_536
    assert result["body_truncated"] is True


@pytest.mark.parametrize("content_type", ["image/png", "text/plain; charset=zlib", "text/plain; charset=no-such"])
async def test_a_body_that_is_not_text_is_kept_as_base64(web: WebServer, content_type: str) -> None:
    web.answers["/"] = Answer(200, {"content-type": content_type}, b"\x89PNG\x00\xff")
    result = await run(http_request, url=web.url())
    assert result["body_encoding"] == "base64"
    assert base64.b64decode(result["body"]) == b"\x89PNG\x00\xff"


async def test_the_declared_charset_is_used(web: WebServer) -> None:
    web.answers["/"] = Answer(200, {"content-type": "text/plain; charset=iso-8859-1"}, "Zürich".encode("latin-1"))
    assert (await run(http_request, url=web.url()))["body"] == "Zürich"


async def test_neither_headers_nor_passwords_nor_queries_reach_logs_and_errors(
    web: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="httpx")
    web.answers["/a"] = Answer(302, {"location": "/b?token=hidden3"})
    web.answers["/b"] = Answer(500)
    ctx = Context()
    url = web.url("/a?token=hidden1").replace("http://", "http://user:hidden2@")
    with pytest.raises(JobError) as caught:
        await run(http_request, ctx=ctx, url=url, headers={"Authorization": "Bearer hidden4"})
    said = f"{ctx.said.lines}{caught.value}{caplog.text}"
    assert "hidden" not in said
    assert "/b" in said
