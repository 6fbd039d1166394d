"""Sends the request of http_request and reads the answer, hop by hop.

Called by `http.py`. Uses httpx for URLs, messages and errors but not its client: the guard of `addresses.py`
sees every connection, secrets do not follow a redirect to another origin, bodies are bounded, and no client
logs URLs. Never skips TLS verification, and never uses a proxy (the guard would judge the proxy only).
"""

import base64
import codecs
import ssl
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import httpcore
import httpx
import msgspec

from tickwork.builtin.addresses import AddressGuard, GuardedBackend
from tickwork.builtin.text import LIMIT, fit, has_control_characters
from tickwork.errors import PermanentError

Body = str | dict[str, Any] | list[Any] | None

MAX_REDIRECTS = 10

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_KEPT_HEADERS = (
    "content-type", "content-length", "location", "etag", "last-modified", "date", "cache-control", "retry-after",
    "x-request-id",
)  # fmt: skip
_FRAMING_HEADERS = {"content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"}
# Made anew for each hop.
_HOP_HEADERS = {"host", "content-length", "transfer-encoding"}
# What a redirect to another origin may take along: everything else may be a secret.
_HARMLESS_HEADERS = {"accept", "accept-encoding", "accept-language", "content-type", "idempotency-key", "user-agent"}
# Codecs of text; others that Python knows by name decompress or are slow on hostile input.
_TEXT_CODECS = ("utf", "ascii", "iso8859", "cp", "shift_jis", "euc", "gb", "big5", "koi8", "mac")


class Answer(msgspec.Struct, frozen=True):
    """The last response: its status line, some headers and the bounded body (`encoding` is text or base64)."""

    url: httpx.URL
    status: int
    reason: str
    headers: dict[str, str]
    body: str
    encoding: Literal["text", "base64"]
    truncated: bool


async def exchange(request: httpx.Request, *, guard: AddressGuard, follow: bool, note: Callable[..., Any]) -> Answer:
    """Send the request, follow redirects when asked, and read the answer.

    `note` is called with an event and fields for each redirect. Raises httpx.TransportError for what goes
    wrong on the way, and PermanentError for an address or a redirect that is refused.
    """
    async with _GuardedTransport(guard) as transport:
        for _ in range(MAX_REDIRECTS + 1):
            response = await transport.handle_async_request(request)
            try:
                if not (follow and response.has_redirect_location):
                    return await _read(request.url, response)
            finally:
                await response.aclose()
            request = _redirected(request, response)
            note("redirect", status=response.status_code, url=shown(request.url))
    raise PermanentError(f"more than {MAX_REDIRECTS} redirects, the last one to {shown(request.url)}")


