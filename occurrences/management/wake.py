"""Ends a loop's sleep when there is work: LISTEN/NOTIFY on PostgreSQL, the file's change counter on SQLite.

A convenience, never a need: a loop that is not woken polls.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connection

from tickwork.logs import get_logger
from tickwork.loop import Backoff, Stop

log = get_logger("tickwork.wake")
WATCH_SECONDS = 0.02
LISTEN_SECONDS = 1.0
DJANGOS_OWN = frozenset({"cursor_factory", "context", "prepare_threshold"})
"""Parameters that are not about where the database is and how to reach it."""


def wake_on_commit(wake: Callable[[], None], *, channel: str, stop: Stop) -> None:
    """From now on, until `stop`, call `wake` shortly after each commit that concerns `channel`; on a thread of its
    own.
    """
    parameters = connection.get_connection_params()
    watch = _listen if connection.vendor == "postgresql" else _watch_file
    threading.Thread(target=watch, args=(parameters, channel, wake, stop), name=f"wake-{channel}", daemon=True).start()


def _listen(parameters: dict[str, Any], channel: str, wake: Callable[[], None], stop: Stop) -> None:
    address = {name: value for name, value in parameters.items() if name not in DJANGOS_OWN}
    backoff = Backoff()
    while not stop.is_set():
        try:
            with psycopg.connect(**address, autocommit=True) as listener:
                listener.execute(f"LISTEN {channel}")
                wake()  # what was committed before this moment
                backoff.reset()
                while not stop.is_set():
                    for _ in listener.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                        wake()
        except psycopg.Error as error:
            log.warning("wake.database_away", reason=type(error).__name__)
            stop.wait(backoff.next())


def _watch_file(parameters: dict[str, Any], channel: str, wake: Callable[[], None], stop: Stop) -> None:
    with sqlite3.connect(parameters["database"], timeout=20) as watcher:
        seen = -1
        while not stop.wait(WATCH_SECONDS):
            version = watcher.execute("PRAGMA data_version").fetchone()[0]
            if version != seen:
                seen = version
                wake()
    watcher.close()
