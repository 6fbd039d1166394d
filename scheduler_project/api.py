"""The API's manners: who may call, what a body may hold, and how lists are paged. (How errors look: `problems`.)

Named in the settings by string, so that no app imports it. Views say what they need by two attributes:
`needs` (permissions, where the method alone does not tell them) and `paged_by` (the unique field that orders a list).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import msgspec
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from rest_framework.exceptions import APIException, NotFound, ParseError
from rest_framework.exceptions import ValidationError as InvalidQuery
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.parsers import BaseParser
from rest_framework.permissions import DjangoModelPermissions
from rest_framework.request import Request

from jobs.keepable import MAX_DEPTH, fault


class TooLarge(APIException):
    """The body is larger than the server reads."""

    status_code = 413
    default_code = "too_large"


class ModelPermissions(DjangoModelPermissions):
    """Django's model permissions, reading included: a role without `view` sees nothing.

    A view whose method does not tell what it needs (a POST that is not a creation) names it in `needs`.
    """

    perms_map = {
        **DjangoModelPermissions.perms_map,
        "GET": ["%(app_label)s.view_%(model_name)s"],
        "HEAD": ["%(app_label)s.view_%(model_name)s"],
    }

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether the user has everything that the view needs."""
        if not (request.user and request.user.is_authenticated):
            return False
        needs = () if request.method in ("GET", "HEAD", "OPTIONS") else getattr(view, "needs", ())
        needs = needs or self.get_required_permissions(request.method or "", self._queryset(view).model)
        missing = [name for name in needs if not request.user.has_perm(name)]
        self.message = f"This needs the permission {' and '.join(missing)}."
        return not missing


class Keyset(CursorPagination):
    """Paging by a unique, ordered field: a page costs the same wherever it is, and nothing is counted.

    Newest first by id, which sorts by time, unless the view says otherwise in `paged_by`.
    """

    page_size_query_param = "page_size"
    max_page_size = 500

    def get_page_size(self, request: Request) -> int:
        """The size that was asked for; one that is not allowed is refused, not adjusted."""
        text = request.query_params.get(self.page_size_query_param)
        if text is None:
            return int(self.page_size or 50)
        if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= self.max_page_size):
            raise InvalidQuery(
                {self.page_size_query_param: [f"A whole number from 1 to {self.max_page_size} is needed."]}
            )
        return int(text)

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        """The view's own order, or newest first."""
        return (getattr(view, "paged_by", "-id"),)

    def decode_cursor(self, request: Request) -> Cursor | None:
        """Where the page begins. A cursor that this API did not make is not found."""
        cursor: Cursor | None = super().decode_cursor(request)
        if cursor is not None and (cursor == (0, False, None) or "\0" in str(cursor.position)):
            raise NotFound(self.invalid_cursor_message)
        return cursor

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        """One page."""
        try:
            page: list[Any] | None = super().paginate_queryset(queryset, request, view)
        except ValidationError:  # the cursor's position is not a value of the field that orders the list
            raise NotFound(self.invalid_cursor_message) from None
        return page


class StrictJSONParser(BaseParser):
    """JSON as RFC 8259 has it, of bounded size and depth, that every database and every reader of ours can hold:
    no NUL characters, no lone surrogates, no numbers that do not fit 64 bits."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """The body's value. Raises TooLarge, ParseError (not JSON) or ValidationError (by field)."""
        limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLarge(f"The body is larger than {limit} bytes.")
        try:
            value = msgspec.json.decode(body)
        except RecursionError:
            raise ParseError(f"The JSON is nested deeper than {MAX_DEPTH} levels.") from None
        except UnicodeDecodeError:
            raise ParseError("The body is not UTF-8.") from None
        except msgspec.MsgspecError as error:
            raise ParseError(f"The body is not valid JSON: {error}.") from None
        if not_kept := fault(value):
            place, message = not_kept
            raise InvalidQuery({place or "body": [message]})
        return value
