"""A real worker process, and a scheduler's side of the conversation played by the test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal, TypeVar

from tests.waiting import PATIENCE_SECONDS, eventually
from tickwork import contracts
from tickwork.broker import topology
from tickwork.broker.base import Message
from tickwork.broker.connect import connect
from tickwork.contracts import (
    AttemptEvent,
    Cancel,
    Command,
    CommandMessage,
    Dispatch,
    Event,
    EventBatch,
    Finished,
    Inquiry,
    Verdict,
)
from tickwork.ids import uuid7

ROOT = Path(__file__).parents[2]
JOBS = '''
import asyncio, os, time
from pathlib import Path
from tickwork import JobContext, Worker

worker = Worker("staged")

def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")

@worker.job
async def add(ctx: JobContext, a: int, b: int = 2) -> int:
    note(f"add {ctx.id}")
    return a + b

@worker.job
def wait_for(ctx: JobContext, path: str) -> str:
    """Runs until a file is there."""
    note(f"wait_for {ctx.id}")
    ctx.log.info("waiting")
    while not Path(path).exists():
        ctx.sleep(0.02)
    return "found"

@worker.job(isolation="process")
def isolated(ctx: JobContext) -> int:
    return os.getpid()
'''
E = TypeVar("E", bound=Event)


class WorkerStage:
    """The scheduler's side: sends attempts and commands, hears events, starts and ends worker processes."""

    def __init__(self, folder: Path, url: str, worker_url: str = "") -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.touch()
        (folder / "staged_jobs.py").write_text(JOBS)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.batches: list[EventBatch] = []
        self._worker_url = worker_url or url
        self.broker = connect(url)
        queues = [topology.job_queue("staged", name) for name in ("add", "wait_for", "isolated")]
        self._publisher = self.broker.publisher(queues)
        self._publisher.publish([])
        self._consumer = self.broker.consumer([topology.events_queue()], prefetch=1000)
        self._over = threading.Event()
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_SECONDS)
            if process.stdin is not None:
                process.stdin.close()
        self._over.set()
        self._listening.join(PATIENCE_SECONDS)
        self._consumer.close()
        self._publisher.close()

    # ── processes ──────────────────────────────────────────────────────────────────────────────────

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A worker process that has registered."""
        before = len(self.heard(contracts.Registered))
        settings = {
            "BROKER_URL": self._worker_url,
            "NOTES": str(self.notes),
            "TICKWORK_WORKER_STORE": str(self.folder / "store"),
            "TICKWORK_WORKER_HEARTBEAT_SECONDS": "0.2",
            "PYTHONPATH": str(ROOT),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "tickwork", "worker", "staged_jobs:worker", *arguments],
            cwd=self.folder,
            env={**os.environ, **settings, **environment},
            stdin=subprocess.PIPE,
        )
        self.processes.append(process)
        eventually(lambda: len(self.heard(contracts.Registered)) > before, what="the worker registers")
        return process

    def runs(self, text: str) -> int:
        """How many times a job noted this."""
        return self.notes.read_text().splitlines().count(text)

    # ── what the scheduler says ────────────────────────────────────────────────────────────────────

    def order(self, job_type: str, *, timeout: float | None = None, **data: Any) -> Dispatch:
        """Send one attempt."""
        order = Dispatch(
            id=str(uuid7()),
            job_id="j",
            job_name="a job",
            worker="staged",
            job_type=job_type,
            attempt=1,
            max_attempts=3,
            data=data,
            timeout_seconds=timeout,
        )
        self.send(job_type, contracts.encode(order), order.id)
        return order

    def send(self, job_type: str, body: bytes, identifier: str, **headers: Any) -> None:
        key = topology.job_key("staged", job_type, identifier)
        message = Message(exchange=topology.JOBS, routing_key=key, body=body, headers=headers)
        assert self._publisher.publish([message]) == [None]

    def command(self, command: Command, instance: str = topology.EVERY_INSTANCE) -> None:
        body = contracts.encode(CommandMessage(command=command))
        key = topology.control_key("staged", instance)
        self._publisher.publish([Message(exchange=topology.CONTROL, routing_key=key, body=body)])

    def cancel(self, order: Dispatch, reason: str) -> None:
        self.command(Cancel(id=order.id, attempt=1, reason=reason))

    def answer(self, order: Dispatch, action: Literal["run", "drop", "wait"], instance: str) -> None:
        self.command(Verdict(id=order.id, attempt=1, action=action, ask_again_seconds=0.1), instance)

    # ── what it hears ──────────────────────────────────────────────────────────────────────────────

    def heard(self, kind: type[E], order: Dispatch | None = None) -> list[E]:
        """The events of this kind so far, of one attempt if given."""
        events = [event for batch in list(self.batches) for event in batch.events]
        return [
            event
            for event in events
            if isinstance(event, kind) and (order is None or (isinstance(event, AttemptEvent) and event.id == order.id))
        ]

    def finished(self, order: Dispatch) -> Finished:
        """How it ended; waits for it."""
        return eventually(lambda: self.heard(Finished, order), what=f"{order.job_type} ends")[0]

    def asked(self, order: Dispatch, question: str) -> str:
        """Wait for this inquiry; returns who asks."""

        def who() -> str:
            for batch in list(self.batches):
                for event in batch.events:
                    if isinstance(event, Inquiry) and (event.id, event.question) == (order.id, question):
                        return batch.instance
            return ""

        return eventually(who, what=f"an inquiry ({question})")

    def depth(self, job_type: str) -> int | None:
        return self.broker.depth(topology.job_queue("staged", job_type))

    def _listen(self) -> None:
        while not self._over.is_set():
            deliveries = self._consumer.take(500, wait=0.1)
            self.batches += [contracts.decode(EventBatch, delivery.body) for delivery in deliveries]
            self._consumer.ack(deliveries)
