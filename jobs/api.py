"""The API of jobs, job types and schedules, and the base of every view of the API.

Called by `scheduler_project.api_urls`. A view reads input through a serializer, calls one function of `definitions`
and shows the result; running a job belongs to `occurrences.api`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from django.db.models import QuerySet
from django.http import Http404
from django.urls import reverse
from django.utils import timezone
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.exceptions import APIException, NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, Serializer
from rest_framework.viewsets import GenericViewSet

from jobs import definitions
from jobs.idempotency import Idempotent
from jobs.models import Job, JobType
from jobs.serializers import (
    JobQuery,
    JobSerializer,
    JobTypeQuery,
    JobTypeSerializer,
    JobVersionSerializer,
    ListQuery,
    NothingSerializer,
    PauseSerializer,
    PreviewSerializer,
    UpcomingQuery,
)

S = TypeVar("S", bound=Serializer[Any])
CHANGE_JOB = ("jobs.change_job",)


class LengthRequired(APIException):
    """A body of unknown length would be read as no body at all."""

    status_code = status.HTTP_411_LENGTH_REQUIRED
    default_detail = "A request with a body needs a Content-Length."
    default_code = "length_required"


class ApiViews(Idempotent, GenericViewSet[Any]):
    """Base of the API's views: idempotency keys, strict input, paging.

    `needs` names the permissions of a POST that is no creation; `paged_by` is the unique field that orders lists.
    """

    needs: Sequence[str] = ()
    paged_by: ClassVar[str] = "-id"
    lookup_value_regex = "[0-9a-fA-F-]{32,36}"
    http_method_names = ["get", "post", "patch", "delete", "head"]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Who, whether they may, and whether the body can be read."""
        super().initial(request, *args, **kwargs)
        if request.headers.get("Transfer-Encoding") and not request.headers.get("Content-Length"):
            raise LengthRequired

    def get_object(self) -> Any:
        """The row that the address names."""
        try:
            return super().get_object()
        except Http404:
            raise NotFound(f"There is no such {self.get_queryset().model._meta.verbose_name}.") from None

    def query(self, kind: type[S]) -> dict[str, Any]:
        """The address's query, checked; a parameter that is not known is refused."""
        return self._valid(kind, self.request.query_params.dict())

    def body(self, kind: type[S]) -> dict[str, Any]:
        """The body, checked."""
        return self._valid(kind, self.request.data)

    def _valid(self, kind: type[S], data: Any) -> dict[str, Any]:
        serializer = kind(data=data, context=self.get_serializer_context())
        serializer.is_valid(raise_exception=True)
        values: dict[str, Any] = serializer.validated_data
        return values

    def page(self, rows: QuerySet[Any], kind: type[BaseSerializer[Any]]) -> Response:
        """One page of rows."""
        page: Iterable[Any] = self.paginate_queryset(rows) or []
        return self.get_paginated_response(kind(page, many=True, context=self.get_serializer_context()).data)

    @property
    def user(self) -> Any:
        """The person or program that asks."""
        return self.request.user


class JobViews(ApiViews):
    """Jobs: define, look, pause, enable, retire."""

    queryset = Job.objects.all()

    def list(self, request: Request) -> Response:
        """Jobs that were not retired."""
        wanted = self.query(JobQuery)
        rows = Job.objects.existing()
        if "name" in wanted:
            rows = rows.filter(name__icontains=wanted["name"])
        exact = {name: wanted[name] for name in ("is_active", "worker", "job_type") if name in wanted}
        return self.page(rows.filter(**exact), JobSerializer)

    def create(self, request: Request) -> Response:
        """A new job."""
        job = definitions.create_job(by=self.user, **self.body(JobSerializer))
        return Response(
            JobSerializer(job).data,
            status=status.HTTP_201_CREATED,
            headers={"Location": reverse("api:job-detail", args=[job.pk])},
        )

    def retrieve(self, request: Request, pk: str) -> Response:
        """One job, also a retired one."""
        return Response(JobSerializer(self.get_object()).data)

    def partial_update(self, request: Request, pk: str) -> Response:
        """Change some fields; a new version."""
        job = self.get_object()
        serializer = JobSerializer(job, data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        job = definitions.update_job(job, by=self.user, **serializer.validated_data)
        return Response(JobSerializer(job).data)

    def destroy(self, request: Request, pk: str) -> Response:
        """Retire the job: its runs stay to be seen."""
        definitions.retire(self.get_object(), by=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"], needs=CHANGE_JOB)
    def pause(self, request: Request, pk: str) -> Response:
        """Stop its schedule."""
        job = self.get_object()
        return Response(JobSerializer(definitions.pause(job, by=self.user, **self.body(PauseSerializer))).data)

    @action(detail=True, methods=["post"], needs=CHANGE_JOB)
    def enable(self, request: Request, pk: str) -> Response:
        """Start its schedule again."""
        job = self.get_object()
        return Response(JobSerializer(definitions.enable(job, by=self.user, **self.body(NothingSerializer))).data)

    @action(detail=True)
    def upcoming(self, request: Request, pk: str) -> Response:
        """The next fire times."""
        job = self.get_object()
        return Response({"upcoming": definitions.upcoming(job, self.query(UpcomingQuery)["count"])})

    @action(detail=True)
    def versions(self, request: Request, pk: str) -> Response:
        """What the definition was, newest first."""
        self.query(ListQuery)
        return self.page(self.get_object().versions.select_related("created_by"), JobVersionSerializer)


class JobTypeViews(ApiViews):
    """Job types: what workers can run."""

    queryset = JobType.objects.all()

    def list(self, request: Request) -> Response:
        """All, or those of one worker."""
        wanted = self.query(JobTypeQuery)
        rows = JobType.objects.filter(worker=wanted["worker"]) if "worker" in wanted else JobType.objects.all()
        return self.page(rows, JobTypeSerializer)

    def retrieve(self, request: Request, pk: str) -> Response:
        """One job type."""
        return Response(JobTypeSerializer(self.get_object()).data)


class ScheduleViews(ApiViews):
    """Schedules that are no job's yet."""

    queryset = Job.objects.none()
    changes: ClassVar[bool] = False

    @action(detail=False, methods=["post"], needs=("jobs.view_job",))
    def preview(self, request: Request) -> Response:
        """The next fire times of a schedule, or what is wrong with it, by field."""
        serializer = PreviewSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return Response(serializer.preview(timezone.now()))
