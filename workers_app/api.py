"""The API of workers: who can run jobs. Read only; workers register themselves by message."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import Prefetch, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api import ApiViews
from jobs.serializers import ListQuery
from workers_app.models import Worker, WorkerInstance
from workers_app.serializers import WorkerSerializer


class WorkerViews(ApiViews):
    """Workers with their instances."""

    queryset = Worker.objects.all()
    paged_by: ClassVar[str] = "name"
    lookup_value_regex = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"

    def get_queryset(self) -> QuerySet[Worker]:
        """Instances are read together, those that have left are not."""
        present = WorkerInstance.objects.filter(stopped_at=None)
        return Worker.objects.prefetch_related(Prefetch("instances", queryset=present))

    def list(self, request: Request) -> Response:
        """By name."""
        self.query(ListQuery)
        return self.page(self.get_queryset(), WorkerSerializer)

    def retrieve(self, request: Request, pk: str) -> Response:
        """One worker."""
        return Response(WorkerSerializer(self.get_object()).data)
