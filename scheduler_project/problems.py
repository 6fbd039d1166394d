"""How the API's errors look: problem details (RFC 9457). Apart from `api`, which REST framework's views import."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler

from jobs.errors import OperationRefused

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
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
        errors = answer.data if isinstance(answer.data, dict) else {"body": answer.data}
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


def _in_words(sentence: str, errors: Mapping[str, Any]) -> str:
    """The sentence and the first few messages in one line, for people who look at nothing else."""
    parts = [f"{name}: {_first(value)}" for name, value in errors.items()]
    more = len(parts) - _NAMED_IN_DETAIL
    return " ".join([sentence, *parts[:_NAMED_IN_DETAIL], *([f"And {more} more."] if more > 0 else [])])


def _first(value: Any) -> str:
    while isinstance(value, list | dict) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return str(value)


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
