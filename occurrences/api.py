"""The API of runs: trigger a job, look at occurrences and their logs, cancel, retry, resolve failures.

Called by `scheduler_project.api_urls`. A view reads input through a serializer, calls one function of `operations`
and shows the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID

from django.db.models import Q, QuerySet
from django.urls import reverse
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api import CHANGE_JOB, ApiViews
from jobs.errors import InvalidDefinition, NotPossibleNow
from jobs.models import Job
from jobs.serializers import NothingSerializer
from occurrences import operations
from occurrences.filters import FailureFilter, OccurrenceFilter
from occurrences.models import FailedOccurrence, Occurrence, OccurrenceLog
from occurrences.serializers import (
    CancelSerializer,
    FailureDetail,
    FailureQuery,
    FailureSummary,
    LogQuery,
    LogSerializer,
    OccurrenceDetail,
    OccurrenceQuery,
    OccurrenceSummary,
    ResolveManySerializer,
    ResolveSerializer,
    RetryFailureSerializer,
    RetryManySerializer,
    RetrySerializer,
    TriggerBatchSerializer,
    TriggerSerializer,
)

CHANGE_OCCURRENCE = ("occurrences.change_occurrence",)
CHANGE_FAILURE = ("occurrences.change_failedoccurrence",)
RETRY_FAILURE = (*CHANGE_OCCURRENCE, *CHANGE_FAILURE)
# Wide columns that a list does not show.
_NOT_LISTED = ("data", "policy", "result", "error", "history")


def _detail(occurrence_id: UUID, *, http_status: int = 200, headers: dict[str, str] | None = None) -> Response:
    occurrence = Occurrence.objects.select_related("job").prefetch_related("attempts").filter(pk=occurrence_id).first()
    if occurrence is None:
        raise NotFound("There is no such occurrence.")
    return Response(OccurrenceDetail(occurrence).data, status=http_status, headers=headers)


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("This is no id.") from None


def _place_in_batch(name: str) -> str:
    """`data[3]` of `operations` is `items.3` of the request, and `data` its only item."""
    found = re.fullmatch(r"data(?:\[(\d+)\])?", name)
    return f"items.{found[1] or 0}" if found else name


class JobRunViews(ApiViews):
    """Run a job now, whatever its schedule."""

    queryset = Job.objects.all()
    needs: Sequence[str] = CHANGE_JOB

    @action(detail=True, methods=["post"])
    def trigger(self, request: Request, pk: str) -> Response:
        """One run."""
        job, wanted = self.get_object(), self.body(TriggerSerializer)
        made = operations.trigger(
            job, data=wanted["data"], call=wanted["policy"], by=self.user.get_username(), trigger="api"
        )
        where = {"Location": reverse("api:occurrence-detail", args=[made])}
        return _detail(made, http_status=status.HTTP_202_ACCEPTED, headers=where)

    @action(detail=True, methods=["post"], url_path="trigger-batch")
    def trigger_batch(self, request: Request, pk: str) -> Response:
        """Many runs, all or none."""
        job, wanted = self.get_object(), self.body(TriggerBatchSerializer)
        try:
            made = operations.trigger_many(
                job, wanted["items"], call=wanted["policy"], by=self.user.get_username(), trigger="api"
            )
        except InvalidDefinition as error:
            places = {_place_in_batch(name): messages for name, messages in error.fields.items()}
            raise InvalidDefinition(str(error), fields=places) from None
        return Response({"ids": made}, status=status.HTTP_202_ACCEPTED)


class OccurrenceViews(ApiViews):
    """What happened, and what is to be done about a run."""

    queryset = Occurrence.objects.all()

    def list(self, request: Request) -> Response:
        """Newest first."""
        wanted = OccurrenceFilter.parse(self.query(OccurrenceQuery))
        rows = Occurrence.objects.select_related("job").defer(*_NOT_LISTED, *_not_needed_of_job())
        return self.page(wanted.apply(rows), OccurrenceSummary)

    def retrieve(self, request: Request, pk: str) -> Response:
        """Everything about one."""
        return _detail(_id(pk))

    @action(detail=True)
    def logs(self, request: Request, pk: str) -> Response:
        """Its log lines in order; `after` is where to go on, also for lines that are still to come."""
        wanted, identifier = self.query(LogQuery), _id(pk)
        rows = OccurrenceLog.objects.filter(occurrence=identifier)
        if "attempt" in wanted:
            rows = rows.filter(attempt=wanted["attempt"])
        if "after" in wanted:
            attempt, sequence = (int(part) for part in wanted["after"].split("."))
            rows = rows.filter(Q(attempt=attempt, sequence__gt=sequence) | Q(attempt__gt=attempt))
        lines = list(rows[: wanted["limit"] + 1])
        shown = lines[: wanted["limit"]]
        if not shown and not Occurrence.objects.filter(pk=identifier).exists():
            raise NotFound("There is no such occurrence.")
        after = f"{shown[-1].attempt}.{shown[-1].sequence}" if shown else wanted.get("after")
        results = LogSerializer(shown, many=True).data
        return Response({"results": results, "after": after, "more": len(lines) > len(shown)})

    @action(detail=True, methods=["post"], needs=CHANGE_OCCURRENCE)
    def cancel(self, request: Request, pk: str) -> Response:
        """200: it is cancelled. 202: its worker is asked and will confirm."""
        identifier, wanted = _id(pk), self.body(CancelSerializer)
        answer = operations.cancel(identifier, by=self.user.get_username(), reason=wanted["reason"])
        return _detail(identifier, http_status=202 if answer == "requested" else 200)

    @action(detail=True, methods=["post"], needs=CHANGE_OCCURRENCE)
    def retry(self, request: Request, pk: str) -> Response:
        """Start a finished one again, under the same id."""
        identifier, wanted = _id(pk), self.body(RetrySerializer)
        operations.retry(identifier, by=self.user, data=wanted["data"])
        return _detail(identifier, http_status=status.HTTP_202_ACCEPTED)

    @action(detail=True, methods=["post"], url_path="retry-now", needs=CHANGE_OCCURRENCE)
    def retry_now(self, request: Request, pk: str) -> Response:
        """End its wait for the next attempt."""
        identifier = _id(pk)
        self.body(NothingSerializer)
        operations.retry_now(identifier, by=self.user.get_username())
        return _detail(identifier, http_status=status.HTTP_202_ACCEPTED)


def _not_needed_of_job() -> list[str]:
    return [f"job__{field.name}" for field in Job._meta.concrete_fields if field.name not in ("id", "name")]


class FailureViews(ApiViews):
    """Failures that wait for somebody, and those that were resolved."""

    queryset = FailedOccurrence.objects.all()

    def get_queryset(self) -> QuerySet[FailedOccurrence]:
        """With what is shown of job and person."""
        return FailedOccurrence.objects.select_related("job", "resolved_by")

    def list(self, request: Request) -> Response:
        """Newest first."""
        wanted = FailureFilter.parse(self.query(FailureQuery))
        rows = self.get_queryset().defer("traceback", "raw", *_not_needed_of_job())
        return self.page(wanted.apply(rows), FailureSummary)

    def retrieve(self, request: Request, pk: str) -> Response:
        """Everything about one."""
        return Response(FailureDetail(self.get_object()).data)

    @action(detail=True, methods=["post"], needs=CHANGE_FAILURE)
    def resolve(self, request: Request, pk: str) -> Response:
        """Close it with an action and a note."""
        failure, wanted = self.get_object(), self.body(ResolveSerializer)
        if not operations.resolve([failure.pk], by=self.user, action=wanted["action"], note=wanted["note"]):
            raise NotPossibleNow("The failure is resolved already.", code="already_resolved")
        return self.retrieve(request, pk)

    @action(detail=True, methods=["post"], needs=CHANGE_FAILURE)
    def reopen(self, request: Request, pk: str) -> Response:
        """Open it again."""
        self.body(NothingSerializer)
        operations.reopen(_id(pk), by=self.user)
        return self.retrieve(request, pk)

    @action(detail=True, methods=["post"], needs=RETRY_FAILURE)
    def retry(self, request: Request, pk: str) -> Response:
        """Start its occurrence again, with its data or with edited ones."""
        failure, wanted = self.get_object(), self.body(RetryFailureSerializer)
        if not operations.retry_failures([failure.pk], by=self.user, note=wanted["note"], data=wanted["data"]):
            raise NotPossibleNow("It is resolved already, or has nothing to retry.", code="not_retryable")
        return Response(FailureDetail(self.get_object()).data, status=status.HTTP_202_ACCEPTED)

    @action(detail=False, methods=["post"], url_path="resolve", url_name="resolve-many", needs=CHANGE_FAILURE)
    def resolve_many(self, request: Request) -> Response:
        """Close those that are open; says how many were."""
        wanted = self.body(ResolveManySerializer)
        count = operations.resolve(wanted["ids"], by=self.user, action=wanted["action"], note=wanted["note"])
        return Response({"resolved_count": count})

    @action(detail=False, methods=["post"], url_path="retry", url_name="retry-many", needs=RETRY_FAILURE)
    def retry_many(self, request: Request) -> Response:
        """Start the occurrences of those that are open again; says how many were."""
        wanted = self.body(RetryManySerializer)
        count = operations.retry_failures(wanted["ids"], by=self.user, note=wanted["note"])
        return Response({"retried_count": count}, status=status.HTTP_202_ACCEPTED)
