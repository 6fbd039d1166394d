"""The only file that changes an occurrence's status: one function per move.

How it is used: `run.load` reads rows into Runs, the functions here apply moves to them in memory (each a decision on
the Run alone), and `run.save` writes them all with one guarded UPDATE, in the same database transaction as whatever
caused them.

Fence: an attempt is held by one instance. A report of another attempt or another instance is stale: it is logged,
a stale final report is noted in the history, and nothing moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta

from jobs.retry import RetryPolicy, classify, delay_seconds
from occurrences import messages
from occurrences.failures import Failure
from occurrences.models import FailedOccurrence
from occurrences.run import LATE_REPORT, Resend, Run, append_history
from occurrences.states import FINAL, LEGAL, LIVE, Status
from tickwork import contracts
from tickwork.ids import uuid7

Kind = FailedOccurrence.Kind
MAX_HISTORY_CHARS = 32_768


# ── moves that the worker reports ──────────────────────────────────────────────────────────────────


def started(run: Run, *, attempt: int, instance: str, at: datetime, now: datetime) -> bool:
    """Queued to Running. False when stale: then the instance is told to stop, since it runs what is not its own."""
    if not run.is_held_by(attempt, instance):
        _tell(run, instance, contracts.Cancel(id=str(run.id), attempt=attempt, reason="not held by this instance"))
        return False
    if run.status is Status.QUEUED or run.state.started_at is None:
        run.state.instance = instance
        run.state.started_at = at
        run.state.next_attempt_at = None
        run.state.heartbeat_at = now
        _move(run, Status.RUNNING, at=at, by=instance)
    return True


def heard(run: Run, attempt: int, instance: str, *, now: datetime) -> bool:
    """Unknown back to Running: its instance spoke again."""
    if run.status is not Status.UNKNOWN or not run.is_held_by(attempt, instance):
        return False
    run.state.heartbeat_at = now
    _move(run, Status.RUNNING, at=now, by=instance, reason="heard again")
    return True


def progressed(run: Run, *, attempt: int, instance: str, fraction: float, message: str) -> bool:
    """The job's own report of how far it is."""
    if not run.is_held_by(attempt, instance):
        return False
    run.state.progress = min(max(fraction, 0.0), 1.0)
    run.state.progress_message = message[:500]
    run.touched = True
    return True


def finished(run: Run, event: contracts.Finished, *, instance: str, now: datetime) -> bool:
    """The attempt ended; what follows depends on its outcome and the occurrence's policy. False when stale."""
    if not run.is_held_by(event.attempt, instance):
        agrees = event.outcome == "interrupted" or (event.outcome == "cancelled" and run.status is Status.CANCELLED)
        if not agrees and not run.has_heard_end(event.attempt, instance):
            _note(run, at=now, by=instance, reason=f"{LATE_REPORT}: attempt {event.attempt} {event.outcome}")
        return False
    run.state.instance = instance
    if run.state.started_at is None and event.started_at is not None:
        run.state.started_at = event.started_at
        run.state.next_attempt_at = None
        _append(run, Status.RUNNING, at=event.started_at, by=instance)
    _OUTCOMES[event.outcome](run, event, instance, now)
    return True


def _completed(run: Run, event: contracts.Finished, instance: str, now: datetime) -> None:
    result = bytes(event.result).decode()
    run.state.result = None if result == "null" else result
    run.state.error = None
    if run.state.progress is not None:
        run.state.progress = 1.0
    _end(run, Status.COMPLETED, at=event.at, by=instance)
    run.outcomes.append(True)


def _failed(run: Run, event: contracts.Finished, instance: str, now: datetime) -> None:
    error = event.error or contracts.ErrorInfo(type="unknown", message="the worker gave no error")
    retryable = classify(error.type, error.retryable)
    _attempt_failed(
        run,
        kind=Kind.ATTEMPTS_EXHAUSTED if retryable else Kind.PERMANENT,
        error=error,
        retry=retryable,
        outcome="failed",
        at=event.at,
        by=instance,
        now=now,
    )


def _timed_out(run: Run, event: contracts.Finished, instance: str, now: datetime) -> None:
    _attempt_failed(
        run,
        kind=Kind.TIMED_OUT,
        error=event.error or contracts.ErrorInfo(type="TimedOut", message=f"longer than {run.timeout_seconds:g} s"),
        retry=bool(run.policy.get("retry_on_timeout")),
        outcome="timed_out",
        at=event.at,
        by=instance,
        now=now,
    )


def _cancelled(run: Run, event: contracts.Finished, instance: str, now: datetime) -> None:
    asked = run.state.cancel_requested_at is not None
    _end(run, Status.CANCELLED, at=event.at, by=instance, reason=run.state.reason if asked else "cancelled by the job")


