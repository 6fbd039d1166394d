"""The job type http_request: one HTTP call, judged by its status.

Registered by `tickwork.builtin`. Decides what a status, a timeout or a broken connection means for the next
attempt; how the request is sent is told in `http_exchange.py`. Never logs headers, bodies or queries.
"""

import asyncio
import html
import re
import ssl
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal

import httpx
from msgspec import Meta

from tickwork import JobContext
from tickwork.builtin.addresses import AddressGuard
from tickwork.builtin.http_exchange import Answer, exchange, first_request, shown
from tickwork.builtin.text import MULTILINE
from tickwork.errors import JobError, PermanentError, RetryableError

PERMANENT = frozenset({400, 401, 403, 404, 422})
RETRYABLE = frozenset({408, 429, 502, 503, 504})


async def http_request(
    ctx: JobContext,
    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=8192,
            description="The http:// or https:// address to call",
            extra_json_schema={"format": "uri"},
        ),
    ],
    method: Annotated[
        Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"], Meta(description="HTTP method")
    ] = "GET",
    headers: Annotated[dict[str, str] | None, Meta(description="Request headers by name")] = None,
    body: Annotated[
        str | dict[str, Any] | list[Any] | None,
        Meta(
            description="Request body: text is sent as it is, an object or a list as JSON", extra_json_schema=MULTILINE
        ),
    ] = None,
    expected_status: Annotated[
        list[int] | None, Meta(description="Status codes that count as success; without it: 200 to 399")
    ] = None,
    timeout_seconds: Annotated[
        float, Meta(gt=0, le=300, description="Longest time for the whole call, redirects included")
    ] = 30.0,
    follow_redirects: Annotated[bool, Meta(description="Follow up to 10 redirects")] = True,
) -> dict[str, Any]:
    """Call an HTTP address and keep the answer."""
    request = first_request(
        method, url, headers or {}, body, idempotency_key=ctx.idempotency_key, timeout_seconds=timeout_seconds
    )
    target = f"{method} {shown(request.url)}"
    ctx.log.info("request", method=method, url=shown(request.url))
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = await exchange(
                request, guard=AddressGuard.from_settings(), follow=follow_redirects, note=ctx.log.info
            )
    except (TimeoutError, httpx.TimeoutException) as error:
        raise RetryableError(f"{target}: no complete answer within {timeout_seconds:g} s") from error
    except httpx.LocalProtocolError:
        # The error's own text, also as a cause in the traceback, would repeat a header that may be a secret.
        raise PermanentError(f"{target}: a header holds characters that HTTP does not allow there") from None
    except httpx.TransportError as error:
        kind = JobError if _is_certificate_error(error) else RetryableError
        raise kind(f"{target} failed: {error or type(error).__name__}") from error
    elapsed_ms = round((time.monotonic() - started) * 1000)
    ctx.log.info("response", status=answer.status, elapsed_ms=elapsed_ms)
    if not (answer.status in expected_status if expected_status else 200 <= answer.status < 400):
        raise _status_error(method, answer)
    return {
        "status": answer.status,
        "url": shown(answer.url),
        "headers": answer.headers,
        "body": answer.body,
        "body_encoding": answer.encoding,
        "body_truncated": answer.truncated,
        "elapsed_ms": elapsed_ms,
    }


def _status_error(method: str, answer: Answer) -> JobError:
    """The error for an unexpected status: what the server said, and whether another attempt makes sense."""
    message = f"{method} {shown(answer.url)} answered {answer.status} {answer.reason}".rstrip()
    if excerpt := _excerpt(answer):
        message += f": {excerpt}"
    if answer.status in PERMANENT:
        return PermanentError(message)
    if answer.status in RETRYABLE:
        return RetryableError(message, after=retry_after_seconds(answer.headers.get("retry-after", "")))
    return JobError(message)


def _excerpt(answer: Answer) -> str:
    """The beginning of what the server said in one line; of a web page only its title."""
    if answer.encoding != "text":
        return ""
    text = answer.body
    if "html" in answer.headers.get("content-type", ""):
        title = re.search(r"<title[^>]*>([^<]*)", text, re.IGNORECASE)
        text = html.unescape(title[1]) if title else ""
    return " ".join(text[:500].split())


def retry_after_seconds(value: str, *, now: datetime | None = None) -> float | None:
    """Seconds of a Retry-After header, which holds seconds or a date; None when it holds neither."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:10])
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _is_certificate_error(error: BaseException | None) -> bool:
    """A server whose certificate is refused does not change within a retry, but may within days: no opinion."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
