"""Events out: to the broker when it answers, to the local store when not; in order, ends of attempts never dropped.

One thread. Each turn takes all that was gathered, writes the ends of attempts to the store, publishes everything as
one message, and waits for its confirm while the next batch gathers. Only then does `on_settled` name the attempts
whose delivery may be acknowledged. When the broker does not answer, events go to the store, and new ones queue
behind them until the store has been replayed from its start.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tickwork.broker import topology
from tickwork.broker.base import Message, Publisher
from tickwork.contracts import Event, Log, Progress
from tickwork.errors import BrokerUnavailable, StoreFull
from tickwork.logs import get_logger
from tickwork.loop import Backoff
from tickwork.worker.gathering import PASSING, Gathering, envelope, to_rows
from tickwork.worker.store import DROPPABLE, FINAL, PURGE_ROWS, Key, LocalStore, Row

log = get_logger("tickwork.reporting")

MAX_EVENTS = 500
MAX_BATCH_BYTES = 256 * 1024
PUBLISH_TIMEOUT_SECONDS = 10.0
REPLAY_SECONDS = 30.0
IDLE_SECONDS = 1.0
LEFT_OUT_SEQ = 2_000_000_000
"""Number of the log line that says how many others were left out: after every number that a job's own lines have."""


class Reporter:
    """See the module. `event`, `log` and `progress` may be called from any thread and return at once."""

    def __init__(
        self,
        publisher: Publisher,
        store: LocalStore,
        *,
        worker: str,
        instance: str,
        on_settled: Callable[[list[Key]], None],
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        self.full = False
        """The store cannot take more: no new work must be begun."""
        self.last_confirmed_at: float | None = None
        """`time.monotonic()` of the last confirm."""
        self._publisher = publisher
        self._store = store
        self._worker = worker
        self._instance = instance
        self._routing_key = topology.events_key(worker, instance)
        self._on_settled = on_settled
        self._on_return = on_return
        self._envelope = envelope(worker)
        self._gathering = Gathering()
        self._next_seq = store.next_seq
        self._confirmed: list[Row] = []
        self._unstored: list[Row] = []
        self._left_out: Counter[Key] = Counter()
        self._backlog = store.pending_count > 0
        self._away_since: float | None = None
        self._retry_at = 0.0
        self._backoff = Backoff(last=REPLAY_SECONDS)
        self._house_kept_at = 0.0
        self._complained_at = float("-inf")
        self._closing_deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="tickwork-reporter", daemon=True)

    def start(self) -> None:
        """Begin to send; what an earlier process left in the store goes first."""
        self._thread.start()

    def event(self, event: Event) -> None:
        """Tell this, after what was told before."""
        self._gathering.put(event)

    def log(self, event: Log) -> None:
        self._gathering.put(event)

    def progress(self, event: Progress) -> None:
        self._gathering.progress(event)

    def kick(self) -> None:
        """The broker may be back: try now."""
        self._retry_at = 0.0
        self._gathering.wake.set()

    @property
    def online(self) -> bool:
        """Whether the broker answered last time."""
        return self._away_since is None

    @property
    def pending_count(self) -> int:
        """How many events have not left yet."""
        stored = self._store.pending_count if self._backlog else 0
        return stored + len(self._unstored) + len(self._gathering)

    def close(self, timeout: float) -> bool:
        """Send what can be sent within `timeout` seconds, store the rest, and stop. Returns whether all left."""
        self._closing_deadline = time.monotonic() + timeout
        self.kick()
        self._thread.join(timeout + PUBLISH_TIMEOUT_SECONDS + 5)
        return not self.pending_count

    # ── the reporter's thread ──────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        wake = self._gathering.wake
        while not self._is_done():
            wake.wait(self._pause())
            wake.clear()
            try:
                self._turn()
            except Exception:
                log.exception("reporter.failed")
                time.sleep(0.2)
        self._settle_store()

    def _is_done(self) -> bool:
        deadline = self._closing_deadline
        if deadline is None:
            return False
        if self._gathering or (self._unstored and not self.full):
            return False
        return not self._backlog or self._away_since is not None or time.monotonic() > deadline

    def _pause(self) -> float:
        """Seconds that may pass until something is due by itself."""
        if self._gathering.has_events:
            return 0.0
        now = time.monotonic()
        waits = [IDLE_SECONDS]
        progress = self._gathering.progress_due_in(now)
        if progress is not None:
            waits.append(progress)
        if self._backlog or self._unstored:
            waits.append(max(0.0, self._retry_at - now))
        return min(waits)

    def _is_behind(self) -> bool:
        return self._backlog or self._away_since is not None or bool(self._unstored)

    def _turn(self) -> None:
        now = time.monotonic()
        events = self._gathering.take(MAX_EVENTS, now=now)
        rows = to_rows(events, first_seq=self._next_seq, instance=self._instance)
        if rows:
            self._next_seq = rows[-1].seq + 1
        if self._is_behind():
            self._keep([row for row in rows if row.kind != PASSING])
            if now >= self._retry_at:
                self._replay([row for row in rows if row.kind == PASSING])
        else:
            for batch in _batches(rows):
                self._send(batch)
        if self._confirmed and not any(row.kind == FINAL for row in rows):  # no write comes along that would do it
            self._settle_store()
        if self._store.finished_excess > PURGE_ROWS:
            self._store.purge()
        if now - self._house_kept_at >= REPLAY_SECONDS:
            self._house_kept_at = now
            self._keep_house()

    def _send(self, rows: Sequence[Row]) -> None:
        """The usual way: ends of attempts into the store, everything to the broker."""
        ends = [row for row in rows if row.kind == FINAL]
        if self._is_behind():  # an earlier batch of this turn failed
            self._keep([row for row in rows if row.kind != PASSING])
            return
        stored = not ends or self._write_ahead(ends)
        if self._publish([(self._routing_key, rows)]):
            if ends and stored:
                self._confirmed = ends
            self._settled(ends)
        else:
            self._keep([row for row in rows if row.kind != PASSING and not (stored and row.kind == FINAL)])
            self._backlog = self._backlog or bool(ends)

    def _write_ahead(self, ends: Sequence[Row]) -> bool:
        try:
            self._store.add(ends, confirmed=self._confirmed)
        except StoreFull as error:  # the broker still takes them; only a crash right now would repeat work
            self._complain("store.not_written", error)
            return False
        self._confirmed = []
        return True

    def _keep(self, rows: Sequence[Row]) -> None:
        """Put events behind those that wait already."""
        if self.full:
            self._left_out.update(row.key for row in rows if row.kind == DROPPABLE)
            rows = [row for row in rows if row.kind != DROPPABLE]
        waiting = [*self._unstored, *rows]
        if not waiting:
            return
        try:
            left_out = self._store.add(waiting, confirmed=self._confirmed)
        except StoreFull as error:
            self._complain("store.full", error)
            self.full = True
            self._unstored = waiting
            return
        if self.full:
            log.info("store.has_room_again")
        self.full = False
        self._confirmed = []
        self._unstored = []
        self._backlog = True
        if left_out:
            self._left_out += left_out
            log.warning("events.left_out", count=left_out.total(), reason="the local store is nearly full")

    def _replay(self, passing: Sequence[Row]) -> None:
        """Send the oldest events of the store, and what must not wait beside them."""
        self._settle_store()
        rows = self._store.read(MAX_EVENTS, MAX_BATCH_BYTES)
        messages = [(topology.events_key(self._worker, rows[0].instance), rows)] if rows else []
        if passing:
            messages.append((self._routing_key, list(passing)))
        if messages and not self._publish(messages):
            return
        if rows:
            self._store.confirmed(rows, replayed=True)
            self._settled([row for row in rows if row.kind == FINAL])
            if self._unstored:
                self._keep([])
        elif not self._unstored:
            self._backlog = False
            self._say_what_was_left_out()
        else:
            self._keep([])

    def _publish(self, batches: Sequence[tuple[str, Sequence[Row]]]) -> bool:
        messages = [
            Message(exchange=topology.EVENTS, routing_key=key, body=self._envelope(rows), type="events")
            for key, rows in batches
        ]
        try:
            results = self._publisher.publish(messages, timeout=PUBLISH_TIMEOUT_SECONDS)
            refused = [reason for reason in results if reason]
        except BrokerUnavailable as error:
            refused = [str(error)]
        now = time.monotonic()
        if refused:
            if self._away_since is None:
                self._away_since = now
                log.warning("broker.away", reason=refused[0], hint="reports are kept in the local store")
            self._retry_at = now + self._backoff.next()
            return False
        self.last_confirmed_at = now
        self._backoff.reset()
        if self._away_since is not None:
            log.info("broker.back", seconds=round(now - self._away_since, 1), pending=self.pending_count)
            self._away_since = None
            self._on_return()
        return True

    def _settled(self, ends: Sequence[Row]) -> None:
        if ends:
            self._on_settled([row.key for row in ends])

    def _settle_store(self) -> None:
        """Forget in the store what was confirmed; usually the next write does that on its way."""
        if self._confirmed:
            confirmed, self._confirmed = self._confirmed, []
            try:
                self._store.confirmed(confirmed)
            except StoreFull as error:
                self._complain("store.not_written", error)

    def _keep_house(self) -> None:
        self._store.purge()
        if self._is_behind():
            return
        for path in self._store.others():
            try:
                self._adopt(path)
            except StoreFull as error:
                self._complain("store.not_adopted", error)

    def _adopt(self, path: Path) -> None:
        """Send what a process that is gone left in its file of the store."""
        other = LocalStore.try_open(path, self._store.max_bytes)
        if other is None:
            return
        try:
            while rows := other.read(MAX_EVENTS, MAX_BATCH_BYTES):
                if not self._publish([(topology.events_key(self._worker, rows[0].instance), rows)]):
                    return
                other.confirmed(rows, replayed=True)
                self._settled([row for row in rows if row.kind == FINAL])
                log.info("store.adopted", file=str(path), events=len(rows))
        finally:
            other.close()

    def _say_what_was_left_out(self) -> None:
        left_out, self._left_out = self._left_out, Counter()
        for (identifier, attempt), count in left_out.items():
            text = f"{count} log lines or progress reports were left out: the broker was away and the local store full"
            line = Log(
                id=identifier, attempt=attempt, at=datetime.now(UTC), seq=LEFT_OUT_SEQ, level="warning", message=text
            )
            self._gathering.put(line)

    def _complain(self, event: str, error: StoreFull) -> None:
        now = time.monotonic()
        if now - self._complained_at >= REPLAY_SECONDS:
            self._complained_at = now
            log.error(event, reason=str(error))


def _batches(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """The rows in pieces of at most MAX_BATCH_BYTES, or of one row that is larger."""
    if sum([len(row.body) for row in rows]) <= MAX_BATCH_BYTES:
        return [rows] if rows else []
    pieces: list[Sequence[Row]] = []
    piece: list[Row] = []
    size = 0
    for row in rows:
        if piece and size + len(row.body) > MAX_BATCH_BYTES:
            pieces.append(piece)
            piece, size = [], 0
        piece.append(row)
        size += len(row.body)
    pieces.append(piece)
    return pieces
