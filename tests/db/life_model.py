"""A world around the scheduler for the life of an occurrence: a broker that loses and doubles, workers that die.

Pure Python; the scheduler's own code and database are real. The state machine beside it decides what happens when.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count

from occurrences import messages
from tests.db.reports import raw_delivery, report
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Death, Delivery, Message
from tickwork.contracts import (
    HEADER_MAYBE_DUPLICATE,
    Cancel,
    Command,
    Dispatch,
    ErrorInfo,
    Event,
    Finished,
    Heartbeat,
    Inquiry,
    Outcome,
    Registered,
    Started,
    Stopped,
    Verdict,
)

Key = tuple[str, int]
"""(occurrence id, attempt)"""


@dataclass(eq=False)
class Copy:
    """A job message in the broker, or in a worker's hands."""

    message: Message
    dispatch: Dispatch
    expires_at: datetime
    redelivered: bool = False

    @property
    def key(self) -> Key:
        return self.dispatch.id, self.dispatch.attempt

    def buried(self, reason: str) -> Delivery:
        """As the dead letter that it becomes."""
        return raw_delivery(
            self.message.body, headers=dict(self.message.headers), deaths=(Death(queue="q", reason=reason),)
        )


@dataclass(eq=False)
class Task:
    """What a worker has in hand. `asking`: for a verdict; `running`; `leased`: running, and acknowledged."""

    copy: Copy
    phase: str
    started_at: datetime | None = None
    cancelled: bool = False


@dataclass(eq=False)
class Hand:
    """A worker instance. While it is not `online` it keeps its reports, and a successor sends them when it has died."""

    name: str
    online: bool = True
    alive: bool = True
    tasks: dict[Key, Task] = field(default_factory=dict)
    done: set[Key] = field(default_factory=set)
    unsent: list[Event] = field(default_factory=list)
    told: list[Command] = field(default_factory=list)


