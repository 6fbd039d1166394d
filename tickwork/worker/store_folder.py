"""The folder of local stores: each process of a worker holds one file of it, by a lock.

A process that starts takes the first file that no living process holds, and so inherits what a dead one left behind.
Used at the start by the runtime, later by the backlog, which looks for files of processes that are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from pathlib import Path

from tickwork.errors import StoreFull
from tickwork.logs import get_logger
from tickwork.worker.store import LocalStore

log = get_logger("tickwork.store")


def open_store(folder: Path, worker: str, max_bytes: int) -> LocalStore:
    """The first file of this worker that no living process holds, made when there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        store = try_open(folder / f"{worker}-{number}.sqlite", max_bytes)
        if store is not None:
            return store
        number += 1


def try_open(path: Path, max_bytes: int) -> LocalStore | None:
    """This file, or None when a living process holds it. A damaged one is moved aside, and a new one made.

    Raises StoreFull when it cannot be opened for another reason.
    """
    lock_file = path.with_suffix(".lock").open("a")
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock_file.close()
        return None
    try:
        try:
            return LocalStore(path, lock_file, max_bytes)
        except StoreFull as error:
            if not _is_damage(error.__cause__):
                raise
            _move_aside(path, error)
            return LocalStore(path, lock_file, max_bytes)
    except StoreFull:
        lock_file.close()
        raise


def others(store: LocalStore) -> list[Path]:
    """The other files of its worker in the folder; those of processes that are gone may hold reports."""
    worker = store.path.stem.rpartition("-")[0]
    found = store.path.parent.glob(f"{worker}-*.sqlite")
    return sorted(path for path in found if path != store.path and path.stem.rpartition("-")[0] == worker)


def _is_damage(cause: BaseException | None) -> bool:
    """What SQLite says of a file that is no database, or a broken one; a full disk or missing rights are neither."""
    return isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.OperationalError)


def _move_aside(path: Path, error: StoreFull) -> None:
    aside = path.with_suffix(f".damaged-{int(time.time())}")
    log.error("store.damaged", file=str(path), moved_to=str(aside), reason=str(error))
    for suffix in ("", "-wal", "-shm"):  # a log left behind would be played into the new file
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
