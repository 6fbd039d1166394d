"""Heard: what workers report moves occurrences on.

One pass takes a set of event messages, folds all events of one occurrence into one move, writes everything in one
transaction and only then acknowledges. The broker gives the events queue to one consumer at a time, so each worker's
events are applied in their order; further consumers stand by.

Poison never stops the loop: a message that cannot be decoded, and an event that the database refuses, is set aside as
a failure with its raw text, and what came beside it is applied. While the database is away the set in hand is kept
and tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import Q

from jobs.conf import conf
from occurrences import live, messages, sql, transitions, verdicts
from occurrences.failures import REFUSED, set_aside
from occurrences.hearing import Ear, Hearing
from occurrences.models import Occurrence, OccurrenceLog
from occurrences.run import Run, change, enqueue, load, save
from occurrences.states import FINAL, STARTED, Status
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Delivery
from tickwork.contracts import (
    Cancel,
    Event,
    EventBatch,
    Finished,
    Heartbeat,
    Inquiry,
    Log,
    Progress,
    Registered,
    Started,
    Stopped,
)
from tickwork.errors import ContractError
from tickwork.logs import get_logger
from workers_app import registry

log = get_logger("tickwork.intake")

TAKE_WAIT_SECONDS = 0.5
TELL_AGAIN_SECONDS = 5.0
FIRST_YEAR, LAST_YEAR = 1970, 9998
LOG_COLUMNS = ("occurrence_id", "attempt", "sequence", "logged_at", "level", "message", "fields")
Told = tuple[str, str, Any]
"""(worker, instance, event)"""


@dataclass
class Heard:
    """The events of a set of messages, sorted by what they concern."""

    about_attempts: dict[UUID, list[Told]] = field(default_factory=dict)
    about_instances: list[Told] = field(default_factory=list)
    logs: list[tuple[UUID, Log]] = field(default_factory=list)


class Intake:
    """The event consumer's passes; owns a broker consumer."""

    role = "consume_events"

    def __init__(self, broker: Broker) -> None:
        self._consumer = broker.consumer([topology.events_queue()], prefetch=2 * conf().intake_batch)
        self._ear = Ear(broker)
        self._in_hand: list[Delivery] = []

    @property
    def hearing(self) -> Hearing | None:
        """What this consumer has heard; None for one that hears nothing, as a standby."""
        return self._ear.hearing

    def tick(self, *, now: datetime) -> int:
        """Apply one set of messages; returns how many there were."""
        self._ear.beat(now=now)
        is_new = not self._in_hand
        if is_new:
            self._in_hand = self._consumer.take(conf().intake_batch, wait=TAKE_WAIT_SECONDS)
        self._ear.took(self._in_hand, connected_since=self._consumer.connected_since, now=now, new=is_new)
        if not self._in_hand:
            return 0
        self.apply(self._in_hand, now=now)
        self._ear.wrote(self._in_hand)
        self._consumer.ack(self._in_hand)
        count, self._in_hand = len(self._in_hand), []
        return count

    def close(self) -> None:
        """Leave; what was not acknowledged goes back."""
        self._ear.close()
        self._consumer.close()

    def apply(self, deliveries: Sequence[Delivery], *, now: datetime) -> None:
        """Write what these messages say. An event that is refused is found by halving the set, and set aside."""
        try:
            with transaction.atomic():
                self._write(deliveries, now)
        except REFUSED as error:
            parts = _halves(deliveries)
            if parts is None:
                self._refuse(deliveries[0], error, now)
                return
            for part in parts:
                self.apply(part, now=now)

    def _refuse(self, delivery: Delivery, error: Exception, now: datetime) -> None:
        """Set one event aside. The end of an attempt still counts, without the result that cannot be kept."""
        log.exception("intake.refused")
        with transaction.atomic():
            set_aside(delivery.body, error, now=now)
        batch = _decoded(delivery)
        event = batch.events[0] if batch.events else None
        if isinstance(event, Finished) and bytes(event.result) != b"null":
            batch = msgspec.structs.replace(batch, events=[msgspec.structs.replace(event, result=msgspec.Raw(b"null"))])
            self.apply([replace(delivery, body=contracts.encode(batch))], now=now)

    def _write(self, deliveries: Sequence[Delivery], now: datetime) -> None:
        heard = Heard()
        for delivery in deliveries:
            try:
                batch = _decoded(delivery)
            except ContractError as error:
                log.warning("intake.undecodable", reason=str(error))
                set_aside(delivery.body, error, now=now)
                continue
            _sort(batch, heard, now)
        last_beats = {instance: event for _, instance, event in heard.about_instances if isinstance(event, Heartbeat)}
        for worker, instance, event in heard.about_instances:
            if not isinstance(event, Heartbeat) or event is last_beats[instance]:
                _note_instance(worker, instance, event, now)
        _hear_running(heard, now)
        self._move(heard.about_attempts, now)
        _write_logs(heard.logs)

    def _move(self, events: dict[UUID, list[Told]], now: datetime) -> None:
        while events:
            runs = load(events)
            asked_about = [i for i in runs if any(isinstance(event, Inquiry) for _, _, event in events[i])]
            speakers = {instance for i in asked_about for _, instance, _ in events[i]}
            living = verdicts.living([runs[i] for i in asked_about], speakers, hearing=self.hearing, now=now)
            answers: list[tuple[UUID, messages.Outgoing]] = []
            for identifier, told in events.items():
                run = runs.get(identifier)
                for worker, instance, event in told:
                    if isinstance(event, Inquiry):
                        verdict = verdicts.answer(run, event, worker, instance, living, now=now)
                        answers.append((identifier, verdict))
                    elif run is not None:
                        _apply(run, event, instance, now)
            lost = {run.id for run in save(runs.values(), now=now)}
            enqueue([answer for identifier, answer in answers if identifier not in lost], now=now)
            events = {identifier: told for identifier, told in events.items() if identifier in lost}


