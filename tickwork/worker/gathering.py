"""Events on their way out: gathered from all threads, folded, and turned into rows. No broker, no file.

Filled by jobs and the runtime, emptied by the reporter. Folding: an attempt that began and ended within one
batch is told by its end alone; of an attempt's progress only the latest leaves, at most four times a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from tickwork.contracts import (
    ErrorInfo,
    Event,
    Finished,
    Heartbeat,
    Inquiry,
    Log,
    Progress,
    Registered,
    Started,
    Stopped,
)
from tickwork.logs import get_logger
from tickwork.worker.store import DROPPABLE, FINAL, KEPT, Key, Row

log = get_logger("tickwork.reporting")

PROGRESS_SECONDS = 0.25
PASSING = -1
"""Kind of a row that is worth sending now and worth nothing later: never stored."""

ENDS = ("completed", "failed", "timed_out")
"""Outcomes after which an attempt never runs again. One that was cancelled or interrupted may come back to whoever
the scheduler says, so a redelivery of it is asked about."""

_KINDS = {
    Started: KEPT,
    Progress: DROPPABLE,
    Log: DROPPABLE,
    Finished: FINAL,
    Inquiry: PASSING,
    Registered: PASSING,
    Heartbeat: PASSING,
    Stopped: PASSING,
}
_encode = msgspec.json.Encoder().encode


class Gathering:
    """A queue of events. `put` and `progress` are cheap and for any thread; the rest is the reporter's."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._latest: dict[Key, Progress] = {}
        self._told_at: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._events) + len(self._latest)

    @property
    def has_events(self) -> bool:
        """Whether anything could leave now (held back progress aside)."""
        return bool(self._events)

    def put(self, event: Event) -> None:
        """One more event, after those that are here."""
        self._events.append(event)
        if not self.wake.is_set():
            self.wake.set()

    def progress(self, event: Progress) -> None:
        """The attempt's progress; replaces what waits of the same attempt."""
        key = (event.id, event.attempt)
        with self._lock:
            first = key not in self._latest
            self._latest[key] = event
        if first:
            self.wake.set()

    def take(self, limit: int, *, now: float | None = None) -> list[Event]:
        """The oldest events, folded; up to about `limit`."""
        events = self._events
        raw = [events.popleft() for _ in range(min(limit, len(events)))]
        ends = {(event.id, event.attempt) for event in raw if type(event) is Finished}
        if not ends and not self._latest:
            return raw
        folded: list[Event] = []
        for event in raw:
            if type(event) is Started and (event.id, event.attempt) in ends:
                continue
            if type(event) is Finished and self._latest:
                with self._lock:
                    late = self._latest.pop((event.id, event.attempt), None)
                if late is not None:
                    folded.append(late)
            folded.append(event)
        if self._latest:
            folded += self._due_progress(time.monotonic() if now is None else now)
        return folded

    def progress_due_in(self, now: float) -> float | None:
        """Seconds until held back progress may leave; None when there is none."""
        with self._lock:
            if not self._latest:
                return None
            return max(0.0, min(self._told_at.get(key, 0.0) for key in self._latest) + PROGRESS_SECONDS - now)

    def _due_progress(self, now: float) -> list[Progress]:
        with self._lock:
            self._told_at = {key: at for key, at in self._told_at.items() if now - at < PROGRESS_SECONDS}
            due = [key for key in self._latest if key not in self._told_at]
            self._told_at.update(dict.fromkeys(due, now))
            return [self._latest.pop(key) for key in due]


def to_rows(events: Sequence[Event], *, first_seq: int, instance: str) -> list[Row]:
    """The events as rows, numbered from `first_seq`. What JSON cannot hold is replaced or left out, and said."""
    rows: list[Row] = []
    seq = first_seq
    for event in events:
        body = _body(event)
        if body is None:
            continue
        if isinstance(event, Registered | Heartbeat | Stopped):
            rows.append(Row(seq, PASSING, instance, "", 0, body))
        else:
            ends = type(event) is Finished and event.outcome in ENDS
            rows.append(Row(seq, _KINDS[type(event)], instance, event.id, event.attempt, body, ends))
        seq += 1
    return rows


def envelope(worker: str) -> Callable[[Sequence[Row]], bytes]:
    """A function that makes the body of an EventBatch message of rows of one instance."""
    name = _encode(worker)

    def body(rows: Sequence[Row]) -> bytes:
        head = b'{"v":1,"worker":%b,"instance":%b,"events":[' % (name, _encode(rows[0].instance))
        return head + b",".join([row.body for row in rows]) + b"]}"

    return body


def _body(event: Event) -> bytes | None:
    try:
        return _encode(event)
    except Exception as error:
        log.error("event.not_json", event_type=type(event).__name__, reason=str(error))
        if not isinstance(event, Finished):
            return None
        info = ErrorInfo(type="ResultNotJson", message="what the job said at its end cannot be written as JSON")
        return _encode(msgspec.structs.replace(event, outcome="failed", result=msgspec.Raw(b"null"), error=info))
