"""Health answers, and what a websocket address that does not exist says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs.pages import page
from scheduler_project.health import readiness


@require_safe
@never_cache
def live(request: HttpRequest) -> HttpResponse:
    """This process answers."""
    return JsonResponse({"status": "ok"})


@require_safe
@never_cache
def ready(request: HttpRequest) -> HttpResponse:
    """200 when everything that is needed works, else 503; error texts for staff only."""
    result = readiness()
    body = result.as_json(with_details=bool(request.user.is_authenticated and request.user.is_staff))
    return JsonResponse(body, status=200 if result.is_ready else 503)


@page("occurrences.view_occurrence")
def health_strip(request: HttpRequest) -> HttpResponse:
    """The same for the first page. A fragment, fetched by the page later: a slow broker must not hold it up."""
    return render(request, "_health.html", {"readiness": readiness()})


Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def no_such_socket(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Refuse the handshake."""
    await receive()
    await send({"type": "websocket.close"})
