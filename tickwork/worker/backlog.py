"""Reports and the local store: written ahead, kept while the broker is away, replayed, told once more.

Used by the reporter, on its thread. What waits leaves in the order in which it happened, the oldest first. The end of
an attempt is never dropped: when the store takes nothing any more, it waits in memory and `full` says so.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from tickwork.contracts import Log
from tickwork.errors import StoreFull
from tickwork.logs import get_logger
from tickwork.worker.store import DROPPABLE, FINAL, PURGE_BYTES, Key, LocalStore, Row
from tickwork.worker.store_folder import others, try_open
from tickwork.worker.uplink import Uplink

log = get_logger("tickwork.reporting")

MAX_EVENTS = 500
MAX_BATCH_BYTES = 256 * 1024
COMPLAIN_SECONDS = 30.0
REPEAT_SECONDS = 30.0
REPEAT_MOST = 1000
REPEAT_MOST_BYTES = 1024 * 1024
LEFT_OUT_SEQ = 2_000_000_000
"""Number of the log line that says how many others were left out: after every number that a job's own lines have."""


class Backlog:
    """`on_settled` is told which attempts' ends the broker has confirmed."""

    def __init__(self, store: LocalStore, uplink: Uplink, *, on_settled: Callable[[list[Key]], None]) -> None:
        self._store = store
        self._uplink = uplink
        self._on_settled = on_settled
        self._stored = store.pending_count > 0
        self._in_memory: list[Row] = []  # what the store did not take
        self._confirmed: list[Row] = []
        self._left_out: Counter[Key] = Counter()
        self._complained_at = float("-inf")

    @property
    def waits(self) -> bool:
        """Whether anything must leave before what happens now."""
        return self._stored or bool(self._in_memory)

    @property
    def full(self) -> bool:
        """The store takes no more: no new work must be begun."""
        return bool(self._in_memory)

    def __len__(self) -> int:
        return len(self._in_memory) + (self._store.pending_count if self._stored else 0)

    # ── the usual way ──────────────────────────────────────────────────────────────────────────────

    def write_ahead(self, ends: Sequence[Row]) -> bool:
        """Store ends of attempts that are about to leave; forget those that were confirmed meanwhile."""
        try:
            self._store.add(ends, confirmed=self._confirmed)
        except StoreFull as error:  # the broker still takes them; only a crash right now would repeat work
            self._complain("store.not_written", error)
            return False
        self._confirmed = []
        return True

    def confirm(self, ends: Sequence[Row], *, stored: bool) -> None:
        """The broker has these ends. The store learns it with its next write, or by `settle`."""
        if stored:
            self._confirmed = list(ends)
        self._on_settled([row.key for row in ends])

    def settle(self) -> None:
        """Tell the store what was confirmed; usually the next write does that on its way."""
        if self._confirmed:
            confirmed, self._confirmed = self._confirmed, []
            self._forget(confirmed)

    def _forget(self, rows: Sequence[Row], *, replayed: bool = False) -> None:
        try:
            self._store.confirmed(rows, replayed=replayed)
        except StoreFull as error:
            self._complain("store.not_written", error)

    # ── while the broker is away ───────────────────────────────────────────────────────────────────

    def keep(self, rows: Sequence[Row], *, stored_already: bool = False) -> None:
        """Put events behind those that wait already. `stored_already`: the ends among them were written ahead."""
        if stored_already:
            self._stored = True
            rows = [row for row in rows if row.kind != FINAL]
        if self.full:
            self._left_out.update(row.key for row in rows if row.kind == DROPPABLE)
            rows = [row for row in rows if row.kind != DROPPABLE]
        waiting = [*self._in_memory, *rows]
        if not waiting:
            return
        try:
            left_out = self._store.add(waiting, confirmed=self._confirmed)
        except StoreFull as error:
            self._complain("store.full", error)
            self._in_memory = waiting
            return
        self._confirmed = []
        self._forget_in_memory(len(self._in_memory))
        self._stored = True
        if left_out:
            self._left_out += left_out
            log.warning("events.left_out", count=left_out.total(), reason="the local store is nearly full")

    def replay(self, passing: Sequence[Row]) -> list[Log]:
        """Send the oldest that waits, and beside it what is worth nothing later; at the end of the backlog, the log
        lines that say what was left out of it.
        """
        self.settle()
        stored = self._read()
        rows = stored or self._in_memory[:MAX_EVENTS]
        batches = pieces(rows)
        if passing:
            batches.append(list(passing))
        if batches and not self._uplink.send(batches):
            return []
        if stored:
            self._forget(stored, replayed=True)
            if self._in_memory:
                self.keep([])  # there is room again
        elif rows:
            self._forget_in_memory(len(rows))
        self._settled(rows)
        if rows:
            return []
        self._stored = False
        return self._say_what_was_left_out()

    def _read(self) -> list[Row]:
        try:
            return self._store.read(MAX_EVENTS, MAX_BATCH_BYTES)
        except StoreFull as error:  # what is in memory still can leave
            self._complain("store.not_read", error)
            return []

    def _forget_in_memory(self, count: int) -> None:
        """The first so many in memory were stored, or have left."""
        if count:
            del self._in_memory[:count]
            if not self._in_memory:
                log.info("store.has_room_again")

    def _say_what_was_left_out(self) -> list[Log]:
        left_out, self._left_out = self._left_out, Counter()
        return [
            Log(
                id=identifier,
                attempt=attempt,
                at=datetime.now(UTC),
                seq=LEFT_OUT_SEQ,
                level="warning",
                message=f"{count} log lines or progress reports were left out: "
                "the broker was away and the local store full",
            )
            for (identifier, attempt), count in left_out.items()
        ]

    # ── what the broker may have lost, and what others left behind ─────────────────────────────────

    def repeat(self) -> bool:
        """Tell the latest ends once more, under the names of the instances that told them. The scheduler ignores those
        that it knows; what was told earlier than these it has read before a broker can lose it. False when they did
        not leave.
        """
        self.settle()
        try:
            ends = self._store.latest_ends(seconds=REPEAT_SECONDS, count=REPEAT_MOST, max_bytes=REPEAT_MOST_BYTES)
        except StoreFull as error:
            self._complain("store.not_read", error)
            return True
        batches = [piece for _, rows in groupby(ends, lambda row: row.instance) for piece in pieces(list(rows))]
        return not batches or self._uplink.send(batches)

    def purge(self, *, at_once: bool = False) -> None:
        """Forget ends that were told long ago; unless `at_once`, only when they take too much space."""
        if at_once or self._store.excess_bytes > PURGE_BYTES:
            try:
                self._store.purge()
            except StoreFull as error:
                self._complain("store.not_written", error)

    def adopt(self) -> None:
        """Send what processes that are gone left in their files of the store's folder."""
        for path in others(self._store):
            try:
                self._adopt(path)
            except StoreFull as error:
                self._complain("store.not_adopted", error)

    def _adopt(self, path: Path) -> None:
        other = try_open(path, self._store.max_bytes)
        if other is None:
            return
        try:
            while rows := other.read(MAX_EVENTS, MAX_BATCH_BYTES):
                if not self._uplink.send([rows]):
                    return
                other.confirmed(rows, replayed=True)
                self._settled(rows)
                log.info("store.adopted", file=str(path), events=len(rows))
        finally:
            other.close()

    def _settled(self, rows: Sequence[Row]) -> None:
        if ends := [row.key for row in rows if row.kind == FINAL]:
            self._on_settled(ends)

    def _complain(self, event: str, error: StoreFull) -> None:
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_SECONDS:
            self._complained_at = now
            log.error(event, reason=str(error))


def pieces(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """The rows in pieces of at most MAX_BATCH_BYTES, or of one row that is larger."""
    if sum([len(row.body) for row in rows]) <= MAX_BATCH_BYTES:
        return [rows] if rows else []
    found: list[Sequence[Row]] = []
    piece: list[Row] = []
    size = 0
    for row in rows:
        if piece and size + len(row.body) > MAX_BATCH_BYTES:
            found.append(piece)
            piece, size = [], 0
        piece.append(row)
        size += len(row.body)
    found.append(piece)
    return found
