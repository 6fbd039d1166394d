"""What people and programs ask for: run a job, cancel, retry, resolve. The pages, the admin and the API all come here.

Each function does all of it in one transaction or raises one of `jobs.errors`. A transaction that the database gives up
for another one's sake is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from jobs.errors import InvalidDefinition, NotKnown, NotPossibleNow
from jobs.job_types import check_data
from jobs.models import Job
from jobs.policies import FIELDS
from jobs.transactions import made_again
from occurrences import births, live, transitions
from occurrences.models import FailedOccurrence, Occurrence
from occurrences.models.occurrence import FAILED
from occurrences.run import Run, change

Data = dict[str, Any]
MAX_BATCH = 10_000


def trigger(
    job: Job,
    *,
    data: Data | None = None,
    by: str = "",
    trigger: str = "manual",
    call: dict[str, Any] | None = None,
    now: datetime | None = None,
) -> UUID:
    """Run the job now, whatever its schedule; returns the new occurrence's id.

    `data` replaces the job's data; `call` overrides policy values (for example max_attempts) for this run only.
    Raises InvalidDefinition when the data do not match the job type's schema, NotPossibleNow when the job was retired.
    """
    return trigger_many(job, [data], by=by, trigger=trigger, call=call, now=now)[0]


@made_again
def trigger_many(
    job: Job,
    datas: Sequence[Data | None],
    *,
    by: str = "",
    trigger: str = "manual",
    call: dict[str, Any] | None = None,
    now: datetime | None = None,
) -> list[UUID]:
    """Run the job once for each entry of `datas` (None: with the job's own data), in one transaction; all or none.

    Returns the ids in the same order. Raises as `trigger`; a field error of entry i is named `data[i]`.
    """
    now = now or timezone.now()
    if job.retired_at:
        raise NotPossibleNow(f"The job {job.name!r} was retired.", code="job_retired")
    if len(datas) > MAX_BATCH:
        raise InvalidDefinition(f"{len(datas)} runs in one call; at most {MAX_BATCH} are allowed.")
    if unknown := sorted(set(call or ()) - set(FIELDS)):
        raise InvalidDefinition(
            "Some policy values are not known.", fields={name: ["There is no such policy value."] for name in unknown}
        )
    try:
        template = births.template(job, call=call)
    except ValueError as error:
        raise InvalidDefinition(str(error)) from None
    born = [
        births.Birth(
            template=template,
            trigger=trigger,
            by=by,
            data=None if data is None else _data_text(job, data, index, len(datas)),
        )
        for index, data in enumerate(datas)
    ]
    if len(born) == 1:
        births.create(born, now=now)  # one statement, so no transaction around it
    else:
        with transaction.atomic():
            births.create(born, now=now)
    return [birth.id for birth in born]


def _data_text(job: Job, data: Data, index: int, count: int) -> str:
    try:
        return check_data(job.worker, job.job_type, data)
    except InvalidDefinition as error:
        if count == 1:
            raise
        raise InvalidDefinition(str(error), fields={f"data[{index}]": error.fields["data"]}) from None


@made_again
def cancel(occurrence_id: UUID, *, by: str, reason: str = "", now: datetime | None = None) -> str:
    """Cancel an occurrence: `cancelled` when it was waiting, `requested` when its worker is asked and will confirm.

    Raises NotKnown, and NotPossibleNow when it is at its end already.
    """
    now = now or timezone.now()
    answer: str = _change(occurrence_id, lambda run: transitions.cancel(run, by=by, reason=reason, now=now), now)
    if answer == "final":
        raise NotPossibleNow("The occurrence is at its end already and cannot be cancelled.", code="already_final")
    return answer


@made_again
def retry(occurrence_id: UUID, *, by: AbstractBaseUser, data: Data | None = None, now: datetime | None = None) -> None:
    """Start a finished occurrence again under the same id, with its data or with edited ones; its open failure counts
    as retried.

    Raises NotKnown, NotPossibleNow when it is not at its end, InvalidDefinition for data that do not fit.
    """
    with transaction.atomic():
        answers = _start_again([occurrence_id], by=by, data=data, now=now or timezone.now())
    if not _answer(answers, occurrence_id):
        raise NotPossibleNow("The occurrence is not at its end; only a finished one can be retried.", code="not_final")


def _start_again(
    ids: Sequence[UUID], *, by: AbstractBaseUser, data: Data | None, now: datetime, note: str = ""
) -> dict[UUID, bool]:
    """Whether each known one of these was at its end and is started again, and its open failure closed."""
    user = by.get_username()
    texts: dict[UUID, str] = {}
    if data is not None:
        types = Occurrence.objects.filter(pk__in=ids).values_list("pk", "worker", "job_type")
        texts = {pk: check_data(worker, job_type, data) for pk, worker, job_type in types}
    answers: dict[UUID, bool] = change(
        ids, lambda run: transitions.retry_final(run, by=user, now=now, data=texts.get(run.id)), now=now
    )
    started = FailedOccurrence.objects.filter(occurrence__in=[pk for pk, is_started in answers.items() if is_started])
    _close(started, by=by, action=FailedOccurrence.Action.RETRIED, note=note or f"retried by {user}", now=now)
    return answers


@made_again
def retry_now(occurrence_id: UUID, *, by: str, now: datetime | None = None) -> None:
    """End an occurrence's wait for its next attempt. Raises NotKnown, and NotPossibleNow when it is not waiting."""
    now = now or timezone.now()
    if not _change(occurrence_id, lambda run: transitions.retry_now(run, by=by, now=now), now):
        raise NotPossibleNow("The occurrence is not waiting for its next attempt.", code="not_waiting")


def _change(occurrence_id: UUID, decide: Callable[[Run], Any], now: datetime) -> Any:
    return _answer(change([occurrence_id], decide, now=now), occurrence_id)


def _answer(answers: dict[UUID, Any], occurrence_id: UUID) -> Any:
    if occurrence_id not in answers:
        raise NotKnown("There is no such occurrence.")
    return answers[occurrence_id]


# ── failures ───────────────────────────────────────────────────────────────────────────────────────


@made_again
def resolve(
    failure_ids: Iterable[UUID], *, by: AbstractBaseUser, action: str, note: str, now: datetime | None = None
) -> int:
    """Close open failures with an action (`fixed` or `ignored`) and a note; returns how many were open.

    Raises InvalidDefinition for another action or an empty note.
    """
    allowed = [FailedOccurrence.Action.FIXED.value, FailedOccurrence.Action.IGNORED.value]
    if action not in allowed:
        raise InvalidDefinition(
            "The action is not known.", fields={"action": [f"Allowed are {' and '.join(allowed)}."]}
        )
    if not note.strip():
        raise InvalidDefinition("A note is needed.", fields={"note": ["Say what was done, for whoever looks next."]})
    failures = FailedOccurrence.objects.filter(pk__in=list(failure_ids))
    return _close(failures, by=by, action=action, note=note.strip(), now=now or timezone.now())


def _close(failures: QuerySet[FailedOccurrence], *, by: AbstractBaseUser, action: str, note: str, now: datetime) -> int:
    """Close those that are open; returns how many were."""
    person: Any = by
    count = failures.filter(resolved_at=None).update(resolved_at=now, resolved_by=person, action=action, note=note)
    transaction.on_commit(live.announce_failures)
    return count


@made_again
def reopen(failure_id: UUID, *, by: AbstractBaseUser) -> None:
    """Open a resolved failure again. Raises NotKnown, and NotPossibleNow when it is open, or its occurrence has
    another open one or goes on.
    """
    with transaction.atomic():
        # The occurrence first, as a move does: until the end of this one nothing moves it or opens another failure.
        occurrences = Occurrence.objects.select_for_update(of=("self",), no_key=True).filter(failures=failure_id)
        occurrence = occurrences.only("status").first()
        failure = FailedOccurrence.objects.select_for_update(of=("self",)).filter(pk=failure_id).first()
        if failure is None:
            raise NotKnown("There is no such failure.")
        if failure.resolved_at is None:
            raise NotPossibleNow("The failure is open already.", code="already_open")
        if occurrence is not None:
            same = FailedOccurrence.objects.filter(occurrence=occurrence, resolved_at=None)
            if same.exists() or occurrence.status not in FAILED:
                raise NotPossibleNow(
                    "Its occurrence went on since; look at the newer failure or the occurrence.", code="superseded"
                )
        failure.resolved_at, failure.resolved_by, failure.action = None, None, ""
        failure.save(update_fields=["resolved_at", "resolved_by", "action"])
        transaction.on_commit(live.announce_failures)


@made_again
def retry_failures(
    failure_ids: Iterable[UUID],
    *,
    by: AbstractBaseUser,
    note: str = "",
    data: Data | None = None,
    now: datetime | None = None,
) -> int:
    """Retry the occurrences of open failures, each with its own data or all with edited ones; returns how many were
    started again.

    Failures that are resolved, or belong to no occurrence, are left alone.
    """
    now = now or timezone.now()
    failures = FailedOccurrence.objects.filter(
        pk__in=list(failure_ids), resolved_at=None, occurrence__isnull=False
    ).values_list("occurrence", flat=True)
    with transaction.atomic():
        return sum(_start_again(list(failures), by=by, data=data, note=note, now=now).values())