class World:
    """The broker's queues and the workers. `begun_twice`: attempts that a second worker began without having to ask."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.copies: list[Copy] = []
        self.dead: list[Delivery] = []
        self.reports: list[Delivery] = []
        self.heard: list[Delivery] = []
        self.beats: list[tuple[datetime, str, set[Key]]] = []
        self._said_at: dict[int, datetime] = {}
        self.begun: set[Key] = set()
        self.begun_twice: list[Key] = []
        self.finished = 0
        self._numbers = count(1)
        self.hands: list[Hand] = []
        self.hire()
        self.hire()

    # ── the broker ─────────────────────────────────────────────────────────────────────────────────

    def arrive(self, message: Message) -> None:
        """A message that the relay published."""
        if message.type == messages.DISPATCH:
            seconds = message.expiration_seconds or 0.0
            dispatch = contracts.decode(Dispatch, message.body)
            self.copies.append(Copy(message, dispatch, self.now + timedelta(seconds=seconds)))
        elif message.type == messages.COMMAND:
            command = contracts.decode(contracts.CommandMessage, message.body).command
            for hand in self.hands:
                addresses = {topology.control_key("steady", hand.name), topology.control_key("steady")}
                if hand.alive and hand.online and message.routing_key in addresses:
                    hand.told.append(command)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        expired = [copy for copy in self.copies if copy.expires_at <= self.now]
        self.copies = [copy for copy in self.copies if copy not in expired]
        self.dead += [copy.buried("expired") for copy in expired]

    def double(self, copy: Copy) -> None:
        """The broker hands a message out twice; it says so of the second."""
        self.copies.append(replace(copy, redelivered=True))

    # ── the workers ────────────────────────────────────────────────────────────────────────────────

    @property
    def living(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.alive]

    @property
    def names(self) -> set[str]:
        return {hand.name for hand in self.hands}

    def running(self) -> list[tuple[Hand, Task]]:
        """What is being run, by whom."""
        return [(hand, task) for hand in self.living for task in hand.tasks.values() if task.phase != "asking"]

    def hire(self) -> Hand:
        """A new instance, which registers itself."""
        hand = Hand(f"steady-{next(self._numbers)}")
        self.hands.append(hand)
        said = Registered(at=self.now, host="h", pid=1, version="1", concurrency=9, job_types=[])
        self.say(hand, said)
        return hand

    def say(self, hand: Hand, event: Event) -> None:
        if hand.online:
            self._report(hand, event)
        else:
            hand.unsent.append(event)

    def _report(self, hand: Hand, event: Event) -> None:
        told = report(event, instance=hand.name)
        self.reports.append(told)
        self._said_at[id(told)] = self.now
        if isinstance(event, Heartbeat):
            self.beats.append((self.now, hand.name, set(event.running)))

    def heard_until(self) -> datetime:
        """When the first report that still waits was made, or now."""
        return self._said_at[id(self.reports[0])] if self.reports else self.now

    def beat_between(self, since: datetime, until: datetime, instance: str, key: Key) -> bool:
        """Whether the instance said then that it had this at hand."""
        return any(since < at < until and name == instance and key in keys for at, name, keys in self.beats)

    def take(self, hand: Hand, copy: Copy) -> None:
        """Run it, or ask first when somebody else may have it."""
        self.copies.remove(copy)
        if copy.key in hand.done or copy.key in hand.tasks:
            return
        task = hand.tasks[copy.key] = Task(copy, "asking")
        if copy.redelivered or HEADER_MAYBE_DUPLICATE in copy.message.headers:
            self.ask(hand, task, "redelivered")
        else:
            if copy.key in self.begun:
                self.begun_twice.append(copy.key)
            self._start(hand, task)

    def ask(self, hand: Hand, task: Task, question: str) -> None:
        occurrence, attempt = task.copy.key
        self.say(hand, Inquiry(id=occurrence, attempt=attempt, at=self.now, question=question))  # type: ignore[arg-type]

    def listen(self, hand: Hand) -> None:
        """Do what the scheduler said."""
        for command in hand.told:
            key = command.id, command.attempt
            task = hand.tasks.get(key)
            if task is None:
                continue
            if isinstance(command, Cancel):
                task.cancelled = True
            elif isinstance(command, Verdict):
                self._obey(hand, task, command)
        hand.told.clear()

    def _obey(self, hand: Hand, task: Task, verdict: Verdict) -> None:
        if verdict.action == "drop":
            del hand.tasks[task.copy.key]
        elif verdict.action == "wait":
            self.ask(hand, task, "redelivered")
        elif task.phase == "asking":
            self._start(hand, task)
        else:
            task.phase = "leased"

    def _start(self, hand: Hand, task: Task) -> None:
        task.phase, task.started_at = "running", self.now
        self.begun.add(task.copy.key)
        occurrence, attempt = task.copy.key
        self.say(hand, Started(id=occurrence, attempt=attempt, at=self.now))

    def finish(self, hand: Hand, task: Task, outcome: Outcome) -> None:
        """The job's code ended; the errors of every third attempt will not pass by themselves."""
        occurrence, attempt = task.copy.key
        result = contracts.encode_json({"attempt": attempt, "by": hand.name}) if outcome == "completed" else b"null"
        self.finished += 1
        kind = "Flaky" if self.finished % 3 else "PermanentError"
        error = ErrorInfo(type=kind) if outcome == "failed" else None
        ended = Finished(
            id=occurrence, attempt=attempt, at=self.now, outcome=outcome, started_at=task.started_at,
            result=contracts.raw(result), error=error,
        )  # fmt: skip
        self.say(hand, ended)
        del hand.tasks[task.copy.key]
        if outcome != "interrupted":
            hand.done.add(task.copy.key)

    def beat(self, hand: Hand) -> None:
        self.say(hand, Heartbeat(at=self.now, running=list(hand.tasks)))

    def crash(self, hand: Hand) -> None:
        """Gone without a word. What was not acknowledged goes back to the broker, and a successor comes."""
        hand.alive = False
        self._give_back(hand)
        self.hire()

    def leave(self, hand: Hand) -> None:
        """Gone after giving back what it had."""
        for task in list(hand.tasks.values()):
            if task.phase != "asking":
                self.finish(hand, task, "interrupted")
        self._give_back(hand)
        self.say(hand, Stopped(at=self.now))
        hand.alive = False
        self.hire()

    def disconnect(self, hand: Hand) -> None:
        """Its connection breaks: it works on and keeps its reports, and the broker hands its messages to others."""
        if hand.online:
            hand.online = False
            self._redeliver(hand)

    def _give_back(self, hand: Hand) -> None:
        self._redeliver(hand)
        hand.tasks.clear()

    def _redeliver(self, hand: Hand) -> None:
        self.copies += [replace(t.copy, redelivered=True) for t in hand.tasks.values() if t.phase != "leased"]

    def reconnect(self, hand: Hand) -> None:
        """Stored reports leave in their order; those of a dead instance through its successor."""
        hand.online = True
        while hand.unsent:
            self._report(hand, hand.unsent.pop(0))
