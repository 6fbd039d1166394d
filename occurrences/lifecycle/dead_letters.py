"""Broken: what the broker could not deliver becomes a failure, or another try.

not decodable                                   recorded as rejected, acknowledged
unknown occurrence                              acknowledged
final, another attempt, or an older message     acknowledged
expired    (no worker took it in time)          failed, or sent again if the job says so
rejected   (a worker cannot run such a thing)   failed
delivery_limit (its workers kept dying)         failed, unless an instance runs it and is heard
database away                                   kept in hand, tried again with a growing pause
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db import DataError, transaction
from django.utils.dateparse import parse_datetime

from jobs.conf import conf
from occurrences import transitions
from occurrences.failures import set_aside
from occurrences.models import FailedOccurrence
from occurrences.run import Run
from occurrences.states import STARTED, Status
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Delivery
from tickwork.errors import ContractError
from tickwork.logs import get_logger

log = get_logger("tickwork.dead_letters")

TAKE_WAIT_SECONDS = 0.5
BATCH = 100
Kind = FailedOccurrence.Kind
KINDS = {"expired": Kind.QUEUE_TTL_EXPIRED, "rejected": Kind.REJECTED, "delivery_limit": Kind.DELIVERY_LIMIT}
WORDS = {
    Kind.QUEUE_TTL_EXPIRED: "worker queue TTL expired: no instance of the worker took it in time",
    Kind.REJECTED: "the worker rejected the message: it does not know this job type, or could not read the message",
    Kind.DELIVERY_LIMIT: "the message was delivered too often: its workers were lost each time",
}


class DeadLetters:
    """The dead-letter consumer's passes; owns a broker consumer."""

    role = "consume_dead_letters"

    def __init__(self, broker: Broker) -> None:
        self._consumer = broker.consumer([topology.dead_letter_queue()], prefetch=BATCH)
        self._in_hand: list[Delivery] = []

    def tick(self, *, now: datetime) -> int:
        """Handle one set of dead letters; returns how many."""
        if not self._in_hand:
            self._in_hand = self._consumer.take(BATCH, wait=TAKE_WAIT_SECONDS)
        count = len(self._in_hand)
        while self._in_hand:
            self._handle(self._in_hand[0], now)
            self._consumer.ack([self._in_hand.pop(0)])
        return count

    def close(self) -> None:
        """Leave; what was not acknowledged goes back."""
        self._consumer.close()

    def _handle(self, delivery: Delivery, now: datetime) -> None:
        try:
            dispatch = contracts.decode(contracts.Dispatch, delivery.body)
            occurrence_id = UUID(dispatch.id)
        except (ContractError, ValueError) as error:
            log.warning("dead_letters.undecodable", reason=str(error))
            with transaction.atomic():
                set_aside(delivery.body, error, now=now)
            return
        reason = delivery.deaths[0].reason if delivery.deaths else "rejected"
        kind = KINDS.get(reason, Kind.REJECTED)

        def decide(run: Run) -> bool:
            if not _is_current(run, dispatch.attempt, delivery, kind, now):
                return False
            transitions.undeliverable(
                run, kind=kind, message=WORDS[kind], redispatch_limit=conf().redispatch_limit, now=now
            )
            return True

        try:
            answer = transitions.change([occurrence_id], decide, now=now)
        except DataError as error:
            with transaction.atomic():
                set_aside(delivery.body, error, now=now)
            return
        log.info(
            "dead_letters.handled", occurrence=dispatch.id, reason=reason, moved=answer.get(occurrence_id, "unknown")
        )


def _is_current(run: Run, attempt: int, delivery: Delivery, kind: Kind, now: datetime) -> bool:
    state = run.state
    if run.status in STARTED:
        heard_at = state.heartbeat_at or state.started_at
        lost = heard_at is None or now - heard_at > timedelta(seconds=conf().worker_lost_after_seconds)
        return state.attempt == attempt and kind is Kind.DELIVERY_LIMIT and lost
    if run.status is not Status.QUEUED or state.attempt != attempt:
        return False
    sent_at = _sent_at(delivery)
    return sent_at is None or sent_at >= state.queued_at


def _sent_at(delivery: Delivery) -> datetime | None:
    """When this message was queued; None when its header does not say so in a way that can be read."""
    try:
        sent_at = parse_datetime(str(delivery.headers.get(contracts.HEADER_QUEUED_AT, "")))
    except ValueError:
        return None
    return sent_at if sent_at is not None and sent_at.utcoffset() is not None else None
