"""From rows to messages: what each outbox row carries and where it goes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from occurrences import messages
from tests.factories import NOON
from tickwork import contracts
from tickwork.contracts import Cancel, CommandMessage, Dispatch

OCCURRENCE, JOB = UUID(int=7), UUID(int=8)


def dispatch(**values: Any) -> messages.Outgoing:
    fields: dict[str, Any] = {
        "occurrence_id": OCCURRENCE, "job_id": JOB, "worker": "steady", "job_type": "work", "attempt": 2,
        "max_attempts": 5, "timeout_seconds": 30.0, "queue_ttl_seconds": 60.0, "queued_at": NOON,
        "facts": messages.DispatchFacts(job_name='say "hi"', data='{"n":1.0}', scheduled_for=NOON), **values,
    }  # fmt: skip
    return messages.dispatch(**fields)


def test_a_dispatch_says_what_to_run_and_copies_the_data_untouched() -> None:
    outgoing = dispatch()
    assert '"data":{"n":1.0}' in outgoing.body
    decoded = contracts.decode(Dispatch, outgoing.body.encode())
    assert (decoded.id, decoded.job_id, decoded.job_name) == (str(OCCURRENCE), str(JOB), 'say "hi"')
    assert (decoded.attempt, decoded.max_attempts, decoded.timeout_seconds, decoded.scheduled_for) == (2, 5, 30.0, NOON)


def test_its_headers_are_counted_from_the_attempt_and_mark_possible_copies() -> None:
    headers = msgspec.json.decode(dispatch().headers)
    assert headers == {
        "x-attempt": 2, "x-retry-count": 1, "x-max-retries": 4, "x-original-correlation-id": str(OCCURRENCE),
        "x-queued-at": "2030-01-15T12:00:00+00:00",
    }  # fmt: skip
    marked = msgspec.json.decode(dispatch(maybe_duplicate=True).headers)
    assert marked == headers | {"x-maybe-duplicate": 1}


def test_its_row_waits_for_its_time() -> None:
    row = dict(zip(messages.OUTBOX_COLUMNS, dispatch().row(NOON), strict=True))
    assert (row["exchange"], row["routing_key"]) == ("tickwork.jobs", f"steady.work.{OCCURRENCE}")
    assert (row["expiration_seconds"], row["next_attempt_at"], row["attempt_count"]) == (60.0, NOON, 0)
    later = NOON + timedelta(seconds=5)
    assert (
        dict(zip(messages.OUTBOX_COLUMNS, dispatch(not_before=later).row(NOON), strict=True))["next_attempt_at"]
        == later
    )


def test_a_command_goes_to_one_instance_or_to_all_of_the_worker() -> None:
    cancel = Cancel(id=str(OCCURRENCE), attempt=1, reason="no")
    one = messages.command(occurrence_id=OCCURRENCE, worker="steady", instance="steady-1", command=cancel)
    every = messages.command(occurrence_id=OCCURRENCE, worker="steady", instance="", command=cancel)
    assert (one.routing_key, every.routing_key) == ("steady.steady-1", "steady.all")
    assert contracts.decode(CommandMessage, one.body.encode()).command == cancel


def test_a_notification_is_plain_json_under_its_kind() -> None:
    outgoing = messages.notification(kind="job.auto_disabled", body={"job_id": str(JOB), "at": NOON})
    assert (outgoing.exchange, outgoing.routing_key) == ("tickwork.notifications", "job.auto_disabled")
    assert msgspec.json.decode(outgoing.body) == {"job_id": str(JOB), "at": "2030-01-15T12:00:00Z"}
