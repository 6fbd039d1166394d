"""The load of a fault run: schedules of every second, one-time jobs, and a steady stream of calls, on one thread.

Made by `tests.faults.run`. Its hand talks to the database directly, past the faulty network, so that what was promised
to a caller is known: an id that was answered must exist ever after.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from tests.processes.cluster import Hand

TICK_JOBS = 4
STEP_SECONDS = 0.5
STURDY: dict[str, Any] = {
    "max_attempts": 20,
    "retry_base_seconds": 0.3,
    "retry_cap_seconds": 2.0,
    "retry_jitter_seconds": 0.0,
    "timeout_seconds": 15.0,
    "retry_on_timeout": True,
    "retry_on_zombie": True,
    "on_worker_unavailable": "redispatch",
}
"""A policy under which every fault is survived, so that each occurrence must complete."""
FRAGILE: dict[str, Any] = {
    "max_attempts": 1,
    "timeout_seconds": 15.0,
    "retry_on_zombie": False,
    "on_worker_unavailable": "fail",
}
"""The defaults' way: a fault may end it, with a word."""
LOG_LINES = 20

MIX: list[tuple[int, str, dict[str, Any]]] = [
    (52, "short", STURDY),
    (12, "waits", STURDY),
    (10, "works", STURDY),
    (4, "isolated", STURDY),
    (10, "flaky", STURDY),
    (3, "talks", STURDY),
    (2, "fails", STURDY),
    (7, "waits", FRAGILE),
]
"""(parts of a hundred, job type, policy) of what is called."""


class Load:
    """Makes work at `per_second` until `stop`. After `stop`: what was promised, and what went wrong."""

    def __init__(self, hand: Hand, *, per_second: float, seed: int) -> None:
        self._hand = hand
        self._per_second = per_second
        self._chance = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.promised: list[str] = []
        """Ids of occurrences that a call was answered with."""
        self.one_time_jobs: list[str] = []
        """Ids of one-time jobs; each has one occurrence in the end."""
        self.tick_jobs: list[str] = []
        """Ids of the jobs with a tick in each second, of which none may be missing."""
        self.refused = 0
        """Calls that were answered with an error, since the database was away."""
        self.last_ticks: dict[str, str] = {}
        self._called: list[tuple[int, str, str, dict[str, Any]]] = []

    def start(self) -> None:
        """Define the jobs, and begin."""
        ticking = {"cron": "* * * * * *", "misfire_policy": "catch_up", "misfire_limit": 500}
        for number in range(TICK_JOBS):
            fields = {"name": f"every second {number}", "worker": "faults", "job_type": "short", **ticking, **STURDY}
            self.tick_jobs.append(self._hand.do("create_job", fields=fields | {"concurrent_execution_policy": 2}))
        for parts, job_type, policy in MIX:
            data = self._data(job_type)
            name = f"{job_type} {'sturdy' if policy is STURDY else 'fragile'}"
            fields = {"name": name, "worker": "faults", "job_type": job_type, "data": data, **policy}
            self._called.append((parts, self._hand.do("create_job", fields=fields), job_type, policy))
        self._thread.start()

    def stop(self) -> None:
        """End the calls, then pause every cron schedule and note its last tick."""
        self._ended.set()
        self._thread.join(60)
        while True:
            try:
                said = self._hand.do("end_schedules")
            except RuntimeError:
                time.sleep(STEP_SECONDS)
            else:
                break
        self.last_ticks = {job: tick for job, tick in (line.split() for line in said)}

    def _run(self) -> None:
        owed, last = 0.0, time.monotonic()
        while not self._ended.wait(STEP_SECONDS):
            now = time.monotonic()
            owed, last = owed + (now - last) * self._per_second, now
            count, owed = int(owed), owed - int(owed)
            try:
                self._call(count)
            except RuntimeError:
                self.refused += 1

    def _call(self, count: int) -> None:
        weights = [parts for parts, *_ in self._called]
        chosen = self._chance.choices(self._called, weights, k=count)
        for entry in self._called:
            _, job, job_type, _ = entry
            datas = [self._data(job_type) for other in chosen if other is entry]
            if datas:
                self.promised += self._hand.do("trigger", job=job, datas=datas)
        due_at = self._hand.do("soon", seconds=1.0)
        fields = {"name": "once", "worker": "faults", "job_type": "short", **STURDY}
        if once := count // 10:
            self.one_time_jobs += self._hand.do("create_due_jobs", count=once, execute_at=due_at, fields=fields)

    def _data(self, job_type: str) -> dict[str, Any]:
        seconds = round(self._chance.choice([0.1, 0.3, 1.0, 3.0]) * self._chance.uniform(0.5, 1.5), 2)
        match job_type:
            case "waits" | "works":
                return {"seconds": seconds}
            case "isolated":
                return {"seconds": min(seconds, 0.5)}
            case "flaky":
                return {"failures": self._chance.randint(1, 2), "seconds": 0.1}
            case "talks":
                return {"lines": LOG_LINES, "seconds": seconds}
        return {}
