"""One fault run: start everything, load it, injure it, let it come to rest, judge.

Called by `python -m tests.faults`.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from tests.broker.proxy import Proxy
from tests.faults import verdict
from tests.faults.evidence import Evidence, gather
from tests.faults.injuries import Injury, Surgeon
from tests.faults.load import Load
from tests.processes.cluster import WORKER, Cluster, Servers

COUNTS = {"dispatch": 2, "relay_outbox": 2, "consume_events": 2, "detect_zombies": 2, "worker": 3}
WARM_UP_SECONDS = 3.0
REST_SECONDS = 180.0
STEP_SECONDS = 0.05


@dataclass(kw_only=True)
class Outcome:
    """What a run came to."""

    seed: int
    seconds: float
    injuries: list[Injury]
    evidence: Evidence
    refused: int
    rest_seconds: float
    restarts: int
    broken: dict[str, list[str]] = field(default_factory=dict)
    repeated_because: dict[str, int] = field(default_factory=dict)
    not_completed_because: dict[str, int] = field(default_factory=dict)

    @property
    def gaps(self) -> tuple[float, tuple[float, str]]:
        """The longest time without a completion while there was load, and the longest from a fault to the next
        completion, with that fault's kind; in seconds.
        """
        done = self.evidence.completions
        longest = max((after - before for before, after in pairwise(done)), default=0.0)
        recoveries = [
            (next((at for at in done if at > injury.at), injury.at) - injury.at, injury.kind)
            for injury in self.injuries
        ]
        return longest, max(recoveries, default=(0.0, "none"))


def run(*, seconds: float, seed: int, jobs_per_second: float, every_seconds: float, folder: Path) -> Outcome:
    """See the module. `seconds`: how long faults are injected."""
    servers = Servers()
    with contextlib.ExitStack() as stack:
        stack.callback(servers.close)
        servers.start()
        broker = stack.enter_context(Proxy("127.0.0.1", servers.rabbitmq.port))
        database = stack.enter_context(Proxy("127.0.0.1", servers.postgres.port))
        cluster = stack.enter_context(
            Cluster(
                servers,
                folder,
                name="faults",
                broker_port=broker.open().port,
                database_port=database.open().port,
            )
        )
        cluster.start_all(**COUNTS)
        load = Load(cluster.hand, per_second=jobs_per_second, seed=seed)
        surgeon = Surgeon(cluster, broker_proxy=broker, database_proxy=database, seed=seed, every_seconds=every_seconds)
        load.start()
        cluster.until(lambda: len(cluster.effects("end")) > 5, timeout=60, what="the first jobs to end")
        _pass(cluster, WARM_UP_SECONDS)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            cluster.tend()
            surgeon.work()
            time.sleep(STEP_SECONDS)
        surgeon.finish()
        _stop_load(cluster, load)
        rested = _rest(cluster)
        outcome = Outcome(
            seed=seed,
            seconds=seconds,
            injuries=surgeon.injuries,
            evidence=gather(cluster),
            refused=load.refused,
            rest_seconds=rested,
            restarts=sum(member.starts - 1 for member in cluster.members),
        )
        _judge(outcome, load)
        (folder / "timeline").write_text(_timeline(outcome))
        (folder / "repeated").write_text(_repeated(outcome))
        if outcome.broken:
            print(cluster.describe())
        with contextlib.suppress(AssertionError):
            cluster.stop(cluster.of(WORKER))
    return outcome


def _pass(cluster: Cluster, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        cluster.tend()
        time.sleep(STEP_SECONDS)


def _stop_load(cluster: Cluster, load: Load) -> None:
    load.stop()
    cluster.tend()


def _rest(cluster: Cluster) -> float:
    """Wait until nothing is under way; returns how long that took. What does not come to rest is judged as it is."""
    began = time.monotonic()

    def at_rest() -> bool:
        return cluster.rows(
            "SELECT (SELECT count(*) FROM occurrences_occurrence WHERE status IN (0, 1, 6)), "
            "(SELECT count(*) FROM occurrences_outboxmessage)"
        ) == [(0, 0)]

    with contextlib.suppress(AssertionError):
        cluster.until(at_rest, timeout=REST_SECONDS, what="rest", every=0.2)
    rested = time.monotonic() - began
    _pass(cluster, 1.0)  # what still runs although its occurrence is at its end
    return rested


def _timeline(outcome: Outcome) -> str:
    """Each injury and each second's completions, for whoever looks into the folder afterwards."""
    lines = [
        (injury.at, f"{injury.kind} {injury.target} {injury.pid or ''} until +{injury.until - injury.at:.1f} s")
        for injury in outcome.injuries
    ]
    per_second = Counter(int(at) for at in outcome.evidence.completions)
    seconds = range(min(per_second, default=0), max(per_second, default=0) + 1)
    lines += [(second + 0.999, f"    {per_second[second]} completed") for second in seconds]
    return "".join(f"{datetime.fromtimestamp(at):%H:%M:%S.%f} {text}\n" for at, text in sorted(lines))


def _repeated(outcome: Outcome) -> str:
    """Everything about each occurrence that had its effect more than once."""
    lines = []
    for run in outcome.evidence.runs.values():
        if len(run.of_kind("end")) > 1:
            told = [(effect.at, f"{effect.kind} attempt {effect.attempt} in {effect.pid}") for effect in run.effects]
            told += [(move.at, f"status {move.status} attempt {move.attempt} {move.instance}") for move in run.moves]
            lines.append(f"{run.id} ({run.job_type}) {run.reason}")
            lines += [f"    {datetime.fromtimestamp(at):%H:%M:%S.%f} {text}" for at, text in sorted(told)]
    return "\n".join(lines)


def _judge(outcome: Outcome, load: Load) -> None:
    evidence, injuries = outcome.evidence, outcome.injuries
    repeated, repeated_because = verdict.repeated(evidence, injuries)
    unseen, unseen_because = verdict.unseen(evidence)
    found = {
        "lost": list(verdict.lost(evidence, load)),
        "repeated": repeated,
        "unexplained": unseen,
        "illegal history": list(verdict.illegal(evidence)),
        "log lines": list(verdict.silent(evidence, injuries)),
        "left over": list(verdict.left_over(evidence)),
    }
    outcome.broken = {promise: sentences for promise, sentences in found.items() if sentences}
    outcome.repeated_because = dict(repeated_because)
    outcome.not_completed_because = dict(unseen_because)
