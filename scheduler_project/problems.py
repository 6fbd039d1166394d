"""How the API's errors look: problem details (RFC 9457). Apart from `api`, which REST framework's views import."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler

from jobs.errors import OperationRefused

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
BODY = "body"  # where a message is about the whole input; REST framework is told so in the settings
_NAMED_IN_DETAIL = 3
_UNSURE = "Repeat a change only with the same Idempotency-Key, or after a look whether it was made."


def problem_details(error: Exception, context: dict[str, Any]) -> Response:
    """Turn an error into `application/problem+json`: type, title, status, code, detail, `errors` by field.

    What nobody foresaw is logged and answered with 500, a database that does not answer with 503; neither tells
    what happened inside.
    """
    if isinstance(error, OperationRefused):
        problem = _problem(error.http_status, error.code, _in_words(str(error), error.fields), errors=error.fields)
        if seconds := getattr(error, "retry_after_seconds", None):
            problem["Retry-After"] = str(seconds)
        return problem
    if isinstance(error, OperationalError | InterfaceError):
        log.exception("api.database_unavailable")
        problem = _problem(503, "unavailable", f"The database does not answer. {_UNSURE}")
        problem["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return problem
    error = _in_framework_terms(error)
    answer = exception_handler(error, context)
    if answer is None or not isinstance(error, exceptions.APIException):
        return _unforeseen(error, context)
    if isinstance(error, exceptions.ValidationError):
        errors = _by_path(answer.data)
        problem = _problem(answer.status_code, "invalid", _in_words("Not valid.", errors), errors=errors)
    else:
        codes = error.get_codes()
        problem = _problem(answer.status_code, codes if isinstance(codes, str) else "error", str(error.detail))
    for name in ("WWW-Authenticate", "Retry-After"):
        if name in answer.headers:
            problem[name] = answer.headers[name]
    return problem


def _in_framework_terms(error: Exception) -> Exception:
    if isinstance(error, DjangoValidationError):
        return exceptions.ValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages)
    if isinstance(error, Http404):
        return exceptions.NotFound()
    if isinstance(error, PermissionDenied):
        return exceptions.PermissionDenied()
    if isinstance(error, RequestDataTooBig):
        too_large = exceptions.APIException("The body is larger than the server reads.", code="too_large")
        too_large.status_code = 413
        return too_large
    if isinstance(error, SuspiciousOperation):
        return exceptions.ParseError("The request cannot be read.")
    return error


def _unforeseen(error: Exception, context: dict[str, Any]) -> Response:
    request = getattr(context.get("request"), "_request", None)
    log.error("api.unforeseen_error", exc_info=error)
    got_request_exception.send(sender=None, request=request)
    return _problem(500, "internal_error", f"Something went wrong inside; it was logged. {_UNSURE}")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """What Django refused before any view: below `/api/` a problem, elsewhere a page."""
    if not request.path.startswith("/api/"):
        return defaults.bad_request(request, exception)
    if isinstance(exception, DisallowedHost):
        detail = "This server does not answer to the host name of the request; DJANGO_ALLOWED_HOSTS has its names."
        problem = _problem(400, "host_not_allowed", detail)
    else:
        problem = _problem(400, exceptions.ParseError.default_code, "The request cannot be read.")
    return JsonResponse(problem.data, status=400, content_type=problem.content_type)


def _by_path(errors: Any, path: str = "") -> dict[str, list[str]]:
    """Nested messages by their place: `policy.timeout_seconds`, `items.3`; `body` is the body as a whole."""
    if isinstance(errors, list) and not any(isinstance(error, dict | list) for error in errors):
        return {path or BODY: [str(error) for error in errors]}
    found: dict[str, list[str]] = {}
    for name, inner in errors.items() if isinstance(errors, dict) else enumerate(errors):
        place = path if name == BODY else f"{path}.{name}" if path else str(name)
        for at, messages in _by_path(inner if isinstance(inner, dict | list) else [inner], place).items():
            found.setdefault(at, []).extend(messages)
    return found


def _in_words(sentence: str, errors: Mapping[str, list[str]]) -> str:
    """The sentence and the first few messages in one line, for people who look at nothing else."""
    parts = [f"{name}: {messages[0]}" for name, messages in errors.items()]
    more = len(parts) - _NAMED_IN_DETAIL
    return " ".join([sentence, *parts[:_NAMED_IN_DETAIL], *([f"And {more} more."] if more > 0 else [])])


def _problem(http_status: int, code: str, detail: str, *, errors: Any = None) -> Response:
    title = HTTPStatus(http_status).phrase
    body = {
        "type": f"urn:tickwork:problem:{code}",
        "title": title,
        "status": http_status,
        "code": code,
        "detail": detail,
    }
    if errors:
        body["errors"] = errors
    return Response(body, status=http_status, content_type="application/problem+json")
