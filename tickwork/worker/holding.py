"""The attempts at hand, and what may be done with each: run, ask about, answer, give back.

A table with a lock and no threads of its own; `journey` and `commands` call in from several threads and carry out
what the answers say. An attempt at hand is in one of four states:

    ASKING ──verdict run──▶ READY ──a slot is free──▶ RUNNING ──it ended──▶ ENDED ──its report is confirmed──▶ acked
    (doubtful) ◀───a gap───(fresh ones begin here)
       └──────────────verdict run, but it ended here before: its report is told again──▶ ENDED
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from tickwork.broker.base import Delivery
from tickwork.contracts import Verdict
from tickwork.worker.attempt import Attempt
from tickwork.worker.held import NEVER, Arrived, Due, Heeded, Held, Remembered, State
from tickwork.worker.jobs import Job
from tickwork.worker.reading import Read, read
from tickwork.worker.store import Key

ANSWER_SECONDS = 5.0
"""How long to wait for a verdict before asking again."""
STALE_SECONDS = 5.0
"""How long after a gap (see `continuity`) what arrives may have been under way since before it."""


class Holding:
    """See the module. `make_attempt` turns what is held into something that the executor runs.

    `ends_of`: the last reports of those of these attempts that ended here. `untold`: whose end waits for the broker.
    `recent`: attempts that ended here last.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        *,
        slots: int,
        lease_after_seconds: float,
        make_attempt: Callable[[Held], Attempt],
        ends_of: Callable[[Sequence[Key]], Mapping[Key, bytes]],
        untold: Callable[[], set[Key]],
        recent: Iterable[Key] = (),
    ) -> None:
        self.losses = 0
        """How often the connection was lost."""
        self._jobs = jobs
        self._slots = slots
        self._lease_after = lease_after_seconds
        self._make_attempt = make_attempt
        self._ends_of = ends_of
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

    def arrive(
        self, deliveries: Sequence[Delivery], *, now: float, heard_since: float = -NEVER, losses: int = 0
    ) -> Arrived:
        """Take these deliveries in; see `Arrived`. `heard_since`: see `reading.read`.

        `losses`: what `losses` was before they were taken from the consumer. When the connection was lost since, they
        are stale, or were taken just after it was back: all go back, since the broker may have handed them on.
        """
        understood, refused = read(deliveries, self._jobs, heard_since=heard_since)
        doubted = [one.key for one in understood if one.is_doubtful]
        ends = self._ends_of(doubted) if doubted else {}
        # The scheduler sent a copy of what ended here: unless the report is still on its way, it was lost.
        untold = self._untold() if any(one.is_copy and one.key in ends for one in understood) else set()
        with self._lock:
            if self.losses != losses:
                return Arrived(give_back=list(deliveries))
            arrived = Arrived(refuse=refused)
            for one in understood:
                was_told = not one.is_copy or one.key in untold
                self._arrive_one(arrived, one, ends.get(one.key), was_told, now)
        return arrived

    def _arrive_one(self, arrived: Arrived, one: Read, earlier_end: bytes | None, was_told: bool, now: float) -> None:
        held = self._held.get(one.key)
        is_doubtful = one.is_doubtful or one.key in self._elsewhere
        if held is not None:
            if not is_doubtful or held.leased:
                arrived.ack.append(one.delivery)
            else:  # the broker hands out again what is at hand here: the earlier delivery is stale
                held.deliveries.append(one.delivery)
                held.received_at = now
        elif is_doubtful and earlier_end is not None and was_told:
            held = self._hold(one, State.ENDED, now)
            held.told_earlier = arrived.ended_before = True
        elif is_doubtful:
            held = self._hold(one, State.ASKING, now)
            held.earlier_end = earlier_end
            arrived.must_ask = True
        elif one.key in self._over:
            arrived.ack.append(one.delivery)
        else:
            self._ready.append(self._hold(one, State.READY, now))

    def _hold(self, one: Read, state: State, now: float) -> Held:
        held = self._held[one.key] = Held(one.dispatch, one.job, one.delivery, state, now)
        return held

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
        """The attempt ended; its deliveries wait for its report to be confirmed. Called before the report is made."""
        with self._lock:
            held = self._held[key]
            held.state = State.ENDED
            held.for_good = for_good

    def slot_is_free(self) -> None:
        """The report of an ended attempt is on its way, and its slot free for another. Not earlier: a worker that
        drains may leave as soon as nothing runs.
        """
        with self._lock:
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

    def verdict(self, verdict: Verdict, *, now: float) -> Heeded:
        """The scheduler's answer to an inquiry; see `Heeded`."""
        with self._lock:
            held = self._held.get((verdict.id, verdict.attempt))
            if held is None or held.ask_at == NEVER or held.state not in (State.ASKING, State.RUNNING):
                return Heeded()
            if verdict.action == "wait":
                held.ask_at = now + max(0.1, verdict.ask_again_seconds)
                return Heeded()
            held.ask_at = NEVER
            if held.state is State.RUNNING:
                held.leased = True
                deliveries, held.deliveries = held.deliveries, []
                return Heeded(deliveries, stop=held.attempt if verdict.action == "drop" else None)
            if verdict.action == "drop":
                del self._held[held.key]
                return Heeded(held.deliveries)
            held.granted = True
            if held.earlier_end is not None:
                held.state = State.ENDED
                held.for_good = True
                return Heeded(tell_again=held.earlier_end)
            held.state = State.READY
            self._ready.append(held)
            return Heeded()

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
            return [held.key for held in self._held.values() if held.told_earlier]

    def connection_lost(self) -> None:
        """Forget what was not begun: the broker hands it out again, perhaps to another instance.

        What the scheduler has granted to this instance stays, since nobody else will get it.
        """
        with self._lock:
            self.losses += 1
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
