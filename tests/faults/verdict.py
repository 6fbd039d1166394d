"""The promises, checked against the evidence: each function returns a sentence for every time that one was broken.

nothing is lost          every promised id, every tick, every one-time job has its occurrence, at its end;
                         a Completed one has the effect of its job
nothing happens twice    no attempt begins after its end was recorded; a repeated effect has a fault that explains it
every failure is seen    what is not Completed has a reason and an open failure of a kind that the faults explain
history is legal         by the witness and by the row itself
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from tests.faults.evidence import Evidence, Move
from tests.faults.injuries import Injury
from tests.faults.load import LOG_LINES, Load
from tests.processes.cluster import CANCELLED, COMPLETED, FAILED, QUEUED, RUNNING, SKIPPED, TIMED_OUT, UNKNOWN

LIVE = {QUEUED, RUNNING, UNKNOWN}
LEGAL = {was: set(range(8)) - {SKIPPED} for was in LIVE} | {
    was: set() for was in (COMPLETED, FAILED, CANCELLED, TIMED_OUT, SKIPPED)
}
"""Nobody retries by hand in a fault run, so nothing leaves a final status."""
KINDS_OF_FAULTS = {"zombie", "queue_ttl_expired", "delivery_limit", "timed_out"}
REPORTED_WITHIN_SECONDS = 12.0
"""How long after its end an effect's report may still be on its way: then a fault that strikes loses it."""


def lost(evidence: Evidence, load: Load) -> Iterator[str]:
    """What should be there and is not."""
    runs = evidence.runs
    for identifier in load.promised:
        if identifier not in runs:
            yield f"{identifier} was promised to a caller and does not exist"
    ticks: dict[str, list[datetime]] = {}
    for run in runs.values():
        if run.scheduled_for is not None:
            ticks.setdefault(run.job, []).append(run.scheduled_for)
    for job in load.one_time_jobs:
        if len(ticks.get(job, ())) != 1:
            yield f"one-time job {job} has {len(ticks.get(job, ()))} occurrences"
    for job in load.tick_jobs:
        yield from _ticks(job, ticks.get(job, []), datetime.fromisoformat(load.last_ticks[job]))
    for run in runs.values():
        if run.status in LIVE:
            yield f"{run.id} ({run.job_type}) is not at its end: status {run.status}, {run.reason}"
        if run.status == COMPLETED and not run.of_kind("end"):
            yield f"{run.id} ({run.job_type}) is Completed and its job never ended"


def _ticks(job: str, found: Sequence[datetime], last: datetime) -> Iterator[str]:
    if not found:
        yield f"job {job} has no tick at all"
        return
    seconds = {int(tick.timestamp()) for tick in found}
    if len(seconds) != len(found):
        yield f"job {job} has two occurrences for one tick"
    missing = set(range(min(seconds), int(last.timestamp()) + 1)) - seconds
    if missing:
        yield f"job {job} misses {len(missing)} ticks, the first at {datetime.fromtimestamp(min(missing))}"


def repeated(evidence: Evidence, injuries: Sequence[Injury]) -> tuple[list[str], Counter[str]]:
    """Broken promises, and the repeated effects that a fault explains, counted by that fault."""
    broken: list[str] = []
    explained: Counter[str] = Counter()
    for run in evidence.runs.values():
        for effect in run.of_kind("start"):
            over = next((move for move in run.moves if _ends_attempt(move, effect.attempt)), None)
            if over is not None and effect.at > over.at:
                broken.append(
                    f"{run.id} ({run.job_type}): attempt {effect.attempt} began in {effect.pid} "
                    f"{effect.at - over.at:.3f} s after its end was recorded (status {over.status})"
                )
        ends = run.of_kind("end")
        for first, second in pairwise(ends):
            why = _explanation(first.pid, first.at, second.at, injuries)
            if why:
                explained[why] += 1
            else:
                broken.append(
                    f"{run.id} ({run.job_type}) had its effect in {first.pid} and {second.at - first.at:.1f} s later "
                    f"in {second.pid}, and no fault explains it"
                )
    return broken, explained


def _ends_attempt(move: Move, attempt: int) -> bool:
    return move.was_attempt == attempt and (move.attempt > attempt or move.status not in LIVE)