def _interrupted(run: Run, event: contracts.Finished, instance: str, now: datetime) -> None:
    """The worker gave the attempt back unfinished; the same attempt is sent again."""
    if run.state.cancel_requested_at:
        _end(run, Status.CANCELLED, at=event.at, by=instance, reason=run.state.reason)
        return
    _record_attempt(run, "interrupted", at=event.at, error=None)
    # By the scheduler's clock: `queued_at` tells this copy from earlier ones, and the backstop counts from it.
    _send_again(run, at=now, by=instance, reason="interrupted by a worker's shutdown; sent again")


_OUTCOMES: dict[str, Callable[[Run, contracts.Finished, str, datetime], None]] = {
    "completed": _completed,
    "failed": _failed,
    "timed_out": _timed_out,
    "cancelled": _cancelled,
    "interrupted": _interrupted,
}


def granted(run: Run, *, attempt: int, instance: str, now: datetime, reason: str) -> None:
    """An instance asked whether it may run the attempt and gets it: from here on it is the holder."""
    if run.state.instance and run.state.instance != instance:
        _record_attempt(run, "taken_over", at=now, error=None)
    _clear_attempt(run)
    run.state.instance = instance
    run.state.next_attempt_at = None
    run.state.heartbeat_at = now
    _tell(run, "", contracts.Granted(id=str(run.id), attempt=attempt, instance=instance))
    _move(run, Status.RUNNING, at=now, by=instance, reason=reason)


def not_resumed(run: Run, *, now: datetime) -> None:
    """Its holder is gone before it confirmed a cancellation, and another instance asks for the attempt."""
    _end(run, Status.CANCELLED, at=now, by=run.state.instance, reason=run.state.reason)


# ── moves that the house makes by itself ───────────────────────────────────────────────────────────


def fell_silent(run: Run, *, now: datetime) -> None:
    """Running to Unknown: no heartbeat."""
    _move(run, Status.UNKNOWN, at=now, by="zombies", reason="no heartbeat from its worker")


def zombie(run: Run, *, now: datetime, reason: str) -> None:
    """Silent for too long: fail it, or try again when the job says so."""
    error = contracts.ErrorInfo(type="Zombie", message=f"Zombie detected: {reason}")
    retry = bool(run.policy.get("retry_on_zombie"))
    _attempt_failed(run, kind=Kind.ZOMBIE, error=error, retry=retry, outcome="zombie", at=now, by="zombies", now=now)


def lost_by_broker(run: Run, *, now: datetime, limit: int) -> None:
    """Queued, sent, and neither run nor expired: the broker lost it. Sent again, a bounded number of times."""
    if run.state.redispatch_count < limit:
        run.state.redispatch_count += 1
        _send_again(run, at=now, by="zombies", reason="lost on its way to a worker; sent again")
    else:
        zombie(run, now=now, reason=f"sent {limit + 1} times, never taken by a worker")


def guard(run: Run) -> None:
    """Its message came back from its holder's connection and was too old to be handed on. Another copy takes its place:
    whoever gets that asks, waits while the holder is heard, and takes over when it is gone.
    """
    run.resend = Resend(not_before=None, maybe_duplicate=True)
    run.touched = True


def undeliverable(run: Run, *, kind: Kind, message: str, redispatch_limit: int, now: datetime) -> None:
    """The broker dead-lettered the attempt's message: no worker took it, or none could."""
    reason = ""
    if kind is Kind.QUEUE_TTL_EXPIRED and run.policy.get("on_worker_unavailable") == "redispatch":
        reason = "no worker took it in time; sent again"
    elif kind is Kind.DELIVERY_LIMIT and run.status is Status.QUEUED:
        reason = "handed back by lost connections too often; sent again"
    if reason and run.state.redispatch_count < redispatch_limit:
        run.state.redispatch_count += 1
        _send_again(run, at=now, by="dead_letters", reason=reason)
        return
    error = contracts.ErrorInfo(type=kind.label, message=message)
    _attempt_failed(run, kind=kind, error=error, retry=False, outcome=kind.value, at=now, by="dead_letters", now=now)


# ── moves that people ask for ──────────────────────────────────────────────────────────────────────


def cancel(run: Run, *, by: str, reason: str, now: datetime) -> str:
    """Queued: Cancelled at once. Running or Unknown: its worker is asked and confirms. Returns `cancelled`,
    `requested` or `final`.
    """
    if run.status in FINAL:
        return "final"
    reason = reason or f"cancelled by {by}"
    _tell(run, "", contracts.Cancel(id=str(run.id), attempt=run.state.attempt, reason=reason, for_good=True))
    if run.status is Status.QUEUED:
        run.withdraw = True
        _end(run, Status.CANCELLED, at=now, by=by, reason=reason)
        return "cancelled"
    run.state.cancel_requested_at = run.state.cancel_requested_at or now
    run.state.reason = reason
    _note(run, at=now, by=by, reason=f"cancel requested: {reason}")
    return "requested"