def _decoded(delivery: Delivery) -> EventBatch:
    """The message. No database keeps a NUL character in a text, so a mark stands for it."""
    return contracts.decode(EventBatch, delivery.body.replace(b"\\u0000", b"\\ufffd"))


def _halves(deliveries: Sequence[Delivery]) -> list[Sequence[Delivery]] | None:
    """The set in two parts, a single message by its events; None for a single event."""
    if len(deliveries) > 1:
        middle = len(deliveries) // 2
        return [deliveries[:middle], deliveries[middle:]]
    batch = _decoded(deliveries[0])
    if len(batch.events) < 2:
        return None
    middle = len(batch.events) // 2
    return [
        [replace(deliveries[0], body=contracts.encode(msgspec.structs.replace(batch, events=events)))]
        for events in (batch.events[:middle], batch.events[middle:])
    ]


def _sort(batch: EventBatch, heard: Heard, now: datetime) -> None:
    for reported in batch.events:
        event = _timed(reported, now)
        told = (batch.worker, batch.instance, event)
        if isinstance(event, Registered | Heartbeat | Stopped):
            heard.about_instances.append(told)
        elif isinstance(event, Log):
            heard.logs.append((UUID(event.id), event))
        else:
            heard.about_attempts.setdefault(UUID(event.id), []).append(told)


def _timed(event: Event, now: datetime) -> Event:
    """The event; where its worker's clock says what no calendar can keep, with the scheduler's time instead."""
    wrong = {
        name: now
        for name in ("at", "started_at")
        if (said := getattr(event, name, None)) is not None
        and (said.tzinfo is None or not FIRST_YEAR <= said.year <= LAST_YEAR)
    }
    return msgspec.structs.replace(event, **wrong) if wrong else event


def _note_instance(worker: str, instance: str, event: Registered | Heartbeat | Stopped, now: datetime) -> None:
    if isinstance(event, Registered):
        registry.register(worker, instance, event, now=now)
    elif isinstance(event, Heartbeat):
        registry.heartbeat(worker, instance, event, now=now)
    else:
        registry.stopped(instance, now=now)
    transaction.on_commit(lambda: live.announce_worker(worker))


def _hear_running(heard: Heard, now: datetime) -> None:
    """Instances say what they have at hand: it is renewed, and what was given up for lost runs again. Who has something
    that is to be cancelled, or is over, is told so again, since a command may have found it disconnected.
    """
    named = sorted(  # in the order of the rows, as every other move of a batch
        {
            (UUID(identifier), attempt, worker, instance)
            for worker, instance, event in heard.about_instances
            if isinstance(event, Heartbeat)
            for identifier, attempt in event.running
        }
    )
    sql.touch_heartbeats([(identifier, attempt, instance) for identifier, attempt, _, instance in named], at=now)
    before = now - timedelta(seconds=TELL_AGAIN_SECONDS)
    rows = Occurrence.objects.filter(
        Q(status=Status.UNKNOWN)
        | Q(status__in=sorted(STARTED), cancel_requested_at__lte=before)
        | Q(status__in=sorted(FINAL), ended_at__lte=before),
        pk__in={row[0] for row in named},
    ).only("status", "attempt", "instance", "cancel_requested_at", "reason")
    found = {row.pk: row for row in rows}
    unknown: dict[UUID, tuple[int, str]] = {}
    told_again = []
    for identifier, attempt, worker, instance in named:
        row = found.get(identifier)
        if row is None or row.attempt != attempt or row.instance not in ("", instance):
            continue
        if row.status == Status.UNKNOWN:
            unknown[identifier] = (attempt, instance)
        if row.is_final or row.cancel_requested_at:
            stop = Cancel(id=str(identifier), attempt=attempt, reason=row.reason, for_good=True)
            told_again.append(
                messages.command(occurrence_id=identifier, worker=worker, instance=instance, command=stop)
            )
    enqueue(told_again, now=now)
    if unknown:
        change(sorted(unknown), lambda run: transitions.heard(run, *unknown[run.id], now=now), now=now)


def _apply(run: Run, event: Started | Progress | Finished, instance: str, now: datetime) -> None:
    if isinstance(event, Finished):
        moved = transitions.finished(run, event, instance=instance, now=now)
    elif isinstance(event, Started):
        moved = transitions.started(run, attempt=event.attempt, instance=instance, at=event.at, now=now)
    else:
        moved = transitions.progressed(
            run, attempt=event.attempt, instance=instance, fraction=event.fraction, message=event.message
        )
    if not moved:
        log.info(
            "intake.stale", occurrence=str(run.id), attempt=event.attempt, instance=instance, event=type(event).__name__
        )


def _write_logs(logs: list[tuple[UUID, Log]]) -> None:
    if not logs:
        return
    known = set(Occurrence.objects.filter(pk__in={identifier for identifier, _ in logs}).values_list("pk", flat=True))
    rows = [
        (
            identifier,
            event.attempt,
            event.seq,
            event.at,
            event.level[:10],
            event.message,
            contracts.encode_json(event.fields).decode(),
        )
        for identifier, event in logs
        if identifier in known
    ]
    sql.insert_rows(OccurrenceLog, LOG_COLUMNS, rows, once=True)
    changes = [live.Change(str(identifier), "", -1, "detail") for identifier in known]
    transaction.on_commit(lambda: live.announce(changes))
