"""What a worker has at hand: one attempt with its deliveries and its state. Values only; `holding` decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from tickwork.broker.base import Delivery
from tickwork.contracts import Dispatch
from tickwork.worker.attempt import Attempt
from tickwork.worker.jobs import Job
from tickwork.worker.store import Key

REMEMBERED = 25_000
NEVER = float("inf")


class State(Enum):
    """Where an attempt at hand stands; see the picture in `holding`."""

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
    `earlier_end`: its last report, when it ended here before this delivery came.
    `told_earlier`: that report is under way, or has arrived; nothing is left to be told.
    """

    __slots__ = (
        "ask_at",
        "asked_at",
        "attempt",
        "deliveries",
        "dispatch",
        "earlier_end",
        "for_good",
        "granted",
        "job",
        "key",
        "leased",
        "received_at",
        "state",
        "told_earlier",
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
        self.for_good = False
        self.earlier_end: bytes | None = None
        self.told_earlier = False
        self.attempt: Attempt | None = None


@dataclass
class Arrived:
    """What to do with deliveries that just arrived. Those not listed are held."""

    ack: list[Delivery] = field(default_factory=list)
    refuse: list[Delivery] = field(default_factory=list)
    """To the dead letters: nobody can run them."""
    give_back: list[Delivery] = field(default_factory=list)
    """To their queue."""
    must_ask: bool = False
    ended_before: bool = False


@dataclass
class Due:
    """What the passing of time asks for."""

    ask: list[tuple[Key, Literal["redelivered", "lease"]]] = field(default_factory=list)
    """(attempt, question) to send as inquiries."""
    give_back: list[Delivery] = field(default_factory=list)
    """Deliveries that got old without having been started."""


class Heeded(NamedTuple):
    """What follows from a verdict."""

    ack: Sequence[Delivery] = ()
    stop: Attempt | None = None
    """It runs here, and somebody else holds it."""
    tell_again: bytes | None = None
    """It may run here, and did so before: the report of its end, which the scheduler has not got."""


class Remembered:
    """A set that forgets: it knows the last REMEMBERED keys, and up to as many more."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._recent = set(keys)
        self._older: set[Key] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._recent or key in self._older

    def add(self, key: Key) -> None:
        self._recent.add(key)
        if len(self._recent) > REMEMBERED:
            self._older, self._recent = self._recent, set()
