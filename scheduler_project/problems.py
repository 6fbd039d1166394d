"""How the API's errors look: problem details (RFC 9457). Apart from `api`, since REST framework's views import that one."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.exceptions import ValidationError as DjangoValidationError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler, set_rollback

from jobs.errors import OperationRefused


def problem_details(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn an error into `application/problem+json`: type, title, status, code, detail and, for a bad field, `errors` by field."""
    if isinstance(error, OperationRefused):
        set_rollback()
        return _problem(error.http_status, error.code, str(error), errors=error.fields)
    if isinstance(error, DjangoValidationError):
        error = exceptions.ValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages)
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    if isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    answer = exception_handler(error, context)
    if answer is None or not isinstance(error, exceptions.APIException):
        return answer
    if isinstance(error, exceptions.ValidationError):
        problem = _problem(answer.status_code, "invalid", "Some fields are not valid.", errors=answer.data)
    else:
        codes = error.get_codes()
        problem = _problem(answer.status_code, codes if isinstance(codes, str) else "error", str(error.detail))
    for name in ("WWW-Authenticate", "Retry-After"):
        if name in answer.headers:
            problem[name] = answer.headers[name]
    return problem


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
