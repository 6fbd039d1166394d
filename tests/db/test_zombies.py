"""Lost: what fell silent is found, and only what did."""

from __future__ import annotations

from typing import Any

import pytest

from occurrences import operations
from occurrences.lifecycle.intake import Intake
from occurrences.lifecycle.zombies import Zombies
from occurrences.models import Attempt, FailedOccurrence, LoopPass, Occurrence
from occurrences.states import Status
from tests.db import reports
from tests.db.conftest import SetConf
from tests.db.reports import (
    ANNA,
    FLAW,
    at,
    dispatches,
    finished,
    heartbeat,
    listens,
    publish_all,
    report,
    sent,
    started,
)
from tests.factories import NOON, make_job
from tickwork import contracts

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _figures(set_conf: SetConf) -> None:
    set_conf(
        heartbeat_stale_seconds=60,
        zombie_timeout_seconds=600,
        queued_backstop_seconds=420,
        default_queue_ttl_seconds=300,
        redispatch_limit=2,
    )


def running(**values: Any) -> Occurrence:
    """Heard for the last time at noon; a short timeout unless another one is given."""
    return reports.running(**{"timeout_seconds": 30, **values})


def sweep(seconds: float) -> int:
    """A pass of the detector, while somebody listens."""
    listens(until=at(seconds))
    return Zombies().tick(now=at(seconds))


def status_of(occurrence: Occurrence) -> Status:
    occurrence.refresh_from_db()
    return occurrence.status_enum


# ── running ────────────────────────────────────────────────────────────────────────────────────────


def test_running_without_a_heartbeat_becomes_unknown_and_then_fails_as_a_zombie() -> None:
    occurrence = running()
    assert sweep(60) == 0
    assert sweep(61) == 1
    assert status_of(occurrence) == Status.UNKNOWN
    assert occurrence.reason == "no heartbeat from its worker"
    assert sweep(62) == 0
    assert sweep(600) == 0
    assert sweep(601) == 1
    assert status_of(occurrence) == Status.FAILED
    assert "Zombie detected: no heartbeat for 601 s" in occurrence.reason
    failure = FailedOccurrence.objects.get()
    assert (failure.kind, failure.occurrence_id) == ("zombie", occurrence.pk)
    assert sweep(10_000) == 0


def test_what_was_never_heard_counts_from_its_start() -> None:
    occurrence = running()
    Occurrence.objects.filter(pk=occurrence.pk).update(heartbeat_at=None)
    assert sweep(61) == 1
    assert status_of(occurrence) == Status.UNKNOWN


def test_what_is_heard_is_left_alone_however_long_it_runs() -> None:
    occurrence = running()
    Occurrence.objects.filter(pk=occurrence.pk).update(heartbeat_at=at(9_990))
    assert sweep(10_000) == 0
    assert status_of(occurrence) == Status.RUNNING


def test_a_job_with_a_longer_timeout_is_given_that_time() -> None:
    occurrence = running(timeout_seconds=3600)
    sweep(61)
    assert sweep(3600) == 0
    assert sweep(3601) == 1
    assert status_of(occurrence) == Status.FAILED


def test_a_zombie_is_tried_again_when_its_job_says_so() -> None:
    occurrence = running(retry_on_zombie=True, retry_preset="milvaion", max_attempts=2)
    sweep(601)
    assert (status_of(occurrence), occurrence.attempt, occurrence.instance) == (Status.QUEUED, 2, "")
    assert occurrence.next_attempt_at == at(611)
    assert Attempt.objects.values_list("number", "outcome", "instance").get() == (1, "zombie", ANNA)
    assert dispatches(occurrence)[0].dispatch.attempt == 2
    assert not FailedOccurrence.objects.exists()

    publish_all()
    Occurrence.objects.update(status=Status.RUNNING, instance=ANNA, started_at=at(611), heartbeat_at=at(611))
    sweep(611 + 601)
    assert status_of(occurrence) == Status.FAILED  # no attempt is left
    assert FailedOccurrence.objects.get().kind == "zombie"


def test_a_zombie_whose_cancellation_was_asked_for_is_cancelled() -> None:
    occurrence = running(retry_on_zombie=True)
    operations.cancel(occurrence.pk, by="olga", reason="not today", now=at(1))
    sweep(61)
    sweep(601)
    assert (status_of(occurrence), occurrence.reason) == (Status.CANCELLED, "not today")
    assert not FailedOccurrence.objects.exists()


def test_a_zombie_that_reports_after_all_is_told_apart_from_a_result(intake: Intake) -> None:
    occurrence = running()
    sweep(601)
    intake.apply([report(heartbeat(occurrence), finished(occurrence))], now=at(700))
    assert status_of(occurrence) == Status.FAILED


def test_many_silent_occurrences_are_found_in_one_pass() -> None:
    job = make_job(timeout_seconds=30)
    operations.trigger_many(job, [None] * 30, now=NOON)
    Occurrence.objects.update(status=Status.RUNNING, instance=ANNA, started_at=NOON, heartbeat_at=NOON)
    assert sweep(61) == 30
    assert sweep(601) == 30
    assert FailedOccurrence.objects.count() == 30


