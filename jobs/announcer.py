"""After a commit, tells the pages what changed: gathered per process, sent at most every `live_interval_seconds`.

Called by whatever changed something, from any thread of any process; announcing costs an append. One background thread
turns what gathered into one message to the group `changes`, which every page's websocket reads. Nothing here ever
blocks its caller, raises into it, or carries more than names: a page that hears of a change asks for it, and is
authorised there. It knows no topics but those of jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from channels.layers import get_channel_layer

from jobs.conf import conf

GROUP = "changes"
MAX_TOPICS = 300  # a longer message would say "everything" anyway
MAX_GATHERED = 20_000
SEND_TIMEOUT_SECONDS = 2.0

logger = logging.getLogger(__name__)


class Change(Protocol):
    """Something that changed, told about before anybody knows whether a page is open: names its topics when asked."""

    def topics(self) -> Iterable[str]:
        """The parts of the pages that it touches."""


def announce(changes: Iterable[Change | str]) -> None:
    """Something changed, or these topics did; call after the commit."""
    _announcer.gather(changes)


def announce_job(job_id: object) -> None:
    """A job's definition or state changed; call after the commit."""
    announce((f"job:{job_id}", "jobs", "overview"))


def flush() -> None:
    """Send what gathered, now, and return when it is sent. For tests and the end of a process.

    Not for a thread whose event loop runs.
    """
    asyncio.run(_announcer.send_gathered())


def dropped_count() -> int:
    """How many messages of this process were dropped since the channel layer could not be reached."""
    return _announcer.dropped_count


def topics_of(gathered: Iterable[Change | str]) -> set[str]:
    """Which parts of the pages these changes touch."""
    topics: set[str] = set()
    for change in gathered:
        topics.update((change,) if isinstance(change, str) else change.topics())
    return topics


class Announcer:
    """What gathered in this process, and the thread that sends it."""

    def __init__(self) -> None:
        self._gathered: deque[Change | str] = deque(maxlen=MAX_GATHERED)
        self._wake = threading.Event()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_reachable = True
        self.dropped_count = 0

    def gather(self, changes: Iterable[Change | str]) -> None:
        """Keep the changes for the next message; the oldest give way when nobody sends."""
        self._gathered.extend(changes)
        if not self._wake.is_set():
            self._wake.set()
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down
            self._thread = None

    def _run(self) -> None:
        pause = threading.Event()
        # One loop for the thread's life: a Redis connection belongs to the loop that opened it.
        with asyncio.Runner() as runner:
            while True:
                self._wake.wait()
                self._wake.clear()
                runner.run(self.send_gathered())
                pause.wait(conf().live_interval_seconds)

    async def send_gathered(self) -> None:
        """One message about everything that gathered."""
        with self._sending:
            message = self._message()
            if message is None:
                return
            try:
                layer = get_channel_layer()
                await asyncio.wait_for(layer.group_send(GROUP, message), SEND_TIMEOUT_SECONDS)
            except Exception as error:  # whatever the layer's client raises: pages must never stop the work
                self.dropped_count += 1
                if self._is_reachable:
                    logger.warning(
                        "live updates cannot be sent (%s); pages refresh by polling until they can",
                        type(error).__name__,
                    )
                self._is_reachable = False
            else:
                if not self._is_reachable:
                    logger.info("live updates can be sent again; %d messages were dropped", self.dropped_count)
                self._is_reachable = True

    def _message(self) -> dict[str, object] | None:
        count = len(self._gathered)
        if not count:
            return None
        topics = topics_of([self._gathered.popleft() for _ in range(count)])
        many = count == MAX_GATHERED or len(topics) > MAX_TOPICS
        return {"type": "changes", "topics": [] if many else sorted(topics), "many": many}


_announcer = Announcer()


def _start_anew() -> None:
    """In a forked child: the parent's thread and locks did not come along."""
    global _announcer
    _announcer = Announcer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
