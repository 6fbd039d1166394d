"""The API's manners: who may call and how lists are paged. (How errors look: `problems`.)"""

from __future__ import annotations

from typing import ClassVar

from rest_framework.pagination import CursorPagination
from rest_framework.permissions import DjangoModelPermissions


class ModelPermissions(DjangoModelPermissions):
    """Django's model permissions, reading included: a role without `view` sees nothing."""

    perms_map: ClassVar = {
        **DjangoModelPermissions.perms_map,
        "GET": ["%(app_label)s.view_%(model_name)s"],
        "HEAD": ["%(app_label)s.view_%(model_name)s"],
    }


class NewestFirst(CursorPagination):
    """Keyset paging over ids that sort by time: a page costs the same at row ten and at row ten million."""

    ordering = "-id"
    page_size_query_param = "page_size"
    max_page_size = 500
