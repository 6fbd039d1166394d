"""Definitions: what may be said about a job, what each edit leaves behind, pause, enable, retire."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from jobs import definitions
from jobs.errors import InvalidDefinition, NotPossibleNow
from jobs.models import Job, JobVersion
from occurrences.lifecycle.dispatch import Dispatcher
from occurrences.models import Occurrence
from tests.db.conftest import SetConf
from tests.db.reports import at
from tests.factories import NOON, make_job, make_job_type, make_operator

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
EVERY_MINUTE = "* * * * *"
BAD_NAME = "Letters, digits, '-' and '_', at most 64, beginning with a letter or digit."
NEVER_RUNS = "execute_at lies outside starts_at and ends_at; it would never run"
NAIVE = datetime(2030, 1, 15, 12, 0)  # a person's clock, as forms send it


def refused(**fields: Any) -> dict[str, list[str]]:
    """The messages by field with which a new job is refused."""
    values: dict[str, Any] = {"name": "a job", "worker": "steady", "job_type": "work", **fields}
    with pytest.raises(InvalidDefinition) as error:
        definitions.create_job(by=None, **values)
    assert not Job.objects.exists()
    return error.value.fields


# ── every message, by field ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"name": ""}, "name", "This field cannot be blank."),
        ({"name": "x" * 201}, "name", "Ensure this value has at most 200 characters (it has 201)."),
        ({"name": None}, "name", "This field cannot be null."),
        ({"worker": ""}, "worker", "This field cannot be blank."),
        ({"worker": "a.b"}, "worker", BAD_NAME),
        ({"job_type": "a b"}, "job_type", BAD_NAME),
        ({"job_type": "-a"}, "job_type", BAD_NAME),
        ({"data": []}, "data", "The data must be a JSON object."),
        ({"cron": "* * *"}, "cron", "cron has 3 fields; give 5 (minute hour day month weekday) or 6 (second first)"),
        ({"cron": "61 * * * *"}, "cron", None),
        ({"cron": "0 0 30 2 *"}, "cron", None),
        ({"cron": "x" * 201}, "cron", None),
        (
            {"cron": EVERY_MINUTE, "execute_at": NOON},
            "execute_at",
            "A job has a cron schedule or a time to execute at, not both.",
        ),
        ({"execute_at": NAIVE}, "execute_at", "Needs a time zone offset."),
        ({"execute_at": "soon"}, "execute_at", None),
        (
            {"timezone": "Mars/Olympus"},
            "timezone",
            "time zone 'Mars/Olympus' is not known; give an IANA name such as Europe/Berlin or UTC",
        ),
        ({"timezone": ""}, "timezone", "This field cannot be blank."),
        ({"timezone": None}, "timezone", "This field cannot be null."),
        ({"starts_at": NAIVE}, "starts_at", "Needs a time zone offset."),
        ({"starts_at": "never"}, "starts_at", None),
        ({"ends_at": NAIVE}, "ends_at", "Needs a time zone offset."),
        ({"starts_at": NOON, "ends_at": NOON}, "ends_at", "Must be later than starts_at."),
        ({"starts_at": NOON, "ends_at": NAIVE}, "ends_at", "Needs a time zone offset."),
        ({"execute_at": NOON, "starts_at": NOON + MINUTE}, "execute_at", NEVER_RUNS),
        ({"execute_at": NOON, "ends_at": NOON - MINUTE}, "execute_at", NEVER_RUNS),
        ({"jitter_seconds": -1}, "jitter_seconds", "Must be from 0 to 2592000 seconds."),
        ({"jitter_seconds": "some"}, "jitter_seconds", None),
        ({"jitter_seconds": float("nan")}, "jitter_seconds", "Must be from 0 to 2592000 seconds."),
        ({"dst_gap": "jump"}, "dst_gap", None),
        ({"dst_overlap": "thrice"}, "dst_overlap", None),
        ({"misfire_policy": "panic"}, "misfire_policy", None),
        ({"misfire_limit": 501}, "misfire_limit", "Must be from 0 to 500."),
        ({"misfire_limit": -1}, "misfire_limit", "Must be from 0 to 500."),
        ({"start_deadline_seconds": 0}, "start_deadline_seconds", "Must be from 1 to 2592000 seconds."),
        ({"concurrent_execution_policy": 9}, "concurrent_execution_policy", None),
        ({"timeout_seconds": 0}, "timeout_seconds", "Must be from 0.1 to 2592000 seconds."),
        ({"timeout_seconds": 1e9}, "timeout_seconds", "Must be from 0.1 to 2592000 seconds."),
        ({"max_attempts": 0}, "max_attempts", "Must be from 1 to 100."),
        ({"max_attempts": 101}, "max_attempts", "Must be from 1 to 100."),
        ({"max_attempts": "many"}, "max_attempts", None),
        (
            {"retry_preset": "nonsense"},
            "retry_preset",
            "retry_preset: 'nonsense' (from the job) is not known; allowed are default, milvaion, flare, outbox",
        ),
        ({"retry_base_seconds": -1}, "retry_base_seconds", "Must be from 0 to 2592000 seconds."),
        ({"retry_cap_seconds": 1e300}, "retry_cap_seconds", "Must be from 0 to 2592000 seconds."),
        ({"retry_jitter_seconds": -1}, "retry_jitter_seconds", "Must be from 0 to 2592000 seconds."),
        ({"retry_on_timeout": "perhaps"}, "retry_on_timeout", None),
        ({"retry_on_zombie": "perhaps"}, "retry_on_zombie", None),
        ({"on_worker_unavailable": "shrug"}, "on_worker_unavailable", None),
        ({"queue_ttl_seconds": 0}, "queue_ttl_seconds", "Must be from 0.001 to 2592000 seconds."),
        ({"queue_ttl_seconds": 30 * 86400 + 1}, "queue_ttl_seconds", "Must be from 0.001 to 2592000 seconds."),
        ({"auto_disable_threshold": -1}, "auto_disable_threshold", "Must be from 0 to 1000."),
        ({"auto_disable_threshold": 1001}, "auto_disable_threshold", "Must be from 0 to 1000."),
        ({"auto_disable_threshold": 2**80}, "auto_disable_threshold", "Must be from 0 to 1000."),
        (
            {"auto_disable_window_seconds": 0},
            "auto_disable_window_seconds",
            "Must be from 1 to 2592000 seconds.",
        ),
        (
            {"auto_reenable_after_seconds": -1},
            "auto_reenable_after_seconds",
            "Must be from 0 to 2592000 seconds.",
        ),
        ({"crn": EVERY_MINUTE}, "crn", "There is no such field. Did you mean cron?"),
        ({"is_active": True, "version": 7}, "version", "There is no such field."),
        ({"zzz": 1}, "zzz", "There is no such field."),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_value_is_refused_with_a_message_at_its_own_field(
    fields: dict[str, Any], field: str, message: str | None
) -> None:
    errors = refused(**fields)
    assert list(errors) == [field]
    assert errors[field]
    if message is not None:
        assert errors[field] == [message]


def test_all_messages_come_at_once() -> None:
    errors = refused(name="", cron="nonsense", timezone="Mars", max_attempts=0, data=7, jitter_seconds=-1)
    assert set(errors) == {"name", "cron", "timezone", "max_attempts", "data", "jitter_seconds"}


def test_the_jobs_data_must_match_the_schema_of_its_type() -> None:
    schema = {"type": "object", "required": ["to"], "additionalProperties": False}
    make_job_type(name="work", data_schema=schema)
    assert refused(data={}) == {"data": ["'to' is a required property"]}


@pytest.mark.parametrize("cron", ["", EVERY_MINUTE, "0 */5 * * * *", "@hourly", " 0 12 * * MON-FRI "])
def test_a_sound_definition_is_taken_and_trimmed(cron: str) -> None:
    job = make_job(cron=cron, name="  a job ")
    assert (job.cron, job.name, job.version) == (cron.strip(), "a job", 1)


# ── versions ───────────────────────────────────────────────────────────────────────────────────────


def test_each_edit_is_a_version_with_its_author_and_the_whole_definition() -> None:
    olga = make_operator()
    job = make_job(cron=EVERY_MINUTE, starts_at=NOON, now=at(-60))
    definitions.update_job(job, by=olga, now=at(1), description="new", max_attempts=7)
    first, second = JobVersion.objects.filter(job=job).order_by("number")
    assert (first.number, first.created_by, first.created_at) == (1, None, at(-60))
    assert (second.number, second.created_by, second.created_at) == (2, olga, at(1))
    assert (first.definition["max_attempts"], second.definition["max_attempts"]) == (None, 7)
    assert second.definition["starts_at"] == "2030-01-15T12:00:00Z"
    job.refresh_from_db()
    assert (job.version, job.updated_at) == (2, at(1))


def test_an_edit_that_changes_nothing_makes_no_version() -> None:
    job = make_job(description="same")
    definitions.update_job(job, by=None, description=" same ")
    assert JobVersion.objects.count() == 1


def test_a_refused_edit_changes_nothing() -> None:
    job = make_job(cron=EVERY_MINUTE)
    with pytest.raises(InvalidDefinition):
        definitions.update_job(job, by=None, cron="nonsense", description="new")
    job.refresh_from_db()
    assert (job.cron, job.description, job.version) == (EVERY_MINUTE, "", 1)


def test_an_edit_of_the_schedule_moves_the_next_tick_and_any_other_edit_leaves_it() -> None:
    job = make_job(cron=EVERY_MINUTE, now=NOON)
    definitions.update_job(job, by=None, now=at(30), description="new")
    job.refresh_from_db()
    assert job.next_run_at == at(60)
    definitions.update_job(job, by=None, now=at(30), cron="0 13 * * *")
    job.refresh_from_db()
    assert job.next_run_at == at(3600)
    definitions.update_job(job, by=None, now=at(30), timezone="Europe/Berlin")
    job.refresh_from_db()
    assert job.next_run_at == at(86_400)
    definitions.update_job(job, by=None, now=at(30), cron="")
    job.refresh_from_db()
    assert job.next_run_at is None


def test_an_edit_never_brings_back_a_tick_that_the_job_had() -> None:
    job = make_job(cron=EVERY_MINUTE, now=NOON - MINUTE)
    Dispatcher().tick(now=NOON)
    definitions.update_job(job, by=None, now=NOON - timedelta(seconds=1), cron="* * * * * *")  # a clock set back
    job.refresh_from_db()
    assert job.next_run_at == at(1)


def test_an_edit_of_a_paused_job_does_not_start_it() -> None:
    job = definitions.pause(make_job(cron=EVERY_MINUTE), by=None)
    definitions.update_job(job, by=None, cron="0 13 * * *")
    job.refresh_from_db()
    assert (job.is_active, job.next_run_at) == (False, None)


# ── pause, enable, retire ──────────────────────────────────────────────────────────────────────────


def test_pausing_keeps_who_when_and_why_and_stops_the_schedule() -> None:
    job = make_job(cron=EVERY_MINUTE, now=NOON)
    definitions.pause(job, by=make_operator(), note="the disk is full", now=at(1))
    job.refresh_from_db()
    assert (job.is_active, job.next_run_at, job.disabled_at) == (False, None, at(1))
    assert (job.disabled_by, job.was_disabled) == ("person", False)
    assert job.disabled_reason == "paused by olga: the disk is full"
    definitions.pause(job, by=None, now=at(2))
    job.refresh_from_db()
    assert job.disabled_at == at(1)
    assert Dispatcher().tick(now=at(600)) == 0


@pytest.mark.parametrize("policy", ["fire_once", "catch_up", "skip"])
def test_enabling_does_not_make_up_for_the_ticks_in_between(policy: str) -> None:
    job = make_job(cron=EVERY_MINUTE, now=NOON, misfire_policy=policy)
    definitions.pause(job, by=None, now=at(1))
    definitions.enable(job, by=None, now=at(601))
    assert Dispatcher().tick(now=at(602)) == 0
    Dispatcher().tick(now=at(660))
    assert Occurrence.objects.get().scheduled_for == at(660)
    job.refresh_from_db()
    assert (job.disabled_by, job.disabled_at, job.disabled_reason) == ("", None, "")


def test_a_job_whose_definition_cannot_be_used_any_more_is_not_enabled() -> None:
    job = make_job(cron=EVERY_MINUTE, now=NOON)
    Job.objects.filter(pk=job.pk).update(timezone="Mars/Olympus")
    Dispatcher().tick(now=at(60))
    with pytest.raises(InvalidDefinition) as error:
        definitions.enable(job, by=None)
    assert list(error.value.fields) == ["timezone"]
    assert Job.objects.disabled().get() == job
    definitions.update_job(job, by=None, timezone="UTC")
    assert definitions.enable(job, by=None).is_active


def test_a_one_time_job_that_was_paused_over_its_time_runs_when_it_is_enabled_and_only_then() -> None:
    job = make_job(execute_at=NOON, now=at(-60))
    definitions.pause(job, by=None)
    assert Dispatcher().tick(now=at(60)) == 0
    definitions.enable(job, by=None, now=at(61))
    Dispatcher().tick(now=at(62))
    definitions.pause(job, by=None)
    definitions.enable(job, by=None, now=at(63))
    assert Dispatcher().tick(now=at(64)) == 0
    assert Occurrence.objects.count() == 1


def test_a_retired_job_is_over_for_good_and_its_history_stays() -> None:
    job = make_job(cron=EVERY_MINUTE, now=at(-60))
    Dispatcher().tick(now=NOON)
    definitions.retire(job, by=None, now=at(1))
    job.refresh_from_db()
    assert (job.is_active, job.next_run_at, job.retired_at) == (False, None, at(1))
    assert not Job.objects.existing().exists()
    assert Occurrence.objects.count() == 1
    changes: list[Any] = [
        lambda: definitions.update_job(job, by=None, description="new"),
        lambda: definitions.pause(job, by=None),
        lambda: definitions.enable(job, by=None),
        lambda: definitions.retire(job, by=None),
    ]
    for change in changes:
        with pytest.raises(NotPossibleNow) as refused_now:
            change()
        assert refused_now.value.code == "job_retired"


def test_the_samples_are_removed_together_and_nothing_else() -> None:
    own = make_job()
    make_job(is_sample=True)
    make_job(is_sample=True)
    assert definitions.remove_samples(by=None) == 2
    assert list(Job.objects.existing()) == [own]
    assert definitions.remove_samples(by=None) == 0


def test_the_coming_ticks_are_those_of_an_active_job_with_a_schedule() -> None:
    assert definitions.upcoming(make_job(cron="0 * * * *"), 2, after=NOON) == [at(3600), at(7200)]
    assert definitions.upcoming(make_job(execute_at=at(60)), 5, after=NOON) == [at(60)]
    assert definitions.upcoming(make_job(), 5, after=NOON) == []
    assert definitions.upcoming(definitions.pause(make_job(cron=EVERY_MINUTE), by=None), 5, after=NOON) == []


def test_a_definition_is_as_large_as_its_settings_allow(set_conf: SetConf) -> None:
    set_conf(max_data_bytes=10)
    assert refused(data={"n": "0123456789"}) == {"data": ["The data are 18 bytes of JSON; at most 10 are allowed."]}
