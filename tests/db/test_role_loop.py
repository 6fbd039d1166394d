"""Daemons of the roles: each does its pass, proves progress, survives errors, is woken by a commit, leaves no trace."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from threading import Thread

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from occurrences import operations
from occurrences.management.role_loop import ROLES, RoleLoop
from occurrences.management.wake import wake_on_commit
from occurrences.models import LoopPass, Occurrence, OutboxMessage
from occurrences.sql import JOBS_CHANNEL
from tests.db.conftest import SetConf
from tests.factories import make_job
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.loop import Stop

HERE = f"{socket.gethostname()}-1"


@pytest.fixture(autouse=True)
def _own_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("occurrences.management.role_loop.RECORD_SECONDS", 0.0)
    monkeypatch.setattr("occurrences.hearing.PULSE_SECONDS", 0.05)
    monkeypatch.setattr("occurrences.lifecycle.intake.TAKE_WAIT_SECONDS", 0.02)
    monkeypatch.setattr("occurrences.lifecycle.dead_letters.TAKE_WAIT_SECONDS", 0.02)
    with override_settings(BROKER_URL=f"sqlite:///{tmp_path}/broker.sqlite3"):
        yield


@contextmanager
def running(role: str) -> Iterator[None]:
    """The role's loop in a thread of its own."""
    stop = Stop()
    thread = Thread(target=RoleLoop(role, stop=stop).run)
    thread.start()
    try:
        yield
    finally:
        stop.set("the test is over")
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def last_pass(role: str) -> LoopPass | None:
    return LoopPass.objects.filter(role=role).first()


@pytest.mark.django_db
@pytest.mark.parametrize("role", sorted(ROLES))
def test_each_role_has_a_command_that_can_do_one_pass(role: str) -> None:
    told = StringIO()
    call_command(role, "--once", stdout=told)
    assert told.getvalue() == f"{role}: 0\n"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_loop_proves_its_progress_while_it_runs_and_takes_the_proof_back_when_it_leaves(role: str) -> None:
    with running(role):
        eventually(lambda: last_pass(role))
    assert last_pass(role) is None


@pytest.mark.django_db(transaction=True)
def test_the_event_consumers_loop_says_what_it_has_heard() -> None:
    with running("consume_events"):
        eventually(lambda: (seen := last_pass("consume_events")) and seen.hearing_since and seen.heard_until)


@pytest.mark.django_db(transaction=True)
def test_a_commit_wakes_the_relay_long_before_it_would_look_again(set_conf: SetConf) -> None:
    set_conf(relay_poll_seconds=60)
    with running("relay_outbox"):
        eventually(lambda: last_pass("relay_outbox"))
        operations.trigger(make_job())
        eventually(lambda: not OutboxMessage.objects.exists())


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no connection to secure")
def test_whoever_listens_reaches_the_database_as_everybody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"application_name": "with options"})

    def listeners() -> list[tuple[str]]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT query FROM pg_stat_activity WHERE application_name = 'with options'")
            return [row for row in cursor.fetchall() if row[0].startswith("LISTEN")]

    stop = Stop()
    wake_on_commit(lambda: None, channel=JOBS_CHANNEL, stop=stop)
    eventually(listeners)
    stop.set("the test is over")
    eventually(lambda: not listeners())


@pytest.mark.django_db(transaction=True)
def test_a_due_tick_is_dispatched_when_it_is_due(set_conf: SetConf) -> None:
    set_conf(dispatch_poll_seconds=60)
    job = make_job(cron="* * * * * *")
    with running("dispatch"):
        eventually(lambda: Occurrence.objects.filter(job=job).exists())


@pytest.mark.django_db(transaction=True)
def test_an_error_is_kept_where_people_look_and_the_loop_goes_on(tmp_path: Path) -> None:
    in_the_way = tmp_path / "folder"
    in_the_way.write_text("a file")
    operations.trigger(make_job())
    with override_settings(BROKER_URL=f"sqlite:///{in_the_way}/broker.sqlite3"), running("relay_outbox"):
        eventually(lambda: LoopPass.objects.exclude(last_error_at=None).filter(last_error__contains="Unavailable"))
        in_the_way.unlink()
        in_the_way.mkdir()
        eventually(lambda: not OutboxMessage.objects.exists())


# ── the health check of a role's process ───────────────────────────────────────────────────────────


def passed(seconds_ago: float, *, process: str = HERE) -> None:
    at = timezone.now() - timedelta(seconds=seconds_ago)
    LoopPass.objects.create(role="dispatch", process=process, started_at=at, last_pass_at=at, last_error="no disk")


@pytest.mark.django_db
def test_a_role_that_passed_lately_on_this_host_is_healthy() -> None:
    passed(500, process=f"{socket.gethostname()}-0")  # one that died
    passed(5)
    told = StringIO()
    call_command("check_role", "dispatch", stdout=told)
    assert re.search(r"last pass [\d.]+ s ago", told.getvalue())


@pytest.mark.django_db
def test_a_role_that_did_not_pass_lately_is_not_healthy_and_its_error_is_said() -> None:
    passed(500)
    with pytest.raises(CommandError, match=r"last pass of dispatch was \d+ s ago: no disk"):
        call_command("check_role", "dispatch")
    call_command("check_role", "dispatch", "--max-age", "3600", stdout=StringIO())


@pytest.mark.django_db
def test_a_role_that_runs_only_elsewhere_is_not_healthy_here() -> None:
    passed(1, process="another-host-1")
    with pytest.raises(CommandError, match="no loop of dispatch has run on this host"):
        call_command("check_role", "dispatch")
