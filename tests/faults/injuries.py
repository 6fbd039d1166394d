"""What is broken in a fault run, and how it heals: a seeded random order of faults, several of them at a time.

`Surgeon.work` is called again and again by the run's main loop and never waits long: it heals what is due and, when
its time has come, injures something else.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.broker.proxy import Proxy
from tests.processes.cluster import ROLES, WORKER, Cluster, Member
from tests.servers import Server

LONGEST_FREEZE_SECONDS = 8.0
LONGEST_STALL_SECONDS = 7.0
LONGEST_OUTAGE_SECONDS = 4.0


@dataclass
class Injury:
    """What was done to whom, from when to when (Unix times). `pid` of the process, 0 for a network or a server."""

    kind: str
    target: str
    pid: int
    at: float
    until: float


class Surgeon:
    """Injures a cluster about every `every_seconds`, until `finish`."""

    def __init__(
        self, cluster: Cluster, *, broker_proxy: Proxy, database_proxy: Proxy, seed: int, every_seconds: float
    ) -> None:
        self.injuries: list[Injury] = []
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._every = every_seconds
        self._next_at = time.monotonic() + every_seconds
        self._healings: list[tuple[float, Callable[[], None]]] = []
        self._proxies = {"broker network": broker_proxy, "database network": database_proxy}
        servers = cluster.servers
        self._servers: dict[str, Server] = {
            "RabbitMQ": servers.rabbitmq,
            "PostgreSQL": servers.postgres,
            "Redis": servers.redis,
        }
        self._away: set[str] = set()
        self._bag: list[Callable[[], Injury | None]] = []

    def work(self) -> None:
        """Heal and injure what is due."""
        now = time.monotonic()
        due = [healing for at, healing in self._healings if at <= now]
        self._healings = [(at, healing) for at, healing in self._healings if at > now]
        for healing in due:
            healing()
        if now >= self._next_at:
            self._next_at = now + self._every * self._chance.uniform(0.5, 1.5)
            injury = self._next()()
            if injury is not None:
                self.injuries.append(injury)

    def finish(self) -> None:
        """Heal everything."""
        while self._healings:
            healings, self._healings = self._healings, []
            for _, healing in sorted(healings, key=lambda entry: entry[0]):
                healing()
            time.sleep(0.1)

    def kinds(self) -> Counter[str]:
        """How many injuries there were of each kind."""
        return Counter(injury.kind for injury in self.injuries)

    def _next(self) -> Callable[[], Injury | None]:
        """Out of a bag, so that a short run too has some of each kind."""
        if not self._bag:
            self._bag = (
                [self._kill] * 8 + [self._freeze] * 6 + [self._restart] * 4 + [self._cut] * 4 + [self._stall] * 4
            )
            self._bag += [lambda name=name: self._outage(name) for name in ("RabbitMQ", "PostgreSQL", "Redis")] * 2
            self._chance.shuffle(self._bag)
        return self._bag.pop()

    # ── processes ──────────────────────────────────────────────────────────────────────────────────

    def _victim(self) -> Member | None:
        role = self._chance.choice([*ROLES, WORKER, WORKER, WORKER])
        able = [member for member in self._cluster.of(role) if member.alive and not member.frozen]
        return self._chance.choice(able) if able else None

    def _kill(self) -> Injury | None:
        member = self._victim()
        if member is None:
            return None
        at = time.time()
        return Injury(f"SIGKILL {_kind(member)}", member.name, member.kill(), at, time.time())

    def _freeze(self) -> Injury | None:
        member = self._victim()
        if member is None:
            return None
        seconds = self._chance.uniform(1.0, LONGEST_FREEZE_SECONDS)
        at = time.time()
        member.freeze()
        pid = member.pid

        def thaw() -> None:
            if member.pid == pid:
                member.thaw()

        self._heal_in(seconds, thaw)
        return Injury(f"SIGSTOP {_kind(member)}", member.name, pid, at, at + seconds)

    def _restart(self) -> Injury | None:
        member = self._victim()
        if member is None:
            return None
        at = time.time()
        member.send(signal.SIGTERM)
        return Injury(f"SIGTERM {_kind(member)}", member.name, member.pid, at, at)

    # ── networks and servers ───────────────────────────────────────────────────────────────────────

    def _cut(self) -> Injury:
        name = self._chance.choice(list(self._proxies))
        self._proxies[name].cut(tell_server=self._chance.random() < 0.7)
        return Injury(f"cut {name}", name, 0, time.time(), time.time())

    def _stall(self) -> Injury:
        name = self._chance.choice(list(self._proxies))
        proxy, seconds = self._proxies[name], self._chance.uniform(1.0, LONGEST_STALL_SECONDS)
        proxy.freeze()
        self._heal_in(seconds, proxy.thaw)
        return Injury(f"stall {name}", name, 0, time.time(), time.time() + seconds)

    def _outage(self, name: str) -> Injury | None:
        server = self._servers[name]
        if name in self._away or not server.running:
            return None
        at, how = time.time(), self._chance.choice(["kill", "stop"])
        # On a thread: a server that takes its time to stop must not hold back what heals the others.
        ending = threading.Thread(target=getattr(server, how), daemon=True)
        ending.start()
        self._away.add(name)
        seconds = self._chance.uniform(0.0, LONGEST_OUTAGE_SECONDS)
        injury = Injury(f"{how} {name}", name, 0, at, at + seconds)

        def answered() -> None:
            if server.answers():
                injury.until = time.time()
                self._away.discard(name)
            else:
                self._heal_in(0.2, answered)

        def launch() -> None:
            if ending.is_alive():
                self._heal_in(0.2, launch)
                return
            server.launch()
            self._heal_in(0.2, answered)

        self._heal_in(seconds, launch)
        return injury

    def _heal_in(self, seconds: float, healing: Callable[[], None]) -> None:
        self._healings.append((time.monotonic() + seconds, healing))


def _kind(member: Member) -> str:
    return "worker" if member.role == WORKER else "role"
