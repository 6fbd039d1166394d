"""The worker's local file: reports that the broker has not confirmed yet, and attempts that ended here.

Owned by the reporter (writes) and asked by the runtime (was this attempt finished here?). SQLite in WAL mode, so
that what was written survives the death of the process. Each process holds one file of the store's folder by a
lock; a process that starts takes the first free one, and so inherits what a dead one left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tickwork.errors import StoreFull
from tickwork.logs import get_logger

log = get_logger("tickwork.store")

Key = tuple[str, int]
"""(occurrence id, attempt)"""

DROPPABLE, KEPT, FINAL = 0, 1, 2
NEAR_FULL = 0.8
ROW_OVERHEAD = 128
FINISHED_KEEP_SECONDS = 24 * 3600
FINISHED_ROW_BYTES = 160
PURGE_ROWS = 2000

SCHEMA = """
CREATE TABLE IF NOT EXISTS pending (
    seq INTEGER PRIMARY KEY,      -- the order in which events happened
    kind INTEGER NOT NULL,        -- 0 may be left out when space runs short, 1 kept, 2 the end of an attempt
    instance TEXT NOT NULL,
    id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    body BLOB NOT NULL            -- the event as JSON
);
CREATE TABLE IF NOT EXISTS finished (
    seq INTEGER PRIMARY KEY,      -- that of its event
    id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at INTEGER NOT NULL           -- Unix time; when it was stored, later when it was confirmed
);
CREATE UNIQUE INDEX IF NOT EXISTS finished_key ON finished (id, attempt);
"""


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
        self._finished_count: int
        with self._guarded() as db:
            self.next_seq = 1 + max(
                db.execute("SELECT ifnull(max(seq), 0) FROM pending").fetchone()[0],
                db.execute("SELECT ifnull(max(seq), 0) FROM finished").fetchone()[0],
            )
            self.pending_count, self._bytes = db.execute(
                f"SELECT count(*), ifnull(sum(length(body) + {ROW_OVERHEAD}), 0) FROM pending"
            ).fetchone()
            self._finished_count = db.execute("SELECT count(*) FROM finished").fetchone()[0]

    @classmethod
    def open(cls, folder: Path, worker: str, max_bytes: int) -> LocalStore:
        """The first file of this worker that no living process holds, made when there is none."""
        folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            store = cls.try_open(folder / f"{worker}-{number}.sqlite", max_bytes)
            if store is not None:
                return store
            number += 1

    @classmethod
    def try_open(cls, path: Path, max_bytes: int) -> LocalStore | None:
        """This file, or None when a living process holds it."""
        lock_file = path.with_suffix(".lock").open("a")
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock_file.close()
            return None
        try:
            return cls(path, lock_file, max_bytes)
        except StoreFull as error:
            if not isinstance(error.__cause__, sqlite3.DatabaseError) or isinstance(
                error.__cause__, sqlite3.OperationalError
            ):
                lock_file.close()
                raise
            aside = path.with_suffix(f".damaged-{int(time.time())}")
            log.error("store.damaged", file=str(path), moved_to=str(aside), reason=str(error))
            for suffix in ("", "-wal", "-shm"):  # a log left behind would be played into the new file
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}{suffix}", f"{aside}{suffix}")
            return cls(path, lock_file, max_bytes)

    def others(self) -> list[Path]:
        """The other files of this worker in the folder; those of dead processes may hold reports."""
        worker = self.path.stem.rpartition("-")[0]
        found = self.path.parent.glob(f"{worker}-*.sqlite")
        return sorted(path for path in found if path != self.path and path.stem.rpartition("-")[0] == worker)

    def is_finished(self, keys: Sequence[Key]) -> set[Key]:
        """Which of these attempts ended here, as far as is remembered."""
        with self._guarded() as db:
            found = set()
            for key in keys:
                if db.execute("SELECT 1 FROM finished WHERE id = ? AND attempt = ?", key).fetchone():
                    found.add(key)
            return found

    def waiting(self) -> set[Key]:
        """The attempts whose end still waits for the broker."""
        with self._guarded() as db:
            return set(db.execute("SELECT id, attempt FROM pending WHERE kind = ?", (FINAL,)))

    def recent(self, count: int) -> list[Key]:
        """The attempts that ended here last, oldest first."""
        with self._guarded() as db:
            rows = db.execute("SELECT id, attempt FROM finished ORDER BY seq DESC LIMIT ?", (count,)).fetchall()
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
            if self._bytes + size > NEAR_FULL * self.max_bytes:
                left_out.update(row.key for row in rows if row.kind == DROPPABLE)
                kept = [row for row in rows if row.kind != DROPPABLE]
                size = sum([row.size for row in kept])
            if self._bytes + size > self.max_bytes:
                left_out += self._clear_droppable(db)
            if self._bytes + size > self.max_bytes:
                raise StoreFull(
                    f"{self.path} holds {self._bytes} bytes of reports that wait for the broker, "
                    f"the limit is {self.max_bytes} (TICKWORK_WORKER_STORE_MAX_BYTES)"
                )
            db.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?, ?, ?)", [row[:6] for row in kept])
            now = int(time.time())
            ends = [(row.seq, row.id, row.attempt, now) for row in kept if row.ends]
            if ends:
                db.executemany("INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?)", ends)
            self._bytes += size
            self.pending_count += len(kept)
            self._finished_count += len(ends)
        return left_out

    def read(self, limit: int, max_bytes: int) -> list[Row]:
        """The oldest events that wait, all of one instance, up to `limit` and about `max_bytes`, at least one."""
        rows: list[Row] = []
        size = 0
        with self._guarded() as db:
            for values in db.execute(
                "SELECT seq, kind, instance, id, attempt, body FROM pending ORDER BY seq LIMIT ?", (limit,)
            ):
                row = Row(*values)
                size += row.size
                if rows and (size > max_bytes or row.instance != rows[0].instance):
                    break
                rows.append(row)
        return rows

    def confirmed(self, rows: Sequence[Row], *, replayed: bool = False) -> None:
        """The broker has these events: forget all that wait up to the last one of them."""
        if not rows:
            return
        with self._guarded(writing=True) as db:
            self._forget(db, rows)
            if replayed:
                span = (rows[0].seq, rows[-1].seq)
                db.execute("UPDATE finished SET at = ? WHERE seq BETWEEN ? AND ?", (int(time.time()), *span))

    def purge(self) -> int:
        """Forget attempts that were confirmed a day ago, and the oldest ones beyond a quarter of the space."""
        with self._guarded(writing=True) as db:
            waiting = db.execute("SELECT ifnull(min(seq), 1 << 62) FROM pending").fetchone()[0]
            rows = db.execute("SELECT seq, at FROM finished ORDER BY seq LIMIT ?", (PURGE_ROWS,)).fetchall()
            oldest = time.time() - FINISHED_KEEP_SECONDS
            excess = self.finished_excess
            gone = [seq for place, (seq, at) in enumerate(rows) if seq < waiting and (at < oldest or place < excess)]
            db.executemany("DELETE FROM finished WHERE seq = ?", [(seq,) for seq in gone])
            self._finished_count -= len(gone)
        return len(gone)

    @property
    def finished_excess(self) -> int:
        """How many more attempts are remembered as finished than a quarter of the space holds."""
        return self._finished_count - self.max_bytes // 4 // FINISHED_ROW_BYTES

    def close(self) -> None:
        """Close the file and let go of it. Safe to call twice."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._lock_file.close()

    def _forget(self, db: sqlite3.Connection, rows: Sequence[Row]) -> None:
        span = (rows[0].seq, rows[-1].seq)
        self.pending_count -= db.execute("DELETE FROM pending WHERE seq BETWEEN ? AND ?", span).rowcount
        self._bytes = 0 if self.pending_count == 0 else self._bytes - sum([row.size for row in rows])

    def _clear_droppable(self, db: sqlite3.Connection) -> Counter[Key]:
        """Make room for the ends of attempts; returns how many log lines and progress reports of which went."""
        counts = db.execute("SELECT id, attempt, count(*) FROM pending WHERE kind = ? GROUP BY 1, 2", (DROPPABLE,))
        cleared = Counter({(identifier, attempt): count for identifier, attempt, count in counts})
        db.execute("DELETE FROM pending WHERE kind = ?", (DROPPABLE,))
        self._bytes, self.pending_count = db.execute(
            f"SELECT ifnull(sum(length(body) + {ROW_OVERHEAD}), 0), count(*) FROM pending"
        ).fetchone()
        return cleared

    @contextlib.contextmanager
    def _guarded(self, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection for one step; `writing` makes it one transaction. SQLite's errors become StoreFull."""
        with self._lock:
            before = (getattr(self, "_bytes", 0), getattr(self, "pending_count", 0))
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
                    self._bytes, self.pending_count = before
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
