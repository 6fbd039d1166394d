"""The addresses of the API, under `/api/`. `docs/reference/api.md` lists them; a trailing slash is allowed."""

from __future__ import annotations

from typing import Any

from django.urls import include, path, re_path
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView

from jobs.api import JobTypeViews, JobViews, ScheduleViews
from occurrences.api import FailureViews, JobRunViews, OccurrenceViews
from workers_app.api import WorkerViews

app_name = "api"


class Nowhere(APIView):
    """Any other address: a problem, not a page."""

    permission_classes = (AllowAny,)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Not found, whatever the method."""
        raise NotFound(f"There is nothing at {request.path}.")


router = SimpleRouter(trailing_slash=False)
router.trailing_slash = "/?"
router.register("jobs", JobViews, basename="job")
router.register("jobs", JobRunViews, basename="job-run")
router.register("job-types", JobTypeViews, basename="job-type")
router.register("schedule", ScheduleViews, basename="schedule")
router.register("workers", WorkerViews, basename="worker")
router.register("occurrences", OccurrenceViews, basename="occurrence")
router.register("failures", FailureViews, basename="failure")

urlpatterns = [path("v1/", include(router.urls)), re_path(r"", Nowhere.as_view())]
