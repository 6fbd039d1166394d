"""Forgotten: what is old is deleted, in small transactions.

Finished occurrences after `retention_days` (their logs first; not while a failure of theirs is kept),
resolved failures after `failure_retention_days`, answers to idempotency keys after their time, instances that left.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, Model, OuterRef, Q, QuerySet

from jobs.conf import conf
from jobs.models import IdempotencyRecord
from occurrences.models import FailedOccurrence, LoopPass, Occurrence, OccurrenceLog
from occurrences.states import FINAL
from tickwork.ids import first_at
from workers_app.models import WorkerInstance

GONE_DAYS = 2


class Retention:
    """The passes of retention; holds nothing between them."""

    role = "purge"

    def tick(self, *, now: datetime) -> int:
        """Delete up to `purge_batch` rows of each kind; returns how many rows went (0: all is tidy)."""
        settings = conf()
        gone = now - timedelta(days=GONE_DAYS)
        failures_gone = now - timedelta(days=settings.failure_retention_days)
        failure = FailedOccurrence.objects.filter(
            Q(resolved_at=None) | Q(resolved_at__gte=failures_gone), occurrence=OuterRef("pk")
        )
        kept = now - timedelta(days=settings.retention_days)
        runs = Occurrence.objects.filter(pk__lt=first_at(kept), status__in=sorted(FINAL), ended_at__lt=kept)
        old = [
            FailedOccurrence.objects.filter(resolved_at__lt=failures_gone),
            IdempotencyRecord.objects.filter(expires_at__lt=now),
            WorkerInstance.objects.filter(last_heartbeat_at__lt=gone),
            LoopPass.objects.filter(last_pass_at__lt=gone),
        ]
        return _forget_runs(runs.exclude(Exists(failure)), settings.purge_batch) + sum(
            _delete(rows, settings.purge_batch) for rows in old
        )

    def close(self) -> None:
        """Nothing to release."""


def _forget_runs(runs: QuerySet[Occurrence], limit: int) -> int:
    """Their log lines first: one run may have written a million."""
    oldest = list(runs.order_by("pk").values_list("pk", flat=True)[:limit])
    return _delete(OccurrenceLog.objects.filter(occurrence__in=oldest), limit) or _delete(runs, limit)


@transaction.atomic
def _delete(rows: QuerySet[Model], limit: int) -> int:
    """Nothing that somebody is changing just now, such as a run that is started again."""
    rows = rows.select_for_update(of=("self",), skip_locked=True)
    ids = list(rows.order_by("pk").values_list("pk", flat=True)[:limit])
    if ids:
        rows.model._default_manager.filter(pk__in=ids).delete()
    return len(ids)
