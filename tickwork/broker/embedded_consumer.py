"""Takes messages from the SQLite file. Made by `EmbeddedBroker.consumer`.

`take` claims on the caller's thread, a batch in one transaction. A thread of the consumer's own renews its lease,
settles what was acked, and sweeps the whole file: whoever lives does the housekeeping for all queues.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tickwork.broker import base, embedded_topology
from tickwork.broker.base import Delivery
from tickwork.broker.embedded_bell import bell_of
from tickwork.broker.embedded_claim import claim, ready_queues
from tickwork.broker.embedded_store import Store, acknowledge, anything_expired, expire, give_back, reject
from tickwork.broker.topology import Queue
from tickwork.errors import BrokerError, BrokerUnavailable
from tickwork.loop import Backoff

logger = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.5
SWEEP_SECONDS = 0.5
# How often a taker looks for commits of other processes.
LOOK_SECONDS = 0.015
# How long an ack waits for company; a take in the meantime carries it along.
GATHER_SECONDS = 0.005
CLOSE_SECONDS = 5.0


class EmbeddedConsumer(base.Consumer):
    """See `base.Consumer`. Nothing is prefetched: a message is claimed when it is taken."""

    def __init__(
        self,
        path: Path,
        queues: Sequence[Queue],
        *,
        prefetch: int,
        on_connect: Callable[[], None] | None,
        on_disconnect: Callable[[], None] | None,
    ) -> None:
        self._path = path
        self._queues = list(queues)
        self._prefetch = prefetch
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._bell = bell_of(path)
        self._lock = threading.RLock()  # guards everything below
        self._store: Store | None = None
        self._me = 0
        self._names: dict[int, str] = {}
        self._turn = 0
        self._in_hand: set[int] = set()
        self._acks: list[int] = []
        self._rejects: list[int] = []
        self._requeues: list[int] = []
        self._paused = False
        self._stood_down = False
        self._closed = False
        self._since: float | None = None
        self._renewed_at = 0.0
        self._swept_at = 0.0
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tickwork-consumer", daemon=True)
        self._thread.start()

    # ── any thread ─────────────────────────────────────────────────────────────────────────────────

    def take(self, limit: int, *, wait: float) -> list[Delivery]:
        deadline = time.monotonic() + wait
        paused = self._paused
        seen: tuple[int, int | None] | None = None
        while not self._closed and self._paused == paused:
            rung = self._bell.rung
            try:
                with self._lock:
                    now_seen = (rung, self._store.data_version() if self._store is not None else None)
                    if now_seen != seen:
                        seen = now_seen
                        if taken := self._take(limit):
                            return taken
            except BrokerError as error:
                self._lose(str(error))
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._bell.wait(min(left, LOOK_SECONDS), rung)
        return []

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        self._settle(deliveries, self._acks)

    def reject(self, deliveries: Iterable[Delivery], *, requeue: bool) -> None:
        self._settle(deliveries, self._requeues if requeue else self._rejects)

    def pause(self) -> None:
        with self._lock:
            if self._paused or self._closed:
                return
            self._paused = True
        self._wake.set()
        self._bell.ring()

    @property
    def connected(self) -> bool:
        return self._since is not None and not self._paused

    @property
    def connected_since(self) -> float | None:
        return self._since

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._ending.set()
        self._wake.set()
        self._bell.ring()
        self._thread.join(CLOSE_SECONDS)

    def _settle(self, deliveries: Iterable[Delivery], into: list[int]) -> None:
        with self._lock:
            was_full = len(self._in_hand) >= self._prefetch
            for delivery in deliveries:
                consumer, message = delivery.tag
                if consumer == self._me and message in self._in_hand:
                    self._in_hand.discard(message)
                    into.append(message)
        self._wake.set()
        if was_full:
            self._bell.ring()

    # ── under the lock ─────────────────────────────────────────────────────────────────────────────

    def _take(self, limit: int) -> list[Delivery]:
        store = self._store
        limit = min(limit, self._prefetch - len(self._in_hand))
        if store is None or self._paused or limit <= 0:
            return []
        ready = ready_queues(store, self._me, self._names)
        if not ready:
            return []
        # The queue that was first last time is last this time.
        self._turn += 1
        start = self._turn % len(ready)
        with store.transaction() as connection:
            self._renew(connection)
            now = time.time()
            if anything_expired(store, now):
                expire(store, connection, now)
            self._write_settled(store, connection)
            taken = claim(connection, self._me, ready[start:] + ready[:start], self._names, limit)
        self._after_settled()
        self._in_hand.update([delivery.tag[1] for delivery in taken])
        return taken

    def _write_settled(self, store: Store, connection: sqlite3.Connection) -> None:
        """Carry out acks and rejects; `_after_settled` forgets them once they are committed."""
        if self._acks:
            acknowledge(connection, self._me, self._acks)
        if self._rejects:
            reject(store, connection, self._me, self._rejects)
        if self._requeues:
            give_back(store, connection, self._me, self._requeues)

    def _after_settled(self) -> None:
        moved = bool(self._rejects or self._requeues)
        self._acks.clear()
        self._rejects.clear()
        self._requeues.clear()
        if moved:
            self._bell.ring()

    def _renew(self, connection: sqlite3.Connection) -> None:
        """Prolong the lease; who claims under a lost lease would hold messages for ever."""
        now = time.time()
        if not embedded_topology.renew(connection, self._me, now + LEASE_SECONDS):
            raise BrokerUnavailable(
                f"this consumer was silent for {LEASE_SECONDS:g} s: what it held was handed out to others"
            )
        self._renewed_at = now

    def _lose(self, reason: str) -> None:
        """Forget the file and everything in hand; the own thread opens it again."""
        with self._lock:
            if self._store is None:
                return
            logger.warning("broker.lost role=consumer file=%s reason=%s", self._path, reason)
            self._store.close()
            self._store = None
            self._in_hand.clear()
            self._acks.clear()
            self._rejects.clear()
            self._requeues.clear()
        self._wake.set()

    # ── the consumer's own thread ──────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        backoff = Backoff()
        told = ""
        while not self._ending.is_set():
            if self._store is None:
                if self._since is not None:
                    self._since = None
                    self._call_back(self._on_disconnect)
                try:
                    self._open()
                except BrokerError as error:
                    if str(error) != told:
                        told = str(error)
                        logger.warning("broker.unavailable role=consumer reason=%s", told)
                    self._ending.wait(backoff.next())
                    continue
                backoff.reset()
                told = ""
                self._call_back(self._on_connect)
            if self._wake.wait(SWEEP_SECONDS):
                self._wake.clear()
                self._ending.wait(GATHER_SECONDS)
            try:
                self._keep_house()
            except BrokerError as error:
                self._lose(str(error))
        self._leave()

    def _open(self) -> None:
        store = Store(self._path)
        try:
            with store.transaction() as connection:
                # What an earlier life of this consumer held is free at once.
                embedded_topology.release(store, connection, self._me)
                me = embedded_topology.register(connection, time.time() + LEASE_SECONDS)
                names = embedded_topology.declare_all(connection, self._queues, owner=me)
        except BaseException:
            store.close()
            raise
        with self._lock:
            self._me, self._names = me, names
            self._renewed_at, self._since = time.time(), time.monotonic()
            self._store = store
        self._bell.ring()

    def _keep_house(self) -> None:
        """Settle, renew, and sweep when it is time; takes the write lock only when there is something to write."""
        with self._lock:
            store = self._store
            if store is None:
                return
            now = time.time()
            settling = bool(self._acks or self._rejects or self._requeues)
            sweeping = now - self._swept_at >= SWEEP_SECONDS
            if sweeping:
                self._swept_at = now
                sweeping = embedded_topology.anyone_dead(store, now) or anything_expired(store, now)
            leaving = self._paused and not self._stood_down
            if not (settling or sweeping or leaving or now - self._renewed_at >= RENEW_SECONDS):
                return
            with store.transaction() as connection:
                self._renew(connection)
                self._write_settled(store, connection)
                if leaving:
                    embedded_topology.stand_down(connection, self._me)
                    self._stood_down = True
                if sweeping:
                    embedded_topology.release_dead(store, connection, time.time())
                    expire(store, connection, time.time())
            self._after_settled()
        if sweeping or leaving:
            self._bell.ring()

    def _leave(self) -> None:
        """Settle what is left, give back what is in hand, and vanish."""
        with self._lock:
            store, self._store, self._since = self._store, None, None
            if store is None:
                return
            try:
                with store.transaction() as connection:
                    self._write_settled(store, connection)
                    embedded_topology.release(store, connection, self._me)
                self._after_settled()
            except BrokerError as error:
                logger.warning("broker.consumer_not_closed file=%s reason=%s", self._path, error)
            finally:
                store.close()
        self._bell.ring()

    def _call_back(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            try:
                callback()
            except Exception:
                logger.exception("broker.callback_failed role=consumer")
