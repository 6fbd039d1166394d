"""Two people, or a person and a loop, act at the same moment: both are answered, and nothing contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction

from jobs.errors import NotPossibleNow
from jobs.job_types import policy_of
from jobs.transactions import TRIES, made_again
from occurrences import operations
from occurrences.lifecycle.retention import Retention
from occurrences.models import FailedOccurrence, Occurrence
from occurrences.states import Status
from tests.db.api_client import Api
from tests.factories import NOON, make_failure, make_job, make_occurrence, make_operator
from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork.ids import first_at

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="on SQLite a transaction has the database for itself"),
]


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Do something in another thread, on a connection of its own."""
    with ThreadPoolExecutor(2) as pool:

        def begin(deed: Callable[[], Any]) -> Future[Any]:
            def work() -> Any:
                try:
                    return deed()
                finally:
                    connection.close()

            return pool.submit(work)

        yield begin


@pytest.fixture
def olga() -> User:
    return make_operator()


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


def locked_and_then(first: Occurrence, done: Event, deed: Callable[[], Any]) -> Any:
    """Holds the row until the other one waits for it, then does the deed in the same transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL deadlock_timeout = '300s'")  # the other one finds the deadlock, and is given up
        Occurrence.objects.select_for_update().get(pk=first.pk)
        done.set()
        eventually(somebody_waits_for_a_lock)
        return deed()


# ── deadlocks ──────────────────────────────────────────────────────────────────────────────────────


def the_other_row(mine: Occurrence, yours: Occurrence, meanwhile: Any, deed: Callable[[], Any]) -> Any:
    """`deed` changes my row, then yours; another transaction has yours and then wants mine."""
    has_yours = Event()
    other = meanwhile(
        lambda: locked_and_then(yours, has_yours, lambda: Occurrence.objects.select_for_update().get(pk=mine.pk))
    )
    assert has_yours.wait(PATIENCE_SECONDS)
    answer = deed()
    other.result(PATIENCE_SECONDS)
    return answer


def crossing(mine: Occurrence, yours: Occurrence, calls: list[int]) -> None:
    """A transaction that locks my row, then yours, and is chosen as the one to give up."""
    with transaction.atomic():
        calls.append(1)
        Occurrence.objects.select_for_update().get(pk=mine.pk)
        Occurrence.objects.select_for_update().get(pk=yours.pk)


def test_what_the_database_gave_up_to_end_a_deadlock_is_done_again(meanwhile: Any) -> None:
    mine, yours, calls = make_occurrence(), make_occurrence(), list[int]()
    the_other_row(mine, yours, meanwhile, lambda: made_again(crossing)(mine, yours, calls))
    assert len(calls) > 1


def test_within_a_callers_transaction_it_is_the_callers_to_repeat(meanwhile: Any) -> None:
    mine, yours, calls = make_occurrence(), make_occurrence(), list[int]()

    def within() -> None:
        with transaction.atomic():
            made_again(crossing)(mine, yours, calls)

    with pytest.raises(OperationalError):
        the_other_row(mine, yours, meanwhile, within)
    assert len(calls) == 1


class Deadlocks:
    """The database gives up this many transactions, each at a statement that has `word` in it."""

    def __init__(self, number: int, word: str) -> None:
        self.left = number
        self.word = word

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if self.left and self.word in sql:
            self.left -= 1
            sql, params = "DO $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '40P01'; END $$", None
        return execute(sql, params, many, context)


@dataclass
class Rows:
    """What may be asked about."""

    olga: User
    waiting: Occurrence
    failed: Occurrence
    failure: FailedOccurrence
    resolved: FailedOccurrence


UPDATE, CLOSE = "UPDATE occurrences_occurrence", 'UPDATE "occurrences_failedoccurrence"'
DEEDS: dict[str, tuple[Callable[[Rows], Any], str]] = {
    "trigger": (lambda rows: operations.trigger_many(rows.waiting.job, [None, None]), "pg_notify"),
    "cancel": (lambda rows: operations.cancel(rows.waiting.pk, by="olga"), UPDATE),
    "retry": (lambda rows: operations.retry(rows.failed.pk, by=rows.olga), CLOSE),
    "retry_now": (lambda rows: operations.retry_now(rows.waiting.pk, by="olga"), UPDATE),
    "resolve": (
        lambda rows: operations.resolve([rows.failure.pk], by=rows.olga, action="fixed", note="repaired"),
        CLOSE,
    ),
    "reopen": (lambda rows: operations.reopen(rows.resolved.pk, by=rows.olga), CLOSE),
    "retry_failures": (lambda rows: operations.retry_failures([rows.failure.pk], by=rows.olga), CLOSE),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("times", [1, TRIES])
def test_no_request_fails_for_one_deadlock_and_none_is_repeated_for_ever(deed: str, times: int) -> None:
    policy = policy_of(job := make_job()).as_json()
    rows = Rows(
        olga=make_operator(),
        waiting=make_occurrence(job, next_attempt_at=NOON, policy=policy),
        failed=(failed := make_occurrence(status=Status.FAILED)),
        failure=make_failure(failed),
        resolved=make_failure(resolved_at=NOON, action="fixed"),
    )
    ask, statement = DEEDS[deed]
    deadlocks = Deadlocks(times, statement)
    with connection.execute_wrapper(deadlocks):
        if times == 1:
            ask(rows)
        else:
            with pytest.raises(OperationalError, match="made up"):
                ask(rows)
    assert deadlocks.left == 0


@pytest.mark.parametrize(("times", "status"), [(1, 202), (TRIES, 503)])
def test_a_request_with_an_idempotency_key_is_made_again_as_a_whole(olga: User, times: int, status: int) -> None:
    job, api = make_job(), Api(olga)
    with connection.execute_wrapper(Deadlocks(times, "pg_notify")):
        answer = api.post(f"/jobs/{job.pk}/trigger-batch", {"items": [{}, {}]}, key="k")
    assert answer.status_code == status
    assert Occurrence.objects.count() == (2 if status == 202 else 0)
    assert api.post(f"/jobs/{job.pk}/trigger-batch", {"items": [{}, {}]}, key="k").status_code == 202
    assert Occurrence.objects.count() == 2


# ── a failure is opened again while something else happens to its occurrence ───────────────────────


def test_of_two_failures_of_one_occurrence_that_are_opened_at_once_the_second_is_superseded(
    meanwhile: Any, olga: User
) -> None:
    occurrence = make_occurrence(status=Status.FAILED)
    first, second = (make_failure(occurrence, resolved_at=NOON, action="fixed") for _ in range(2))
    has_it = Event()
    other = meanwhile(lambda: locked_and_then(occurrence, has_it, lambda: operations.reopen(first.pk, by=olga)))
    assert has_it.wait(PATIENCE_SECONDS)
    with pytest.raises(NotPossibleNow) as refused:
        operations.reopen(second.pk, by=olga)
    other.result(PATIENCE_SECONDS)
    assert refused.value.code == "superseded"
    assert FailedOccurrence.objects.get(resolved_at=None) == first


def test_a_failure_is_not_opened_beside_a_retry_of_its_occurrence(meanwhile: Any, olga: User) -> None:
    failure = make_failure(resolved_at=NOON, action="fixed")
    occurrence = failure.occurrence
    assert occurrence is not None
    has_it = Event()
    other = meanwhile(lambda: locked_and_then(occurrence, has_it, lambda: operations.retry(occurrence.pk, by=olga)))
    assert has_it.wait(PATIENCE_SECONDS)
    with pytest.raises(NotPossibleNow) as refused:
        operations.reopen(failure.pk, by=olga)
    other.result(PATIENCE_SECONDS)
    assert refused.value.code == "superseded"
    assert not FailedOccurrence.objects.filter(resolved_at=None).exists()


# ── what is old is deleted while somebody needs it ─────────────────────────────────────────────────


def test_a_run_that_is_being_started_again_is_not_forgotten(meanwhile: Any, olga: User) -> None:
    long_ago = NOON - timedelta(days=400)
    occurrence = make_occurrence(status=Status.FAILED, at=long_ago, id=first_at(long_ago))
    is_started, may_end = Event(), Event()

    @transaction.atomic
    def start_again() -> None:
        operations.retry(occurrence.pk, by=olga, now=NOON)
        is_started.set()
        may_end.wait(PATIENCE_SECONDS)

    other = meanwhile(start_again)
    assert is_started.wait(PATIENCE_SECONDS)
    assert Retention().tick(now=NOON) == 0
    may_end.set()
    other.result(PATIENCE_SECONDS)
    occurrence.refresh_from_db()
    assert occurrence.status == Status.QUEUED
