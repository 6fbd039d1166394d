"""Heard: what workers report moves occurrences on.

One pass takes a set of event messages, folds all events of one occurrence into one move, writes everything in one
transaction and only then acknowledges. The broker gives the events queue to one consumer at a time, so each worker's
events are applied in their order; further consumers stand by.

Poison never stops the loop: a message that cannot be decoded, and an event that the database refuses, is set aside as
a failure with its raw text, and what came beside it is applied. While the database is away the set in hand is kept
and tried again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db import DataError, IntegrityError, transaction

from jobs.conf import conf
from occurrences import live, messages, sql, transitions
from occurrences.failures import set_aside
from occurrences.models import Occurrence, OccurrenceLog
from occurrences.pulse import PULSE_SECONDS, Pulse
from occurrences.run import Run, change, enqueue, load, save
from occurrences.states import FINAL, Status
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Broker, Delivery
from tickwork.contracts import (
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
    Verdict,
)
from tickwork.errors import ContractError
from tickwork.logs import get_logger
from workers_app import registry

log = get_logger("tickwork.intake")

TAKE_WAIT_SECONDS = 0.5
ASK_AGAIN_SECONDS = 2.0
FIRST_YEAR, LAST_YEAR = 1970, 9998
DEAF_AFTER_SECONDS = 3 * PULSE_SECONDS
LOG_COLUMNS = ("occurrence_id", "attempt", "sequence", "logged_at", "level", "message", "fields")
REFUSED = (DataError, IntegrityError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError)
"""What a wrong event raises; anything else (a database that is away) is no fault of the message."""
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
        self._pulse = Pulse(broker)
        self._in_hand: list[Delivery] = []
        self._heard_at = 0.0
        self.hearing_since: datetime | None = None
        """Since when this consumer has heard something all the time; None for one that hears nothing, as a standby."""

    def tick(self, *, now: datetime) -> int:
        """Apply one set of messages; returns how many there were."""
        self._pulse.beat()
        is_new = not self._in_hand
        if is_new:
            self._in_hand = self._consumer.take(conf().intake_batch, wait=TAKE_WAIT_SECONDS)
        self._note_hearing(now, is_new=is_new)
        if not self._in_hand:
            return 0
        self.apply(self._in_hand, now=now)
        self._consumer.ack(self._in_hand)
        count, self._in_hand = len(self._in_hand), []
        return count

    def close(self) -> None:
        """Leave; what was not acknowledged goes back."""
        self._pulse.close()
        self._consumer.close()

    def _note_hearing(self, now: datetime, *, is_new: bool) -> None:
        """`hearing_since` restarts when the broker or the database was away, the network carried nothing, another
        consumer was the active one, or this loop stood still: silence in between proves nothing.
        """
        connected, moment = self._consumer.connected_since, time.monotonic()
        gap = connected is None or connected > self._heard_at or moment - self._heard_at > DEAF_AFTER_SECONDS
        if self._in_hand:
            self.hearing_since = now if gap or self.hearing_since is None else self.hearing_since
            self._heard_at = moment if is_new else self._heard_at
        elif gap:
            self.hearing_since = None

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
        for worker, instance, event in heard.about_instances:
            _note_instance(worker, instance, event, now)
        self._hear_running(heard, now)
        self._move(heard.about_attempts, now)
        _write_logs(heard.logs)

    def _move(self, events: dict[UUID, list[Told]], now: datetime) -> None:
        while events:
            runs = load(events)
            asked_about = [i for i in runs if any(isinstance(event, Inquiry) for _, _, event in events[i])]
            # When each possible holder was last heard about the run in question; whoever speaks in this set, now.
            last_words = [(state.instance, state.heartbeat_at) for state in (runs[i].state for i in asked_about)]
            last_words += [(instance, now) for i in asked_about for _, instance, _ in events[i]]
            living = registry.living(
                last_words,
                now=now,
                lost_after_seconds=conf().worker_lost_after_seconds,
                hearing_since=self.hearing_since or now,
            )
            answers: list[tuple[UUID, messages.Outgoing]] = []
            for identifier, told in events.items():
                run = runs.get(identifier)
                for worker, instance, event in told:
                    if isinstance(event, Inquiry):
                        answers.append((identifier, _answer(run, event, worker, instance, living, now)))
                    elif run is not None:
                        _apply(run, event, instance, now)
            lost = {run.id for run in save(runs.values(), now=now)}
            enqueue([answer for identifier, answer in answers if identifier not in lost], now=now)
            events = {identifier: told for identifier, told in events.items() if identifier in lost}

    def _hear_running(self, heard: Heard, now: datetime) -> None:
        running = [
            (UUID(identifier), attempt, instance)
            for _, instance, event in heard.about_instances
            if isinstance(event, Heartbeat)
            for identifier, attempt in event.running
        ]
        sql.touch_heartbeats(running, at=now)
        unknown = set(
            Occurrence.objects.filter(pk__in=[row[0] for row in running], status=Status.UNKNOWN).values_list(
                "pk", flat=True
            )
        )
        if unknown:
            speakers = [row for row in running if row[0] in unknown]
            change(
                sorted(unknown),
                lambda run: any(
                    transitions.heard(run, attempt=attempt, instance=instance, now=now)
                    for identifier, attempt, instance in speakers
                    if identifier == run.id
                ),
                now=now,
            )


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


def _answer(
    run: Run | None, asked: Inquiry, worker: str, instance: str, living: registry.Living, now: datetime
) -> messages.Outgoing:
    """Whether the asking instance may run the attempt. `run` makes it the holder, so that of two askers one gets it."""
    action, reason = _verdict(run, asked, instance, living)
    if run is not None and action == "run" and run.state.instance != instance:
        if run.state.cancel_requested_at:
            transitions.not_resumed(run, now=now)
            action, reason = "drop", "its cancellation was asked for"
        else:
            transitions.granted(run, attempt=asked.attempt, instance=instance, now=now, reason=reason)
    verdict = Verdict(
        id=asked.id, attempt=asked.attempt, action=action, ask_again_seconds=ASK_AGAIN_SECONDS, reason=reason
    )
    return messages.command(occurrence_id=UUID(asked.id), worker=worker, instance=instance, command=verdict)


def _verdict(run: Run | None, asked: Inquiry, instance: str, living: registry.Living) -> tuple[Any, str]:
    if run is None:
        return "drop", "no such occurrence"
    state = run.state
    if run.status in FINAL:
        return "drop", f"already {run.status.label}"
    if state.attempt != asked.attempt:
        return "drop", f"attempt {state.attempt} is the current one"
    if state.instance in ("", instance):
        return "run", "nobody else has it"
    if asked.question == "lease":
        return "drop", f"held by {state.instance}"
    if state.instance in living:
        return "wait", f"held by {state.instance}"
    return "run", f"taken over from {state.instance}, which is gone"


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
