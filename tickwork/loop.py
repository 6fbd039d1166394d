"""Running until told to stop: the stop switch, its signals, and a loop that repeats one step with good manners.

Used by the worker runtime and by every scheduler command. A loop never swallows the process: the first
SIGTERM or SIGINT asks it to finish, the second ends the process at once. It knows nothing of brokers or databases.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable

from tickwork.logs import get_logger

log = get_logger("tickwork.loop")

FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 10.0


class Stop:
    """A switch that is turned once, with the reason; waiting on it is how every loop sleeps."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask everything that waits here to finish. Later calls change nothing."""
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep, or return early with True when the switch is turned."""
        return self._event.wait(seconds)

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the switch is turned, now if it already is. It must be quick and not raise."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()


def stop_on_signals(stop: Stop, *, exit_now: Callable[[int], object] = os._exit) -> None:
    """From now on the first SIGTERM or SIGINT sets `stop`, the second ends the process with status 1.

    Call it on the main thread. The handler itself only puts a number into a queue, since taking a lock in
    a signal handler can deadlock with the code that it interrupted.
    """
    received: queue.SimpleQueue[int] = queue.SimpleQueue()

    def watch() -> None:
        name = signal.Signals(received.get()).name
        log.info("stopping", signal=name, hint="a second signal ends the process at once")
        stop.set(name)
        received.get()
        exit_now(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: received.put(signum))
    threading.Thread(target=watch, name="tickwork-signals", daemon=True).start()


def stop_with_parent(stop: Stop) -> None:
    """Set `stop` when standard input ends: the process that started this one is gone."""

    def watch() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass
        log.info("stopping", hint="standard input ended: the parent process is gone")
        stop.set("parent gone")

    threading.Thread(target=watch, name="tickwork-parent", daemon=True).start()


class Backoff:
    """Growing pauses with jitter after errors; `reset` after a success."""

    def __init__(self, first: float = FIRST_BACKOFF_SECONDS, last: float = LAST_BACKOFF_SECONDS) -> None:
        self._first = first
        self._last = last
        self.failures = 0

    def next(self) -> float:
        """Seconds to wait now: between half and all of a pause that doubles with each failure in a row."""
        pause = min(self._last, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(self._first, pause * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        self.failures = 0


class Loop:
    """Repeats `tick` until stopped.

    `tick() -> int` does one bounded step and returns how much it did. Work done: again at once. Nothing to
    do: wait `idle_seconds`, less when `wake` is called. An error: log it, wait 0.2 s growing to 10 s with
    jitter, go on. `on_pass(count)` is called after each successful step: the proof of life.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], int],
        *,
        stop: Stop,
        idle_seconds: float = 1.0,
        on_pass: Callable[[int], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name = name
        self._tick = tick
        self._stop = stop
        self._idle_seconds = idle_seconds
        self._on_pass = on_pass
        self._on_error = on_error
        self._wake = threading.Event()
        self._backoff = Backoff()
        self._due_in = idle_seconds
        self.last_pass_at: float | None = None
        """`time.monotonic()` of the last successful step."""

    def wake(self) -> None:
        """There may be work: end the idle wait now. From any thread."""
        self._wake.set()

    def pause_at_most(self, seconds: float) -> None:
        """Called by the tick: something is due before the idle wait ends. Counts for the wait after this step."""
        self._due_in = seconds

    def run(self) -> None:
        """Step until `stop` is set; the step at hand is finished first."""
        self._stop.on_set(self._wake.set)
        while not self._stop.is_set():
            self._pause(self.step())

    def step(self) -> float:
        """One step; returns the seconds to wait before the next one."""
        self._wake.clear()
        self._due_in = self._idle_seconds
        try:
            count = self._tick()
            if self._on_pass is not None:
                self._on_pass(count)
        except Exception as error:
            pause = self._backoff.next()
            log.exception(f"{self.name}.failed", failures=self._backoff.failures, next_try_seconds=round(pause, 2))
            if self._on_error is not None:
                self._on_error(error)
            return pause
        if self._backoff.failures:
            log.info(f"{self.name}.recovered", failures=self._backoff.failures)
        self._backoff.reset()
        self.last_pass_at = time.monotonic()
        return 0.0 if count else min(self._due_in, self._idle_seconds)

    def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            return
        if self._backoff.failures:
            self._stop.wait(seconds)  # a wake-up must not shorten the pause after an error
        elif not self._stop.is_set():
            self._wake.wait(seconds)
