"""What is known about a job type: the author's defaults and the schema of its data, remembered for a few seconds.

Asked by whoever makes occurrences and by whoever edits jobs; a job type that no worker has registered yet has
neither, and a job may still name it: its runs wait for a worker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from jobs.conf import SchedulerSettings, conf
from jobs.errors import InvalidDefinition
from jobs.keepable import fault
from jobs.models import Job, JobType
from jobs.policies import DEFAULTS, FIELDS, ResolvedPolicy, resolve
from tickwork.logs import get_logger

log = get_logger("tickwork.job_types")
REMEMBERED_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class JobTypeFacts:
    """A registered job type: its author's policy defaults and, if it has a usable schema, the validator of its data."""

    defaults: Mapping[str, Any]
    validator: Draft202012Validator | None


_known: dict[tuple[str, str], tuple[float, JobTypeFacts | None]] = {}


def find(worker: str, name: str) -> JobTypeFacts | None:
    """The facts about a job type, at most REMEMBERED_SECONDS old; None when no worker registered it."""
    read_at, facts = _known.get((worker, name), (float("-inf"), None))
    if time.monotonic() - read_at > REMEMBERED_SECONDS:
        row = JobType.objects.filter(worker=worker, name=name).values_list("defaults", "data_schema").first()
        facts = JobTypeFacts(row[0], _validator(row[1])) if row else None
        _known[worker, name] = (time.monotonic(), facts)
    return facts


def forget() -> None:
    """Read everything anew (after a registration, and between tests)."""
    _known.clear()


def _validator(schema: dict[str, Any]) -> Draft202012Validator | None:
    """None for no schema, and for one that is no valid schema: a worker's mistake must not block its jobs."""
    if not schema:
        return None
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return None
    return Draft202012Validator(schema, registry=Registry())  # an empty registry: nothing is ever fetched


def check_data(worker: str, job_type: str, data: Any) -> str:
    """The job data as JSON text.

    Raises InvalidDefinition naming `data` when it is no object, is larger than `max_data_bytes`, cannot be JSON,
    or does not match the schema that the job type registered.
    """
    if not isinstance(data, dict):
        raise _invalid("The data must be a JSON object.")
    if not_kept := fault(data):
        raise _invalid(": ".join(part for part in not_kept if part))
    try:
        text = msgspec.json.encode(data).decode()
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise _invalid(f"The data cannot be written as JSON: {error}") from None
    if (size := len(text.encode())) > conf().max_data_bytes:
        raise _invalid(f"The data are {size} bytes of JSON; at most {conf().max_data_bytes} are allowed.")
    facts = find(worker, job_type)
    if facts and facts.validator and (mismatch := _mismatch(facts.validator, data)):
        where = ".".join(str(part) for part in mismatch.absolute_path)
        raise _invalid(f"{where}: {mismatch.message}" if where else mismatch.message)
    return text


def _mismatch(validator: Draft202012Validator, data: Any) -> ValidationError | None:
    """The worst mismatch; none for a schema that refers to what is not there or to itself, a worker's mistake."""
    try:
        mismatch: ValidationError | None = best_match(validator.iter_errors(data))
    except (Unresolvable, RecursionError, re.error) as error:
        log.warning("job_types.schema_unusable", reason=type(error).__name__)
        return None
    return mismatch


def _invalid(message: str) -> InvalidDefinition:
    return InvalidDefinition("The job data are not valid.", fields={"data": [message]})


def policy_of(job: Job, call: Mapping[str, Any] | None = None) -> ResolvedPolicy:
    """The policy of an occurrence of this job: call, job, job type, settings, in this order.

    Raises ValueError that names the field when a value is not allowed.
    """
    return policy_and_text(job, call)[0]


def policy_and_text(job: Job, call: Mapping[str, Any] | None = None) -> tuple[ResolvedPolicy, str]:
    """`policy_of` with its JSON text, both remembered as long as nothing that they come from changes."""
    facts = find(job.worker, job.job_type)
    own = tuple(getattr(job, name) for name in FIELDS)
    if call:
        return _resolved(own, facts, conf(), call)
    return _remembered(own, facts, conf())


def _resolved(
    own: tuple[Any, ...], facts: JobTypeFacts | None, settings: SchedulerSettings, call: Mapping[str, Any]
) -> tuple[ResolvedPolicy, str]:
    policy = resolve(
        call=call,
        job=dict(zip(FIELDS, own, strict=True)),
        job_type=facts.defaults if facts else {},
        setting={name: getattr(settings, f"default_{name}") for name in DEFAULTS},
    )
    return policy, msgspec.json.encode(policy.as_json()).decode()


@lru_cache(maxsize=4096)
def _remembered(
    own: tuple[Any, ...], facts: JobTypeFacts | None, settings: SchedulerSettings
) -> tuple[ResolvedPolicy, str]:
    return _resolved(own, facts, settings, {})