def _explanation(pid: int, ended_at: float, again_at: float, injuries: Sequence[Injury]) -> str:
    """The fault that kept the first end from being known in time: of its worker, or of what carries its reports."""
    own = [injury for injury in injuries if injury.pid == pid]
    for injury in own:
        if injury.kind.startswith(("SIGKILL", "SIGSTOP")) and injury.at < again_at and injury.until > ended_at - 30:
            return injury.kind
    for injury in injuries:
        if (
            injury.at < again_at
            and injury.until + REPORTED_WITHIN_SECONDS > ended_at
            and (injury.target in ("RabbitMQ", "broker network"))
        ):
            return injury.kind
    return ""


def unseen(evidence: Evidence) -> tuple[list[str], Counter[str]]:
    """Failures without a word, and the explained ones, counted by kind."""
    broken: list[str] = []
    explained: Counter[str] = Counter()
    for run in evidence.runs.values():
        if run.status == COMPLETED or run.status in LIVE:
            continue
        meant = run.job_type == "fails"
        kinds = set(run.open_failures)
        what = f"{run.id} ({run.job_type}, status {run.status}, {run.reason!r}, failures {sorted(kinds)})"
        if not run.reason:
            broken.append(f"{what} does not say why")
        if run.status in (FAILED, TIMED_OUT) and len(run.open_failures) != 1:
            broken.append(f"{what} has not one open failure")
        if meant:
            explained["meant to fail"] += 1
        elif run.is_sturdy:
            broken.append(f"{what} should have survived every fault")
        elif run.status not in (FAILED, TIMED_OUT) or not kinds <= KINDS_OF_FAULTS:
            broken.append(f"{what} ended in a way that no fault explains")
        else:
            explained[run.reason.split(":")[0]] += 1
    return broken, explained


def illegal(evidence: Evidence) -> Iterator[str]:
    """Moves that must not be, by the witness and by the row's own history."""
    for run in evidence.runs.values():
        was: tuple[int | None, int | None] = (None, None)
        for move in run.moves:
            if (move.was_status, move.was_attempt) != was:
                yield f"{run.id}: a move from {(move.was_status, move.was_attempt)} although it was {was}"
            if move.was_status is None:
                if (move.status, move.attempt) not in ((QUEUED, 1), (SKIPPED, 1)):
                    yield f"{run.id} was born with status {move.status}"
            elif move.status not in LEGAL[move.was_status] | {move.was_status}:
                yield f"{run.id} went from {move.was_status} to {move.status}"
            elif move.was_attempt is not None and move.attempt - move.was_attempt not in (0, 1):
                yield f"{run.id} went from attempt {move.was_attempt} to {move.attempt}"
            was = (move.status, move.attempt)
        if was != (run.status, run.attempt):
            yield f"{run.id} stands at {(run.status, run.attempt)}, its last move led to {was}"
        told = [entry[0] for entry in run.history]
        for before, after in pairwise(told):
            if after not in LEGAL[before] | {before}:
                yield f"{run.id}: its history goes from {before} to {after}"
        if told[-1] != run.status:
            yield f"{run.id}: its history ends with {told[-1]}, its status is {run.status}"
        if run.attempt > run.max_attempts:
            yield f"{run.id} has attempt {run.attempt} of {run.max_attempts}"


def silent(evidence: Evidence, injuries: Sequence[Injury]) -> Iterator[str]:
    """Log lines that a worker which was never killed wrote and that are not kept."""
    killed = {injury.pid for injury in injuries if injury.kind.startswith("SIGKILL")}
    for run in evidence.runs.values():
        if run.job_type == "talks" and run.status == COMPLETED and run.log_lines != LOG_LINES:
            pids = {effect.pid for effect in run.of_kind("start") if effect.attempt == run.attempt}
            if not pids & killed:
                yield f"{run.id} kept {run.log_lines} of {LOG_LINES} log lines"


def left_over(evidence: Evidence) -> Iterator[str]:
    """What should not be there."""
    if evidence.outbox:
        yield f"{evidence.outbox} messages are still in the outbox"
    if evidence.unreadable:
        yield f"{evidence.unreadable} messages could not be used"
    if evidence.unknown_effects:
        yield f"{evidence.unknown_effects} jobs ran for occurrences that do not exist"
