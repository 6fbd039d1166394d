"""Events out: to the broker when it answers, to the local store when not; in order, ends of attempts never dropped.

One thread. Each turn takes all that was gathered, writes the ends of attempts to the store, publishes everything as
one message, and waits for its confirm while the next batch gathers, for some milliseconds at least. Only then does
`on_settled` name the attempts whose delivery may be acknowledged. When the broker does not answer, events go to the
store, and new ones queue behind them until the store has been replayed from its start (`backlog`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tickwork.broker.base import Publisher
from tickwork.contracts import Event, Log, Progress
from tickwork.logs import get_logger
from tickwork.worker.backlog import MAX_EVENTS, Backlog, pieces
from tickwork.worker.gathering import PASSING, Gathering, to_rows
from tickwork.worker.store import FINAL, Key, LocalStore, Row
from tickwork.worker.uplink import PUBLISH_TIMEOUT_SECONDS, Uplink

log = get_logger("tickwork.reporting")

IDLE_SECONDS = 1.0
SPACING_SECONDS = 0.005
"""Least time between two messages. The first one after a pause leaves at once; what follows it closely, together."""
HOUSEKEEPING_SECONDS = 30.0


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
        self._instance = instance
        self._gathering = Gathering()
        self._uplink = Uplink(publisher, worker=worker, on_return=on_return)
        self._backlog = Backlog(store, self._uplink, on_settled=on_settled)
        self._next_seq = store.next_seq
        self._repeat_due = False
        self._house_kept_at = 0.0
        self._closing = threading.Event()
        self._closing_deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="tickwork-reporter", daemon=True)

    # ── any thread ─────────────────────────────────────────────────────────────────────────────────

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
        self._uplink.retry_at = 0.0
        self._gathering.wake.set()

    def repeat(self) -> None:
        """The broker may have lost what it had confirmed: tell the latest ends of attempts once more."""
        self._repeat_due = True
        self.kick()

    @property
    def online(self) -> bool:
        """Whether the broker answered last time."""
        return not self._uplink.is_away

    @property
    def last_confirmed_at(self) -> float | None:
        """`time.monotonic()` of the broker's last confirm."""
        return self._uplink.last_confirmed_at

    @property
    def full(self) -> bool:
        """The store cannot take more: no new work must be begun."""
        return self._backlog.full

    @property
    def pending_count(self) -> int:
        """How many events have not left yet."""
        return len(self._backlog) + len(self._gathering)

    def close(self, timeout: float) -> bool:
        """Send what can be sent within `timeout` seconds, store the rest, and stop. Returns whether all left."""
        self._closing_deadline = time.monotonic() + timeout
        self._closing.set()
        self.kick()
        self._thread.join(timeout + PUBLISH_TIMEOUT_SECONDS + 5)
        return not self.pending_count

    # ── the reporter's thread ──────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        wake = self._gathering.wake
        while not self._is_done():
            wake.wait(self._pause())
            self._space_out()
            wake.clear()
            try:
                self._turn()
            except Exception:
                log.exception("reporter.failed")
                time.sleep(0.2)
        self._backlog.settle()

    def _is_done(self) -> bool:
        if not self._closing.is_set() or self._gathering:
            return False
        return not self._backlog.waits or self._uplink.is_away or time.monotonic() > self._closing_deadline

    def _pause(self) -> float:
        """Seconds that may pass until something is due by itself."""
        if self._gathering.has_events:
            return 0.0
        now = time.monotonic()
        waits = [IDLE_SECONDS]
        progress = self._gathering.progress_due_in(now)
        if progress is not None:
            waits.append(progress)
        if self._backlog.waits:
            waits.append(max(0.0, self._uplink.retry_at - now))
        return min(waits)

    def _space_out(self) -> None:
        """Under load a message costs more than what it carries: here, in the broker, and where it is read."""
        pause = (self._uplink.last_confirmed_at or 0.0) + SPACING_SECONDS - time.monotonic()
        if pause > 0 and len(self._gathering) < MAX_EVENTS:
            self._closing.wait(pause)

    def _is_behind(self) -> bool:
        return self._backlog.waits or self._uplink.is_away

    def _turn(self) -> None:
        now = time.monotonic()
        events = self._gathering.take(MAX_EVENTS, now=now)
        rows = to_rows(events, first_seq=self._next_seq, instance=self._instance)
        if rows:
            self._next_seq = rows[-1].seq + 1
        if self._is_behind():
            self._send_behind(rows, now)
        else:
            for piece in pieces(rows):
                self._send(piece)
        if self._repeat_due and not self._is_behind():
            self._repeat_due = False
            self._repeat_due = not self._backlog.repeat()
        if not any(row.kind == FINAL for row in rows):  # no write came along that would have done it
            self._backlog.settle()
        self._backlog.purge()
        if now - self._house_kept_at >= HOUSEKEEPING_SECONDS:
            self._house_kept_at = now
            self._backlog.purge(at_once=True)
            if not self._is_behind():
                self._backlog.adopt()

    def _send(self, rows: Sequence[Row]) -> None:
        """The usual way: ends of attempts into the store, everything to the broker."""
        lasting = [row for row in rows if row.kind != PASSING]
        if self._is_behind():  # an earlier piece of this turn failed
            self._backlog.keep(lasting)
            return
        ends = [row for row in rows if row.kind == FINAL]
        stored = bool(ends) and self._backlog.write_ahead(ends)
        if not self._uplink.send([rows]):
            self._backlog.keep(lasting, stored_already=stored)
        elif ends:
            self._backlog.confirm(ends, stored=stored)

    def _send_behind(self, rows: Sequence[Row], now: float) -> None:
        """What must last queues behind what waits; the oldest leaves when it is time to try."""
        self._backlog.keep([row for row in rows if row.kind != PASSING])
        if now >= self._uplink.retry_at:
            for line in self._backlog.replay([row for row in rows if row.kind == PASSING]):
                self._gathering.put(line)