def shown(url: httpx.URL) -> str:
    """The URL as it may be logged: without user, password, query and fragment."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


# ── the request ────────────────────────────────────────────────────────────────────────────────────


def first_request(
    method: str, url: str, headers: Mapping[str, str], body: Body, *, idempotency_key: str, timeout_seconds: float
) -> httpx.Request:
    """The request as the job asks for it, checked. Raises PermanentError for what can never be sent."""
    try:
        target = httpx.URL(url)
        wanted = httpx.Headers(headers)
        if refused := _FRAMING_HEADERS.intersection(wanted):
            raise PermanentError(f"headers: {', '.join(sorted(refused))} cannot be given, the request's form decides")
        wanted.setdefault("user-agent", "tickwork")
        # A compressed answer would make the size limit a limit of something else.
        wanted.setdefault("accept-encoding", "identity")
        if method not in _SAFE_METHODS:
            wanted.setdefault("idempotency-key", idempotency_key)
        if target.userinfo:
            user_and_password = f"{target.username}:{target.password}".encode()
            wanted.setdefault("authorization", "Basic " + base64.b64encode(user_and_password).decode("ascii"))
        content: bytes | None = None
        if isinstance(body, str):
            content = body.encode()
        elif body is not None:
            content = msgspec.json.encode(body)
            wanted.setdefault("content-type", "application/json")
        return _request(method, target, wanted, content, httpx.Timeout(timeout_seconds).as_dict())
    except UnicodeError:
        # The error's own text would repeat the value, which may be a secret.
        raise PermanentError("url, headers or body hold characters that HTTP does not allow there") from None
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        # Behind the colon follows the value, which may be part of a password.
        raise PermanentError(f"url or headers are not valid: {str(error).partition(':')[0]}") from None


def _request(
    method: str, url: httpx.URL, headers: httpx.Headers, content: bytes | None, timeout: dict[str, float | None]
) -> httpx.Request:
    if url.scheme not in ("http", "https") or not url.host:
        raise PermanentError(f"only http:// and https:// addresses with a host can be called, not {url.scheme}:…")
    bare = url.copy_with(username=None, password=None, fragment=None)
    return httpx.Request(method, bare, headers=headers, content=content, extensions={"timeout": timeout})


def _redirected(request: httpx.Request, response: httpx.Response) -> httpx.Request:
    """The request that a redirect asks for, with the usual change of method and without secrets for strangers."""
    try:
        target = request.url.join(response.headers["location"])
    except httpx.InvalidURL as error:
        raise PermanentError(f"{shown(request.url)} redirects to an address that is not valid") from error
    method, content = request.method, request.content or None
    dropped = set(_HOP_HEADERS)
    if (response.status_code == 303 and method != "HEAD") or (response.status_code in (301, 302) and method == "POST"):
        method, content = "GET", None
        dropped.add("content-type")
    same_origin = _origin(target) == _origin(request.url)
    headers = httpx.Headers(
        {
            name: value
            for name, value in request.headers.items()
            if name not in dropped and (same_origin or name in _HARMLESS_HEADERS)
        }
    )
    return _request(method, target, headers, content, request.extensions["timeout"])


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


# ── the connection ─────────────────────────────────────────────────────────────────────────────────


class _GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport on a connection pool whose network is guarded."""

    def __init__(self, guard: AddressGuard) -> None:
        super().__init__(verify=_tls(), trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(ssl_context=_tls(), network_backend=GuardedBackend(guard))


@cache
def _tls() -> ssl.SSLContext:
    """Verifying TLS, made once because loading the certificates takes long; SSL_CERT_FILE names a company's own."""
    return httpx.create_ssl_context()


# ── the answer ─────────────────────────────────────────────────────────────────────────────────────


async def _read(url: httpx.URL, response: httpx.Response) -> Answer:
    """Read at most LIMIT bytes of the body as they came, and make an answer of them."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    raw = bytearray()
    async for chunk in response.stream:
        raw += chunk
        if len(raw) > LIMIT:
            break
    body, encoding, cut = _presentable(response, bytes(raw[:LIMIT]), len(raw) > LIMIT)
    return Answer(
        url=url,
        status=response.status_code,
        reason=response.reason_phrase,
        headers={name: response.headers[name][:2000] for name in _KEPT_HEADERS if name in response.headers},
        body=body,
        encoding=encoding,
        truncated=cut,
    )


def _presentable(response: httpx.Response, raw: bytes, cut: bool) -> tuple[str, Literal["text", "base64"], bool]:
    """The body as text where it is text, else as base64, and whether it was cut to fit."""
    if response.headers.get("content-encoding", "").strip().lower() in ("gzip", "x-gzip"):
        decompressor = zlib.decompressobj(wbits=31)
        try:
            raw = decompressor.decompress(raw, LIMIT)
        except zlib.error:
            return base64.b64encode(raw).decode("ascii"), "base64", cut
        cut = cut or bool(decompressor.unconsumed_tail)
    try:
        text = codecs.getincrementaldecoder(_charset(response))().decode(raw, final=not cut)
    except ValueError:
        text = None
    if text is None or has_control_characters(text):
        return base64.b64encode(raw).decode("ascii"), "base64", cut
    text, shortened = fit(text, keep="head")
    return text, "text", cut or shortened


def _charset(response: httpx.Response) -> str:
    """The declared charset, if it is one of text; UTF-8 otherwise."""
    try:
        name = codecs.lookup(response.charset_encoding or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if name.startswith(_TEXT_CODECS) else "utf-8"
