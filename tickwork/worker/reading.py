"""Reading a delivery: which attempt it brings, and whether that may be begun without asking. Pure, but for the log.

Used by `holding` for everything that arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tickwork import contracts
from tickwork.broker.base import Delivery
from tickwork.contracts import Dispatch
from tickwork.errors import ContractError
from tickwork.logs import get_logger
from tickwork.worker.jobs import Job
from tickwork.worker.store import Key

log = get_logger("tickwork.reading")


class Read(NamedTuple):
    """A delivery that was understood."""

    delivery: Delivery
    dispatch: Dispatch
    job: Job
    is_copy: bool
    """The scheduler sent it again, and says so."""
    is_doubtful: bool
    """Somebody else may have it, or nobody is to run it any more: ask before it begins."""

    @property
    def key(self) -> Key:
        return self.dispatch.id, self.dispatch.attempt


def read(
    deliveries: Sequence[Delivery], jobs: Mapping[str, Job], *, heard_since: float
) -> tuple[list[Read], list[Delivery]]:
    """What was understood, and what nobody here can run: unreadable, or of a job type that this worker has not.

    `heard_since`: Unix time from which on commands have been heard here. What was queued earlier may have been
    cancelled since.
    """
    understood: list[Read] = []
    refused: list[Delivery] = []
    for delivery in deliveries:
        try:
            dispatch = contracts.decode(Dispatch, delivery.body)
            job = jobs[dispatch.job_type]
        except ContractError as error:
            log.error("delivery.unreadable", queue=delivery.queue, reason=str(error))
            refused.append(delivery)
        except KeyError:
            log.error("delivery.unknown_job_type", queue=delivery.queue, job_type=dispatch.job_type)
            refused.append(delivery)
        else:
            is_copy = bool(delivery.headers.get(contracts.HEADER_MAYBE_DUPLICATE))
            is_doubtful = is_copy or delivery.redelivered or _queued_before(delivery, heard_since)
            understood.append(Read(delivery, dispatch, job, is_copy, is_doubtful))
    return understood, refused


def _queued_before(delivery: Delivery, moment: float) -> bool:
    said = delivery.headers.get(contracts.HEADER_QUEUED_AT)
    try:
        return isinstance(said, str) and datetime.fromisoformat(said).timestamp() < moment
    except ValueError:
        return False
