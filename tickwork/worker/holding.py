"""The deliveries at hand, and what may be done with each: run, ask about, answer, give back.

A table with a lock and no threads of its own; the runtime calls in from several threads and carries out what
the answers say. A delivery is in one of four states:

    ASKING ──verdict run──▶ READY ──a slot is free──▶ RUNNING ──it ended──▶ ENDED ──its report is confirmed──▶ acked
    (redelivered) ◀──a gap──(fresh ones begin here)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Literal

from tickwork import contracts
from tickwork.broker.base import Delivery
from tickwork.contracts import Dispatch, Verdict
from tickwork.errors import ContractError
from tickwork.logs import get_logger
from tickwork.worker.execution import Attempt
from tickwork.worker.jobs import Job
from tickwork.worker.store import Key

log = get_logger("tickwork.holding")

ANSWER_SECONDS = 5.0
"""How long to wait for a verdict before asking again."""
STALE_SECONDS = 5.0
"""How long after a gap (see `continuity`) what arrives may have been under way since before it."""
REMEMBERED = 25_000
NEVER = float("inf")


class State(Enum):
    ASKING = "asking"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"


class Held:
    """One attempt at hand, with every delivery that brought it.

    `ask_at` is when to ask (again), if at all; `asked_at` when that was done last.
    `granted`: the scheduler has this instance on record as its holder.
    `leased`: so much so that the delivery is acknowledged.
    `for_good`: it ended in a way after which it never runs again.
    """

    __slots__ = (
        "ask_at",
        "asked_at",
        "attempt",
        "deliveries",
        "dispatch",
        "for_good",
        "granted",
        "job",
        "key",
        "leased",
        "received_at",
        "state",
    )

    def __init__(self, dispatch: Dispatch, job: Job, delivery: Delivery, state: State, now: float) -> None:
        self.key: Key = (dispatch.id, dispatch.attempt)
        self.dispatch = dispatch
        self.job = job
        self.deliveries = [delivery]
        self.state = state
        self.received_at = now
        self.ask_at = now if state is State.ASKING else NEVER
        self.asked_at = -NEVER
        self.granted = False
        self.leased = False
        self.for_good = state is State.ENDED
        self.attempt: Attempt | None = None


@dataclass
class Arrived:
    """What to do with deliveries that just arrived. Those not listed are held."""

    ack: list[Delivery] = field(default_factory=list)
    refuse: list[Delivery] = field(default_factory=list)
    asking: bool = False
    ended_before: bool = False


@dataclass
class Due:
    """What the passing of time asks for."""

    ask: list[tuple[Key, Literal["redelivered", "lease"]]] = field(default_factory=list)
    """(attempt, question) to send as inquiries."""
    give_back: list[Delivery] = field(default_factory=list)
    """Deliveries that got old without having been started."""


class Remembered:
    """A set that forgets: it knows the last REMEMBERED keys, and up to as many more."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._recent = set(keys)
        self._older: set[Key] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._recent or key in self._older

    def add(self, key: Key) -> None:
        self._recent.add(key)
        if len(self._recent) > REMEMBERED:
            self._older, self._recent = self._recent, set()