def test_one_that_nobody_can_make_sense_of_does_not_keep_the_others_from_being_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, sound = running(retry_on_zombie=True, max_attempts=2), running()
    Occurrence.objects.filter(pk=broken.pk).update(policy={"retry_on_zombie": True, "retry": "never"})
    assert sweep(601) == 1
    assert (status_of(broken), status_of(sound)) == (Status.RUNNING, Status.FAILED)
    assert caplog.messages.count("zombies.run_broken") == 1


# ── silence proves nothing while nobody listens ────────────────────────────────────────────────────


def test_nothing_is_declared_lost_by_an_event_consumer_that_has_only_just_begun_to_listen() -> None:
    occurrence = running()
    listens(since=at(9_950), until=at(10_000))
    assert Zombies().tick(now=at(10_000)) == 0
    listens(since=at(9_950), until=at(10_011))
    assert Zombies().tick(now=at(10_011)) == 1
    assert status_of(occurrence) == Status.FAILED, "it was silent for longer than a zombie may be"


def test_what_workers_said_and_nobody_has_heard_yet_is_no_silence(intake: Intake) -> None:
    """An event consumer is 100 s behind."""
    occurrence = running()
    listens(until=at(30))
    assert Zombies().tick(now=at(130)) == 0
    intake.apply([report(heartbeat(occurrence))], now=at(160))  # said at 60
    listens(until=at(60))
    assert Zombies().tick(now=at(160)) == 0
    assert status_of(occurrence) == Status.RUNNING


def test_silence_does_not_grow_while_nobody_listens() -> None:
    occurrence = running()
    listens(until=at(60))
    assert Zombies().tick(now=at(10_000)) == 0
    assert status_of(occurrence) == Status.RUNNING


def test_the_consumer_that_has_heard_most_is_believed() -> None:
    occurrence = running()
    listens(until=at(100))
    LoopPass.objects.filter(process="here-1").update(process="gone-1")
    listens(since=at(100), until=at(101))
    assert Zombies().tick(now=at(101)) == 0
    assert status_of(occurrence) == Status.RUNNING


def test_nothing_is_declared_lost_when_no_consumer_ever_listened() -> None:
    occurrence, waiting = running(), sent()
    LoopPass.objects.create(role="consume_events", process="standby-1", started_at=NOON, last_pass_at=at(10_000))
    assert Zombies().tick(now=at(10_000)) == 0
    assert status_of(occurrence) == Status.RUNNING
    assert status_of(waiting) == Status.QUEUED


# ── queued and lost on the way ─────────────────────────────────────────────────────────────────────


def test_what_the_broker_lost_is_sent_again_a_bounded_number_of_times_and_then_fails() -> None:
    occurrence = sent()
    assert sweep(420) == 0
    for number, seconds in ((1, 421), (2, 421 * 2)):
        assert sweep(seconds) == 1
        assert (status_of(occurrence), occurrence.redispatch_count) == (Status.QUEUED, number)
        assert (occurrence.attempt, occurrence.queued_at) == (1, at(seconds))
        (message,) = dispatches(occurrence)
        assert message.headers[contracts.HEADER_MAYBE_DUPLICATE] == 1
        publish_all()
    assert sweep(421 * 3) == 1
    assert status_of(occurrence) == Status.FAILED
    assert FailedOccurrence.objects.get().error_message == "Zombie detected: sent 3 times, never taken by a worker"


def test_what_has_not_even_left_is_not_lost() -> None:
    occurrence = Occurrence.objects.get(pk=operations.trigger(make_job(), now=NOON))
    assert sweep(10_000) == 0
    assert status_of(occurrence) == Status.QUEUED
    assert len(dispatches(occurrence)) == 1


def test_a_job_with_a_longer_queue_time_is_given_that_time_and_a_margin() -> None:
    occurrence = sent(queue_ttl_seconds=3600)
    assert sweep(3600 + 120) == 0
    assert sweep(3600 + 121) == 1
    assert status_of(occurrence) == Status.QUEUED


def test_a_retry_that_has_just_left_after_a_long_wait_is_not_lost(intake: Intake) -> None:
    occurrence = sent(retry_preset="flare", retry_base_seconds=3000, retry_jitter_seconds=0)
    intake.apply([report(finished(occurrence, "failed", error=FLAW))], now=NOON)
    publish_all()  # the relay sent it when its time came
    assert sweep(3010) == 0
    assert sweep(3000 + 420) == 0
    assert sweep(3000 + 421) == 1


def test_what_waits_in_a_worker_for_a_free_slot_is_not_lost_while_the_worker_is_heard(intake: Intake) -> None:
    occurrence = sent()
    intake.apply([report(heartbeat(occurrence))], now=at(400))
    assert sweep(400 + 420) == 0
    assert sweep(400 + 421) == 1
    assert status_of(occurrence) == Status.QUEUED


def test_what_may_have_begun_without_anybody_hearing_it_is_not_lost_on_its_way(intake: Intake) -> None:
    occurrence = sent()
    listens(since=at(10_000), until=at(10_000))  # back after hours, and what was said meanwhile waits
    assert Zombies().tick(now=at(10_000)) == 0
    intake.apply([report(started(occurrence, when=at(5)))], now=at(10_005))
    listens(since=at(10_000), until=at(10_061))
    assert Zombies().tick(now=at(10_061)) == 0
    assert (status_of(occurrence), occurrence.redispatch_count) == (Status.RUNNING, 0)
