"""What every page of the dashboard shares: who may see it, how a refusal is told, live parts, and paging by key.

Used by the `views` of all three apps. It knows no model and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods, require_POST

from jobs.errors import NotKnown, OperationRefused

View = Callable[..., HttpResponse]
M = TypeVar("M", bound=Model)

PAGE_SIZE = 50
COUNT_CAP = 10_000


def page(permission: str, *, form: bool = False) -> Callable[[View], View]:
    """A page for whoever is logged in and has `permission` (app.codename): others are sent to the login, or get 403.

    `form`: its form is posted to the page itself.
    """

    def decorate(view: View) -> View:
        @require_http_methods(["GET", "HEAD", "POST"] if form else ["GET", "HEAD"])
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            if not request.user.has_perm(permission):
                raise PermissionDenied(permission)
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def action(permission: str) -> Callable[[View], View]:
    """A button's target: POST only, and a refused operation comes back as a message on the page it was asked from."""

    def decorate(view: View) -> View:
        @require_POST
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                return redirect_to_login(back_url(request))
            if not request.user.has_perm(permission):
                raise PermissionDenied(permission)
            try:
                return view(request, *args, **kwargs)
            except NotKnown as error:
                raise Http404(str(error)) from error
            except OperationRefused as error:
                tell_refusal(request, error)
                return redirect(back_url(request))

        return guarded

    return decorate


def back_url(request: HttpRequest, default: str = "overview") -> str:
    """Where the form said to go afterwards (`next`), if that is on this site."""
    url = request.POST.get("next", "")
    allowed = url_has_allowed_host_and_scheme(
        url, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return url if allowed else reverse(default)


def tell_refusal(request: HttpRequest, error: OperationRefused) -> None:
    """The refusal, and each field to blame, as a message on the next page."""
    details = "; ".join(f"{name}: {' '.join(texts)}" for name, texts in error.fields.items())
    messages.error(request, f"{error} {details}".strip())


def user_name(request: HttpRequest) -> str:
    """By whom something is done, as kept in histories."""
    return request.user.get_username()


def render_page(
    request: HttpRequest, template: str, context: Mapping[str, Any], *, parts: Mapping[str, str]
) -> HttpResponse:
    """The whole page, or with `?part=<name>` only that part's own template: what `live.js` fetches after a change."""
    part = request.GET.get("part")
    if part is None:
        return render(request, template, dict(context))
    if part not in parts:
        raise Http404(f"this page has no part {part!r}")
    response = render(request, parts[part], dict(context))
    response["Cache-Control"] = "no-store"
    return response


@dataclass(frozen=True)
class Page(Generic[M]):
    """One page of rows in the order of their key. `next_key`: the key to go on after, None on the last page."""

    rows: list[M]
    next_key: UUID | None
    is_first: bool

    @classmethod
    def newest_first(cls, rows: QuerySet[M], request: HttpRequest, *, size: int = PAGE_SIZE) -> Page[M]:
        """The rows whose id comes before `?before=<id>`, newest first; ids sort by the time they were made."""
        before = key_of(request, "before")
        if before is not None:
            rows = rows.filter(pk__lt=before)
        return cls.cut(list(rows.order_by("-pk")[: size + 1]), size=size, is_first=before is None)

    @classmethod
    def cut(cls, rows: list[M], *, size: int, is_first: bool) -> Page[M]:
        """A page from up to `size` + 1 rows; the one too many says that there are more."""
        return cls(rows=rows[:size], next_key=rows[size - 1].pk if len(rows) > size else None, is_first=is_first)


def key_of(request: HttpRequest, name: str) -> UUID | None:
    """The id in the address's query, None when it is not given. Raises Http404 for what is no id."""
    text = request.GET.get(name)
    if not text:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise Http404(f"{name} is no id") from None


def chosen(request: HttpRequest, name: str, among: Mapping[str, Any]) -> str:
    """The value of a filter in the address's query, empty when it is not given. Raises Http404 for an unknown one."""
    text = request.GET.get(name, "")
    if text and text not in among:
        raise Http404(f"{name} {text!r} is not known")
    return text


def capped_count(rows: QuerySet[Any], cap: int = COUNT_CAP) -> int:
    """How many rows, but never more than `cap` + 1: counting a big table must not be the price of a page."""
    return rows.order_by()[: cap + 1].count()
