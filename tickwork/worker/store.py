"""The worker's local file: reports that the broker has not confirmed yet, and the ends of attempts that it has.

Owned by the reporter (writes) and asked when a delivery comes again (did this attempt end here, and how?). One table
of reports in the order in which they happened, and one number: up to where the broker has confirmed them. What is
confirmed is deleted, except the ends of attempts, which are kept for a day, so that an end that the broker loses can
be told again. SQLite in WAL mode, so that what was written survives the death of the process. Each process holds one
file of the store's folder by a lock; a process that starts takes the first free one, and so inherits what a dead one
left behind.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tickwork.errors import StoreFull

Key = tuple[str, int]
"""(occurrence id, attempt)"""

DROPPABLE, KEPT, FINAL = 0, 1, 2
NEAR_FULL = 0.8
ROW_OVERHEAD = 128
REMEMBER_SECONDS = 24 * 3600
REMEMBER_SHARE = 0.25
"""Of the store's size, on top of it: what the ends of attempts may take that the broker has confirmed."""
PURGE_ROWS = 2000
PURGE_BYTES = 256 * 1024
"""How much more than their share they may take until somebody purges."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (
    seq INTEGER PRIMARY KEY,      -- the order in which events happened
    kind INTEGER NOT NULL,        -- 0 may be left out when space runs short, 1 kept, 2 the end of an attempt
    instance TEXT NOT NULL,
    id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    ends INTEGER NOT NULL,        -- whether the attempt ended for good
    at INTEGER NOT NULL,          -- Unix time: when it was stored, or replayed
    body BLOB NOT NULL            -- the event as JSON
);
CREATE INDEX IF NOT EXISTS reports_ends ON reports (id, attempt) WHERE ends;
CREATE TABLE IF NOT EXISTS confirmed (up_to INTEGER NOT NULL);
INSERT INTO confirmed SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM confirmed);
"""
COLUMNS = "seq, kind, instance, id, attempt, body, ends"


class Row(NamedTuple):
    """An event on its way: its place in the order, its kind, who said it, which attempt it is about, its JSON."""

    seq: int
    kind: int
    instance: str
    id: str
    attempt: int
    body: bytes
    ends: bool = False
    """Whether it ends the attempt for good, so that this attempt never runs here again."""

    @property
    def key(self) -> Key:
        return self.id, self.attempt

    @property
    def size(self) -> int:
        return len(self.body) + ROW_OVERHEAD