def retry_final(run: Run, *, by: str, now: datetime, data: str | None = None) -> bool:
    """An operator starts a finished occurrence again: the id stays, the attempt goes up, error, worker and times are
    cleared.
    """
    if run.status not in FINAL:
        return False
    state = run.state
    _record_attempt(run, Status(state.status).name.lower(), at=state.ended_at or now, error=state.error)
    state.attempt += 1
    state.max_attempts = max(state.max_attempts, state.attempt)
    state.redispatch_count = 0
    state.ended_at = state.cancel_requested_at = None
    run.new_data = data
    _clear_attempt(run)
    run.resend = Resend(not_before=None, maybe_duplicate=False)
    state.queued_at = now
    _move(run, Status.QUEUED, at=now, by=by, reason="retried by an operator")
    return True


def retry_now(run: Run, *, by: str, now: datetime) -> bool:
    """End the wait for the next attempt's time."""
    if run.status is not Status.QUEUED or run.state.next_attempt_at is None:
        return False
    run.state.next_attempt_at = None
    run.withdraw = True
    run.resend = Resend(not_before=None, maybe_duplicate=True)
    run.state.queued_at = now
    _move(run, Status.QUEUED, at=now, by=by, reason="the wait was ended by hand")
    return True


# ── what several moves share ───────────────────────────────────────────────────────────────────────


def _attempt_failed(
    run: Run, *, kind: Kind, error: contracts.ErrorInfo, retry: bool, outcome: str, at: datetime, by: str, now: datetime
) -> None:
    """Cancelled when that was asked; the next attempt when one is left and wanted; else the end, kept as a failure."""
    state = run.state
    state.error = contracts.encode(error).decode()
    if state.cancel_requested_at:
        _end(run, Status.CANCELLED, at=at, by=by, reason=state.reason)
        return
    if retry and state.attempt < state.max_attempts:
        wait = delay_seconds(
            RetryPolicy(**run.policy["retry"]), state.attempt, random=random.random(), retry_after=error.retry_after
        )
        _record_attempt(run, outcome, at=at, error=state.error)
        state.attempt += 1
        state.redispatch_count = 0
        state.next_attempt_at = now + timedelta(seconds=wait)
        state.queued_at = now
        _clear_attempt(run)
        run.resend = Resend(not_before=state.next_attempt_at, maybe_duplicate=False)
        reason = f"attempt {state.attempt - 1} {outcome.replace('_', ' ')} ({error.type}); next attempt after a wait"
        _move(run, Status.QUEUED, at=now, by=by, reason=reason)
        return
    status = Status.TIMED_OUT if kind is Kind.TIMED_OUT else Status.FAILED
    _end(run, status, at=at, by=by, reason=f"{kind.label}: {error.message}"[:500] if error.message else kind.label)
    run.failure = Failure(
        occurrence_id=run.id,
        job_id=run.job_id,
        job_type=run.job_type,
        kind=kind,
        attempt=state.attempt,
        error=error,
        failed_at=now,
    )
    run.outcomes.append(False)


def _send_again(run: Run, *, at: datetime, by: str, reason: str) -> None:
    """The same attempt once more. An earlier copy may still be under way, so whoever gets this one asks first."""
    _clear_attempt(run)
    run.state.next_attempt_at = None
    run.state.queued_at = at
    run.resend = Resend(not_before=None, maybe_duplicate=True)
    _move(run, Status.QUEUED, at=at, by=by, reason=reason)


def _clear_attempt(run: Run) -> None:
    state = run.state
    state.instance = ""
    state.started_at = state.heartbeat_at = None
    state.progress, state.progress_message = None, ""
    state.error = state.result = None


def _record_attempt(run: Run, outcome: str, *, at: datetime, error: str | None) -> None:
    state = run.state
    run.attempts.append((uuid7(), run.id, state.attempt, outcome, state.instance, state.started_at, at, error))


def _tell(run: Run, instance: str, command: contracts.Command) -> None:
    run.commands.append(messages.command(occurrence_id=run.id, worker=run.worker, instance=instance, command=command))


def _end(run: Run, status: Status, *, at: datetime, by: str, reason: str = "") -> None:
    run.state.ended_at = max(at, run.state.started_at) if run.state.started_at else at
    run.state.next_attempt_at = None
    _move(run, status, at=at, by=by, reason=reason)


def _move(run: Run, to: Status, *, at: datetime, by: str, reason: str = "") -> None:
    if to not in LEGAL[run.status]:
        raise AssertionError(f"{run.status.label} to {to.label} is no legal move of occurrence {run.id}")
    run.state.status = to.value
    run.moved = True
    if not (run.state.cancel_requested_at and to in LIVE):  # why it shall be cancelled stays until it is
        run.state.reason = reason
    _append(run, to, at=at, by=by, reason=reason)


def _note(run: Run, *, at: datetime, by: str, reason: str) -> None:
    """Something worth keeping that moves nothing. Bounded, since a confused worker may repeat itself."""
    if len(run.state.history) < MAX_HISTORY_CHARS:
        _append(run, run.status, at=at, by=by, reason=reason)


def _append(run: Run, status: Status, *, at: datetime, by: str, reason: str = "") -> None:
    run.state.history = append_history(
        run.state.history, status, attempt=run.state.attempt, at=at, by=by, reason=reason
    )
    run.touched = True
