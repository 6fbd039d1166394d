"""Who is there: what an instance says about itself and its job types, and what the scheduler makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import InvalidDefinition
from jobs.models import JobType
from occurrences import operations
from occurrences.lifecycle.dispatch import Dispatcher
from occurrences.lifecycle.intake import Intake
from occurrences.models import FailedOccurrence, Occurrence
from tests.db.reports import ANNA, BERT, at, heartbeat, report
from tests.factories import NOON, make_job
from tickwork.contracts import JobTypeInfo, Registered, Stopped
from workers_app.models import Worker, WorkerInstance

pytestmark = pytest.mark.django_db


def registered(*types: JobTypeInfo, **values: Any) -> Registered:
    said = {"at": NOON, "host": "host-1", "pid": 7, "version": "1.2", "concurrency": 4, **values}
    return Registered(job_types=list(types), **said)


def test_a_registration_notes_worker_instance_and_job_types(intake: Intake) -> None:
    work = JobTypeInfo(
        name="work", description="Does it.", data_schema={"type": "object"}, result_schema={"type": "number"},
        timeout_seconds=5, max_attempts=7, retry_preset="flare", isolation="process",
    )  # fmt: skip
    intake.apply([report(registered(work))], now=at(1))
    instance = WorkerInstance.objects.get()
    assert (instance.name, instance.worker_id, instance.host, instance.pid) == (ANNA, "steady", "host-1", 7)
    assert (instance.version, instance.concurrency, instance.job_types) == ("1.2", 4, ["work"])
    assert (instance.started_at, instance.last_heartbeat_at, instance.worker_clock_at) == (at(1), at(1), NOON)
    job_type = JobType.objects.get()
    assert (job_type.worker, job_type.name, job_type.description) == ("steady", "work", "Does it.")
    assert job_type.defaults == {"timeout_seconds": 5, "max_attempts": 7, "retry_preset": "flare"}
    assert (job_type.data_schema, job_type.result_schema) == ({"type": "object"}, {"type": "number"})
    assert (job_type.isolation, job_type.first_seen_at) == ("process", at(1))


def test_registering_again_renews_what_changed_and_keeps_when_it_was_first_seen(intake: Intake) -> None:
    intake.apply([report(registered(JobTypeInfo(name="work", max_attempts=7)))], now=at(1))
    intake.apply([report(Stopped(at=NOON))], now=at(2))
    intake.apply([report(registered(JobTypeInfo(name="work"), version="1.3"))], now=at(3))
    instance, job_type = WorkerInstance.objects.get(), JobType.objects.get()
    assert (instance.version, instance.started_at, instance.stopped_at) == ("1.3", at(1), None)
    assert (job_type.defaults, job_type.first_seen_at, job_type.last_seen_at) == ({}, at(1), at(3))
    assert Worker.objects.get().first_seen_at == at(1)


def test_a_heartbeat_of_an_instance_that_was_never_registered_is_noted(intake: Intake) -> None:
    intake.apply([report(heartbeat(), instance=BERT)], now=at(1))
    assert WorkerInstance.objects.get().name == BERT


def test_a_goodbye_is_kept_and_a_later_heartbeat_takes_it_back(intake: Intake) -> None:
    intake.apply([report(registered(), heartbeat(), Stopped(at=NOON))], now=at(1))
    assert WorkerInstance.objects.get().stopped_at == at(1)
    intake.apply([report(heartbeat())], now=at(2))
    assert WorkerInstance.objects.get().stopped_at is None


def test_the_job_types_defaults_hold_from_the_registration_on(intake: Intake) -> None:
    job = make_job()
    operations.trigger(job, now=NOON)
    intake.apply([report(registered(JobTypeInfo(name="work", max_attempts=9, timeout_seconds=5)))], now=at(1))
    operations.trigger(job, now=at(2))
    rows = Occurrence.objects.order_by("created_at").values_list("max_attempts", "timeout_seconds")
    assert list(rows) == [(3, 1800), (9, 5)]


@pytest.mark.parametrize(
    "wrong", [{"retry_preset": "nonsense"}, {"max_attempts": 0}, {"timeout_seconds": -1.0}, {"max_attempts": 10**6}]
)
def test_a_default_that_no_policy_can_be_made_of_is_ignored_and_its_jobs_run(
    intake: Intake, wrong: dict[str, Any]
) -> None:
    job = make_job(cron="* * * * *", now=at(-60))
    intake.apply([report(registered(JobTypeInfo(name="work", **wrong)))], now=at(-1))
    assert JobType.objects.get().defaults == {}
    Dispatcher().tick(now=NOON)
    assert Occurrence.objects.filter(job=job).exists()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"properties": {"name": {"pattern": "("}}},
    ],
    ids=["no schema", "dangling", "endless", "remote", "pattern"],
)
def test_a_schema_that_cannot_be_used_checks_nothing_and_its_jobs_run(intake: Intake, schema: dict[str, Any]) -> None:
    intake.apply([report(registered(JobTypeInfo(name="work", data_schema=schema)))], now=NOON)
    operations.trigger(make_job(), data={"name": "x"}, now=at(1))
    assert Occurrence.objects.count() == 1


def test_data_that_do_not_match_the_registered_schema_are_refused(intake: Intake) -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}}
    intake.apply([report(registered(JobTypeInfo(name="work", data_schema=schema)))], now=NOON)
    with pytest.raises(InvalidDefinition) as refused:
        operations.trigger(make_job(), data={"rows": [1, "two"]}, now=at(1))
    assert refused.value.fields == {"data": ["rows.1: 'two' is not of type 'integer'"]}
    assert not FailedOccurrence.objects.exists()
