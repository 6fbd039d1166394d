"""Is this process alive, and is the whole thing ready: database, broker, outbox, each role's loop, live updates.

`/health/live` asks nothing but the process. `/health/ready` is for load balancers and for people; its answer carries no
secret, and error texts are for staff only (see `scheduler_project.views`). A result is reused for REUSED_SECONDS, so
that asking often costs nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import DatabaseError, connection
from django.utils import timezone

from jobs.conf import conf
from jobs.pages import COUNT_CAP, capped_count
from occurrences.models import LoopPass, OutboxMessage
from tickwork.broker.connect import connect
from tickwork.errors import TickworkError

REUSED_SECONDS = 2.0
BROKER_SECONDS = 3.0
LIVE_SECONDS = 2.0
STALE_SECONDS = 30.0  # a loop proves progress at least every ten

ROLES = {
    "dispatch": "Dispatcher",
    "relay_outbox": "Outbox relay",
    "consume_events": "Event consumer",
    "consume_dead_letters": "Dead letters",
    "detect_zombies": "Zombie detector",
}

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `failed`: not ready; `detail` may quote errors, `figures` are for everybody."""

    name: str
    label: str
    state: State
    summary: str
    figures: dict[str, Any]
    detail: str = ""


@dataclass(frozen=True)
class Readiness:
    """All checks of one moment."""

    checks: list[Check]
    at: datetime

    @property
    def is_ready(self) -> bool:
        """Whether nothing failed."""
        return all(check.state != "failed" for check in self.checks)

    @property
    def state(self) -> State:
        """The worst of all."""
        states = {check.state for check in self.checks}
        return "failed" if "failed" in states else "warning" if "warning" in states else "ok"

    def as_json(self, *, with_details: bool) -> dict[str, Any]:
        """The answer of `/health/ready`."""
        return {
            "status": "ready" if self.is_ready else "not_ready",
            "at": self.at.isoformat(),
            "checks": {
                check.name: {"status": check.state, "summary": check.summary, **check.figures}
                | ({"detail": check.detail} if with_details and check.detail else {})
                for check in self.checks
            },
        }


_lock = threading.Lock()
_last: tuple[float, Readiness] | None = None


def readiness() -> Readiness:
    """All checks, at most REUSED_SECONDS old. Never raises."""
    global _last
    with _lock:
        if _last is None or time.monotonic() - _last[0] > REUSED_SECONDS:
            _last = (time.monotonic(), _look())
        return _last[1]


def forget() -> None:
    """Look anew at the next call (tests)."""
    global _last
    _last = None


def _look() -> Readiness:
    now = timezone.now()
    checks = [_database(), _broker()]
    if checks[0].state == "ok":
        checks += _guarded("outbox", "Outbox", lambda: [_outbox(now)])
        checks += _guarded("roles", "Loops", lambda: _roles(now))
    checks.append(_live())
    return Readiness(checks=checks, at=now)


def _guarded(name: str, label: str, look: Callable[[], list[Check]]) -> list[Check]:
    """A database that goes away between two checks is a failed check."""
    try:
        return look()
    except DatabaseError as error:
        return [Check(name, label, "failed", "cannot be read", {}, _text(error))]


def _database() -> Check:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return Check("database", "Database", "failed", "cannot be reached", {}, _text(error))
    return Check("database", "Database", "ok", "answers", {})


def _broker() -> Check:
    try:
        connect(settings.BROKER_URL).check(timeout=BROKER_SECONDS)
    except TickworkError as error:
        return Check("broker", "Broker", "failed", "cannot be reached", {}, _text(error))
    return Check("broker", "Broker", "ok", "answers", {})


def _outbox(now: datetime) -> Check:
    """Messages that are due and wait: how many, since when, and how many were tried in vain."""
    rows = OutboxMessage.objects
    oldest = (
        rows.filter(next_attempt_at__lte=now)
        .order_by("next_attempt_at")
        .values_list("next_attempt_at", flat=True)
        .first()
    )
    age = (now - oldest).total_seconds() if oldest else 0.0
    pending = capped_count(rows.filter(next_attempt_at__lte=now))
    refused = rows.exclude(last_error="").order_by("occurred_at")
    failed = refused[: COUNT_CAP + 1].count()
    first = refused.values_list("occurred_at", flat=True).first()
    failed_age = (now - first).total_seconds() if first else 0.0
    figures = {
        "oldest_due_age_seconds": round(age, 1),
        "pending": pending,
        "failed": failed,
        "oldest_failed_age_seconds": round(failed_age, 1),
    }
    limit = conf().outbox_warn_age_seconds
    if age > limit:
        return Check("outbox", "Outbox", "warning", f"{pending} waiting, the oldest for {age:.0f} s", figures)
    if failed_age > limit:
        summary = f"{failed} refused by the broker, the oldest for {failed_age:.0f} s"
        return Check("outbox", "Outbox", "warning", summary, figures)
    return Check("outbox", "Outbox", "ok", f"{pending} waiting" if pending else "empty", figures)


def _roles(now: datetime) -> list[Check]:
    newest: dict[str, LoopPass] = {}
    for row in LoopPass.objects.filter(role__in=ROLES, last_pass_at__gte=now - timedelta(days=1)).order_by(
        "last_pass_at"
    ):
        newest[row.role] = row
    return [_role(name, label, newest.get(name), now) for name, label in ROLES.items()]


def _role(name: str, label: str, row: LoopPass | None, now: datetime) -> Check:
    if row is None:
        return Check(name, label, "failed", "is not running", {"last_pass_age_seconds": None})
    age = max((now - row.last_pass_at).total_seconds(), 0.0)
    figures = {"last_pass_age_seconds": round(age, 1)}
    if age > STALE_SECONDS:
        return Check(name, label, "failed", f"silent for {age:.0f} s", figures, row.last_error)
    return Check(name, label, "ok", "works", figures)


def _live() -> Check:
    """Without live updates pages poll: a warning, not a reason to send nobody here."""
    try:
        async_to_sync(_send_to_nobody)()
    except Exception as error:  # whatever the layer's client raises
        return Check("live", "Live updates", "warning", "cannot be reached; pages poll", {}, type(error).__name__)
    return Check("live", "Live updates", "ok", "answer", {})


async def _send_to_nobody() -> None:
    await asyncio.wait_for(get_channel_layer().group_send("health", {"type": "health"}), LIVE_SECONDS)


def _text(error: Exception) -> str:
    """What went wrong, in one line; drivers name hosts and users in it but never passwords."""
    return " ".join(str(error).split())[:300]
