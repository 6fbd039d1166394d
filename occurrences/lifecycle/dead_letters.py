"""Broken: what the broker could not deliver becomes a failure, or another try.

not decodable, or of no use                     recorded as rejected, acknowledged
unknown occurrence                              acknowledged
final, another attempt, or an older message     acknowledged
expired    (no worker took it in time)          failed, or sent again if the job says so
expired    while an instance is on record       sent again, so that another one waits in case that one is gone
rejected   (a worker cannot run such a thing)   failed
delivery_limit never begun: lost connections    sent again, a bounded number of times
delivery_limit begun: its workers kept dying    failed; looked at again later while an instance runs it and is heard
database away                                   kept in hand, tried again with a growing pause

Nothing is judged before the event consumer has heard what workers said until it arrived: a run that seems to wait may
have begun. After the broker was away, workers have a while longer to tell what they did meanwhile.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils.dateparse import parse_datetime

from jobs.conf import conf
from occurrences import messages, transitions
from occurrences.failures import REFUSED, set_aside
from occurrences.hearing import Hearing
from occurrences.models import FailedOccurrence
from occurrences.run import Run, change, enqueue
from occurrences.states import LIVE, STARTED
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Delivery
from tickwork.errors import ContractError
from tickwork.logs import get_logger

log = get_logger("tickwork.dead_letters")

TAKE_WAIT_SECONDS = 0.5
BATCH = 100
LOST_HOLDERS = 3
"""An attempt that so many instances held and did not survive is what killed them. Deliveries alone prove nothing: when
a broker stops, each connection that closes hands its messages to the next one."""
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
        self._connected_since: float | None = None
        self._heard_first: datetime | None = None

    def tick(self, *, now: datetime) -> int:
        """Handle one set of dead letters; returns how many."""
        if not self._in_hand:
            self._in_hand = self._consumer.take(BATCH, wait=TAKE_WAIT_SECONDS)
            self._wait_for_words(until=now + timedelta(seconds=TAKE_WAIT_SECONDS))
        since = self._consumer.connected_since
        if self._connected_since not in (None, since) and since is not None:
            self._wait_for_words(until=now + timedelta(seconds=conf().worker_lost_after_seconds))
        self._connected_since = since or self._connected_since
        hearing = Hearing.newest() if self._in_hand else None
        if hearing is None or self._heard_first is None or hearing.until < self._heard_first:
            return 0
        count = len(self._in_hand)
        while self._in_hand:
            self._handle(self._in_hand[0], now, hearing)
            self._consumer.ack([self._in_hand.pop(0)])
        return count

    def close(self) -> None:
        """Leave; what was not acknowledged goes back."""
        self._consumer.close()

    def _wait_for_words(self, *, until: datetime) -> None:
        """What workers say until then has to be heard before anything is judged."""
        self._heard_first = max(until, self._heard_first or until)

    def _handle(self, delivery: Delivery, now: datetime, hearing: Hearing) -> None:
        try:
            dispatch = contracts.decode(contracts.Dispatch, delivery.body)
            occurrence_id = UUID(dispatch.id)
        except (ContractError, ValueError) as error:
            log.warning("dead_letters.undecodable", reason=str(error))
            with transaction.atomic():
                set_aside(delivery.body, error, now=now)
            return
        reason = delivery.deaths[0].reason if delivery.deaths else delivery.headers.get(messages.DEATH, "rejected")
        kind = KINDS.get(reason, Kind.REJECTED)
        try:
            answers = change(
                [occurrence_id], lambda run: _judge(run, dispatch.attempt, delivery, kind, hearing, now), now=now
            )
            if answers.get(occurrence_id) == LATER:
                later = now + timedelta(seconds=conf().worker_lost_after_seconds)
                again = messages.dead_letter(
                    occurrence_id=occurrence_id,
                    routing_key=delivery.routing_key,
                    body=delivery.body.decode(),
                    queued_at=str(delivery.headers.get(contracts.HEADER_QUEUED_AT, "")),
                    reason=reason,
                    not_before=later,
                )
                with transaction.atomic():
                    enqueue([again], now=now)
        except REFUSED as error:
            log.exception("dead_letters.refused", occurrence=dispatch.id)
            with transaction.atomic():
                set_aside(delivery.body, error, now=now)
            return
        answer = answers.get(occurrence_id, "unknown occurrence")
        log.info("dead_letters.handled", occurrence=dispatch.id, reason=reason, answer=answer)


MOVED, GUARDED, LATER, STALE = "moved", "sent again beside its holder", "later", "stale"


def _judge(run: Run, attempt: int, delivery: Delivery, kind: Kind, hearing: Hearing, now: datetime) -> str:
    """Decide about the occurrence of a dead letter; returns what was decided."""
    state = run.state
    if state.attempt != attempt or run.status not in LIVE:
        return STALE
    if run.status in STARTED:
        if kind is Kind.QUEUE_TTL_EXPIRED:
            transitions.guard(run)
            return GUARDED
        if kind is not Kind.DELIVERY_LIMIT:
            return STALE
        heard_at = state.heartbeat_at or state.started_at or state.queued_at
        if hearing.silence_seconds(heard_at) <= conf().worker_lost_after_seconds:
            return LATER
        if len(run.holders(attempt)) < LOST_HOLDERS:
            transitions.guard(run)
            return GUARDED
    elif (sent_at := _sent_at(delivery)) is not None and sent_at < state.queued_at:
        return STALE
    transitions.undeliverable(run, kind=kind, message=WORDS[kind], redispatch_limit=conf().redispatch_limit, now=now)
    return MOVED


def _sent_at(delivery: Delivery) -> datetime | None:
    """When this message was queued; None when its header does not say so in a way that can be read."""
    try:
        sent_at = parse_datetime(str(delivery.headers.get(contracts.HEADER_QUEUED_AT, "")))
    except ValueError:
        return None
    return sent_at if sent_at is not None and sent_at.utcoffset() is not None else None