class LocalStore:
    """One file of the store. Every method may be called from any thread; each one is one transaction at most."""

    def __init__(self, path: Path, lock_file: IO[str], max_bytes: int) -> None:
        self.path = path
        self._lock_file = lock_file
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._db = _connect(path)
        self.pending_count = self._pending_bytes = self._remembered_bytes = self._confirmed_to = 0
        with self._guarded() as db:
            (self._confirmed_to,) = db.execute("SELECT up_to FROM confirmed").fetchone()
            (last,) = db.execute("SELECT ifnull(max(seq), 0) FROM reports").fetchone()
            self.next_seq = 1 + max(last, self._confirmed_to)
            self.pending_count, self._pending_bytes = self._measure(db, "seq > ?")
            _, self._remembered_bytes = self._measure(db, "seq <= ?")

    def ends_of(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        """How these attempts ended here, as JSON of their last report; those that did not, or are forgotten, are left
        out."""
        found: dict[Key, bytes] = {}
        with self._guarded() as db:
            for key in keys:
                row = db.execute(
                    "SELECT body FROM reports WHERE id = ? AND attempt = ? AND ends ORDER BY seq DESC LIMIT 1", key
                ).fetchone()
                if row is not None:
                    found[key] = row[0]
        return found

    def waiting(self) -> set[Key]:
        """The attempts whose end still waits for the broker."""
        with self._guarded() as db:
            query = "SELECT id, attempt FROM reports WHERE seq > ? AND kind = ?"
            return set(db.execute(query, (self._confirmed_to, FINAL)))

    def recent(self, count: int) -> list[Key]:
        """The attempts that ended here last, oldest first."""
        with self._guarded() as db:
            query = "SELECT id, attempt FROM reports WHERE +ends ORDER BY seq DESC LIMIT ?"
            return db.execute(query, (count,)).fetchall()[::-1]

    def latest_ends(self, *, seconds: float, count: int, max_bytes: int) -> list[Row]:
        """The confirmed ends of the last so many seconds before the newest one, within the limits, oldest first."""
        rows: list[Row] = []
        with self._guarded() as db:
            query = f"SELECT {COLUMNS}, at FROM reports WHERE seq <= ? AND +ends ORDER BY seq DESC LIMIT ?"
            newest_at = size = 0
            for *values, at in db.execute(query, (self._confirmed_to, count)):
                row = Row(*values)
                newest_at = newest_at or at
                size += row.size
                if at < newest_at - seconds or (rows and size > max_bytes):
                    break
                rows.append(row)
        return rows[::-1]

    def add(self, rows: Sequence[Row], *, confirmed: Sequence[Row] = ()) -> Counter[Key]:
        """Write these events, and forget those that were confirmed meanwhile, in one transaction.

        Returns how many were left out of which attempts for want of space (log lines and progress only). Raises
        StoreFull when not even the ends of attempts fit; then nothing was written.
        """
        size = sum([row.size for row in rows])
        kept: Sequence[Row] = rows
        left_out: Counter[Key] = Counter()
        with self._guarded(writing=True) as db:
            if confirmed:
                self._forget(db, confirmed)
            if self._pending_bytes + size > NEAR_FULL * self.max_bytes:
                left_out.update(row.key for row in rows if row.kind == DROPPABLE)
                kept = [row for row in rows if row.kind != DROPPABLE]
                size = sum([row.size for row in kept])
            if self._pending_bytes + size > self.max_bytes:
                left_out += self._clear_droppable(db)
            if self._pending_bytes + size > self.max_bytes:
                raise StoreFull(
                    f"{self.path} holds {self._pending_bytes} bytes of reports that wait for the broker, "
                    f"the limit is {self.max_bytes} (TICKWORK_WORKER_STORE_MAX_BYTES)"
                )
            now = int(time.time())
            db.executemany(
                f"INSERT OR REPLACE INTO reports ({COLUMNS}, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(*row, now) for row in kept],
            )
            self._pending_bytes += size
            self.pending_count += len(kept)
        return left_out

    def read(self, limit: int, max_bytes: int) -> list[Row]:
        """The oldest events that wait, all of one instance, up to `limit` and about `max_bytes`, at least one."""
        rows: list[Row] = []
        size = 0
        with self._guarded() as db:
            query = f"SELECT {COLUMNS} FROM reports WHERE seq > ? ORDER BY seq LIMIT ?"
            for values in db.execute(query, (self._confirmed_to, limit)):
                row = Row(*values)
                size += row.size
                if rows and (size > max_bytes or row.instance != rows[0].instance):
                    break
                rows.append(row)
        return rows

    def confirmed(self, rows: Sequence[Row], *, replayed: bool = False) -> None:
        """The broker has these events, the oldest that waited: forget them, except the ends of attempts.

        Raises StoreFull when that cannot be written; then they count as confirmed until the file is opened again.
        """
        if not rows:
            return
        try:
            with self._guarded(writing=True) as db:
                self._forget(db, rows)
                if replayed:
                    span = (rows[0].seq, rows[-1].seq)
                    db.execute("UPDATE reports SET at = ? WHERE seq BETWEEN ? AND ?", (int(time.time()), *span))
        except StoreFull:
            self._count_confirmed(rows, kept=rows)
            raise

    def purge(self) -> int:
        """Forget ends that were confirmed a day ago, and the oldest beyond their share of the space, some at a time."""
        with self._guarded(writing=True) as db:
            query = "SELECT seq, at, length(body) FROM reports WHERE seq <= ? ORDER BY seq LIMIT ?"
            too_old = time.time() - REMEMBER_SECONDS
            gone = up_to = 0
            for seq, at, size in db.execute(query, (self._confirmed_to, PURGE_ROWS)):
                if at >= too_old and self.excess_bytes <= 0:
                    break
                gone, up_to = gone + 1, seq
                self._remembered_bytes -= size + ROW_OVERHEAD
            db.execute("DELETE FROM reports WHERE seq <= ?", (up_to,))
        return gone

    @property
    def excess_bytes(self) -> int:
        """By how much the remembered ends take more than their share of the space."""
        return self._remembered_bytes - int(self.max_bytes * REMEMBER_SHARE)

    def close(self) -> None:
        """Close the file and let go of it. Safe to call twice."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._lock_file.close()

    def _forget(self, db: sqlite3.Connection, rows: Sequence[Row]) -> None:
        ends = [row for row in rows if row.ends]
        if len(ends) < len(rows):
            db.execute("DELETE FROM reports WHERE seq BETWEEN ? AND ? AND NOT ends", (rows[0].seq, rows[-1].seq))
        db.execute("UPDATE confirmed SET up_to = ?", (rows[-1].seq,))
        self._count_confirmed(rows, kept=ends)

    def _count_confirmed(self, rows: Sequence[Row], *, kept: Sequence[Row]) -> None:
        self._confirmed_to = rows[-1].seq
        self.pending_count -= len(rows)
        self._pending_bytes -= sum([row.size for row in rows])
        self._remembered_bytes += sum([row.size for row in kept])

    def _clear_droppable(self, db: sqlite3.Connection) -> Counter[Key]:
        """Make room for the ends of attempts; returns how many log lines and progress reports of which went."""
        counts = db.execute("SELECT id, attempt, count(*) FROM reports WHERE kind = ? GROUP BY 1, 2", (DROPPABLE,))
        cleared = Counter({(identifier, attempt): count for identifier, attempt, count in counts})
        db.execute("DELETE FROM reports WHERE kind = ?", (DROPPABLE,))
        self.pending_count, self._pending_bytes = self._measure(db, "seq > ?")
        return cleared

    def _measure(self, db: sqlite3.Connection, which: str) -> tuple[int, int]:
        """How many reports there are on one side of what is confirmed, and how many bytes they take."""
        query = f"SELECT count(*), ifnull(sum(length(body) + {ROW_OVERHEAD}), 0) FROM reports WHERE {which}"
        count, size = db.execute(query, (self._confirmed_to,)).fetchone()
        return count, size

    @contextlib.contextmanager
    def _guarded(self, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection for one step; `writing` makes it one transaction. SQLite's errors become StoreFull."""
        with self._lock:
            before = (self.pending_count, self._pending_bytes, self._remembered_bytes, self._confirmed_to)
            try:
                if writing:
                    self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                if writing:
                    self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                    self.pending_count, self._pending_bytes, self._remembered_bytes, self._confirmed_to = before
                if isinstance(error, sqlite3.Error):
                    raise StoreFull(f"the local store {self.path} cannot be used: {error}") from error
                raise


def _connect(path: Path) -> sqlite3.Connection:
    db = None
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA journal_size_limit = 16777216")
        db.executescript(SCHEMA)
        return db
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise StoreFull(f"the local store {path} cannot be opened: {error}") from error