class Holding:
    """See the module. `make_attempt` turns what is held into something that the executor runs.

    `was_finished`: which of these ended here. `untold`: the ended ones whose report waits for the broker.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        *,
        slots: int,
        lease_after_seconds: float,
        make_attempt: Callable[[Held], Attempt],
        was_finished: Callable[[Sequence[Key]], set[Key]],
        untold: Callable[[], set[Key]] = set,
        recent: Iterable[Key] = (),
    ) -> None:
        self._jobs = jobs
        self._slots = slots
        self._lease_after = lease_after_seconds
        self._make_attempt = make_attempt
        self._was_finished = was_finished
        self._untold = untold
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._held: dict[Key, Held] = {}
        self._ready: deque[Held] = deque()
        self._running = 0
        self._closed = False
        self._over = Remembered(recent)
        self._elsewhere = Remembered()

    # ── in ─────────────────────────────────────────────────────────────────────────────────────────

    def arrive(self, deliveries: Sequence[Delivery], *, now: float, heard_since: float = -NEVER) -> Arrived:
        """Take these deliveries in; see `Arrived`.

        `heard_since`: Unix time from which on commands have been heard here. What was queued earlier may have been
        cancelled since, so it is asked about.
        """
        arrived = Arrived()
        decoded: list[tuple[Delivery, Dispatch, Job, bool]] = []
        for delivery in deliveries:
            try:
                dispatch = contracts.decode(Dispatch, delivery.body)
                job = self._jobs[dispatch.job_type]
            except ContractError as error:
                log.error("delivery.unreadable", queue=delivery.queue, reason=str(error))
                arrived.refuse.append(delivery)
            except KeyError:
                log.error("delivery.unknown_job_type", queue=delivery.queue, job_type=dispatch.job_type)
                arrived.refuse.append(delivery)
            else:
                doubtful = (
                    delivery.redelivered
                    or bool(delivery.headers.get(contracts.HEADER_MAYBE_DUPLICATE))
                    or _queued_before(delivery, heard_since)
                    or (dispatch.id, dispatch.attempt) in self._elsewhere
                )
                decoded.append((delivery, dispatch, job, doubtful))
        doubted = [(dispatch.id, dispatch.attempt) for _, dispatch, _, doubtful in decoded if doubtful]
        finished = self._was_finished(doubted) if doubted else set()
        copied = {
            (dispatch.id, dispatch.attempt)
            for delivery, dispatch, _, _ in decoded
            if delivery.headers.get(contracts.HEADER_MAYBE_DUPLICATE)
        }
        if finished & copied:
            # The scheduler sent a copy of what ended here: unless the report is still on its way, it was lost.
            finished -= copied - self._untold()
        with self._lock:
            for delivery, dispatch, job, doubtful in decoded:
                self._arrive_one(arrived, delivery, dispatch, job, doubtful, finished, now)
        return arrived

    def _arrive_one(
        self,
        arrived: Arrived,
        delivery: Delivery,
        dispatch: Dispatch,
        job: Job,
        doubtful: bool,
        finished: set[Key],
        now: float,
    ) -> None:
        key = (dispatch.id, dispatch.attempt)
        held = self._held.get(key)
        if held is not None:
            if not doubtful or held.leased:
                arrived.ack.append(delivery)
            else:  # the broker hands out again what is at hand here: the earlier delivery is stale
                held.deliveries.append(delivery)
                held.received_at = now
        elif doubtful and key in finished:
            self._held[key] = Held(dispatch, job, delivery, State.ENDED, now)
            arrived.ended_before = True
        elif doubtful:
            self._held[key] = Held(dispatch, job, delivery, State.ASKING, now)
            arrived.asking = True
        elif key in self._over:
            arrived.ack.append(delivery)
        else:
            held = self._held[key] = Held(dispatch, job, delivery, State.READY, now)
            self._ready.append(held)

    # ── through ────────────────────────────────────────────────────────────────────────────────────

    def next_to_run(self, *, gap_at: float = -NEVER) -> list[Attempt]:
        """As many of those that are ready as there are free slots; each counts as running from now on.

        `gap_at`: when this process was out of touch last. What came before that, and was not asked about since, is
        asked about first.
        """
        attempts: list[Attempt] = []
        with self._lock:
            while self._ready and self._running < self._slots and not self._closed:
                held = self._ready.popleft()
                if held.state is State.READY and held.received_at < gap_at + STALE_SECONDS and held.asked_at < gap_at:
                    held.state, held.ask_at, held.granted = State.ASKING, -NEVER, False
                elif held.state is State.READY:
                    held.state = State.RUNNING
                    held.attempt = self._make_attempt(held)
                    self._running += 1
                    attempts.append(held.attempt)
        return attempts

    def ended(self, key: Key, *, for_good: bool) -> None:
        """The attempt ended; its slot is free, its deliveries wait for the report to be confirmed."""
        with self._lock:
            held = self._held[key]
            held.state = State.ENDED
            held.for_good = for_good
            self._running -= 1
            if self._closed:
                self._idle.notify_all()

    def settled(self, keys: Iterable[Key]) -> list[Delivery]:
        """The ends of these attempts are safe with the broker: let go of them; returns what to acknowledge."""
        deliveries: list[Delivery] = []
        with self._lock:
            for key in keys:
                held = self._held.get(key)
                if held is None or held.state is not State.ENDED:
                    continue
                del self._held[key]
                deliveries += held.deliveries
                if held.for_good:
                    self._over.add(key)
        return deliveries

    # ── what the scheduler says ────────────────────────────────────────────────────────────────────

    def cancel(self, key: Key, *, for_good: bool) -> tuple[Attempt | None, Held | None]:
        """The running attempt to stop, or what had not begun and counts as ended now, or neither.

        `for_good`: nobody is to run it; should its message come later, it is not begun.
        """
        with self._lock:
            held = self._held.get(key)
            if held is None and for_good:
                self._over.add(key)
            if held is None or held.state is State.ENDED:
                return None, None
            if held.state is State.RUNNING:
                return held.attempt, None
            held.state = State.ENDED
            return None, held

    def granted_elsewhere(self, key: Key, *, now: float) -> Attempt | None:
        """Another instance got this attempt: what was not begun is asked about; returns a running one, to stop it."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                self._elsewhere.add(key)
            elif held.state is State.READY:
                held.state, held.ask_at, held.granted = State.ASKING, now, False
            return held.attempt if held is not None and held.state is State.RUNNING else None

    def verdict(self, verdict: Verdict, *, now: float) -> tuple[list[Delivery], Attempt | None]:
        """Deliveries to acknowledge, and a running attempt to stop because somebody else holds it."""
        with self._lock:
            held = self._held.get((verdict.id, verdict.attempt))
            if held is None or held.ask_at == NEVER or held.state not in (State.ASKING, State.RUNNING):
                return [], None
            if verdict.action == "wait":
                held.ask_at = now + max(0.1, verdict.ask_again_seconds)
                return [], None
            held.ask_at = NEVER
            if held.state is State.ASKING:
                if verdict.action == "run":
                    held.granted = True
                    held.state = State.READY
                    self._ready.append(held)
                    return [], None
                del self._held[held.key]
                return held.deliveries, None
            held.leased = True
            deliveries, held.deliveries = held.deliveries, []
            return deliveries, held.attempt if verdict.action == "drop" else None

    def due(self, *, now: float) -> Due:
        """Inquiries to send, and deliveries that waited too long for a slot or an answer."""
        due = Due()
        oldest = now - self._lease_after
        with self._lock:
            for held in list(self._held.values()):
                old = held.received_at <= oldest
                if held.state is State.RUNNING and old and held.deliveries and held.ask_at == NEVER:
                    held.ask_at = now
                if held.state in (State.ASKING, State.READY) and old:
                    del self._held[held.key]
                    held.state = State.ENDED  # so that the queue of ready ones passes it over
                    due.give_back += held.deliveries
                elif held.ask_at <= now and held.state in (State.ASKING, State.RUNNING):
                    held.ask_at, held.asked_at = now + ANSWER_SECONDS, now
                    due.ask.append((held.key, "lease" if held.state is State.RUNNING else "redelivered"))
        return due

    def ended_before(self) -> list[Key]:
        """Attempts that were delivered again after they had ended here, and whose report may still be on its way."""
        with self._lock:
            return [held.key for held in self._held.values() if held.state is State.ENDED and held.attempt is None]

    def connection_lost(self) -> None:
        """Forget what was not begun: the broker hands it out again, perhaps to another instance.

        What the scheduler has granted to this instance stays, since nobody else will get it.
        """
        with self._lock:
            for held in list(self._held.values()):
                if held.state in (State.ASKING, State.READY) and not held.granted:
                    del self._held[held.key]
                    held.state = State.ENDED  # so that the queue of ready ones passes it over

    # ── out ────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Begin nothing any more."""
        with self._lock:
            self._closed = True

    def give_back(self) -> list[Delivery]:
        """Let go of everything that was not begun; returns its deliveries."""
        with self._lock:
            unbegun = [held for held in self._held.values() if held.state in (State.ASKING, State.READY)]
            for held in unbegun:
                del self._held[held.key]
            self._ready.clear()
        return [delivery for held in unbegun for delivery in held.deliveries]

    def wait_idle(self, seconds: float) -> bool:
        """After `close`: wait until nothing runs."""
        with self._lock:
            return self._idle.wait_for(lambda: self._running == 0, seconds)

    def running(self) -> list[Attempt]:
        with self._lock:
            return [held.attempt for held in self._held.values() if held.state is State.RUNNING and held.attempt]

    def keys(self) -> list[Key]:
        """Every attempt at hand, whatever its state: what a heartbeat names."""
        with self._lock:
            return list(self._held)

    @property
    def running_count(self) -> int:
        return self._running


def _queued_before(delivery: Delivery, moment: float) -> bool:
    said = delivery.headers.get(contracts.HEADER_QUEUED_AT)
    try:
        return isinstance(said, str) and datetime.fromisoformat(said).timestamp() < moment
    except ValueError:
        return False
