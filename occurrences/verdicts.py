"""Who may run an attempt: answers to workers that ask before they run what somebody else may be running.

Called by intake for each `Inquiry`, between the moves that were reported before and after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.conf import conf
from occurrences import messages, transitions
from occurrences.hearing import Hearing
from occurrences.run import Run
from occurrences.states import FINAL
from tickwork.contracts import Inquiry, Verdict
from workers_app import registry

ASK_AGAIN_SECONDS = 2.0


def living(
    asked_about: Iterable[Run], speakers: Iterable[str], *, hearing: Hearing | None, now: datetime
) -> registry.Living:
    """Which holders of these runs, and which of the `speakers` that are heard just now, may still be running something.

    Nobody is gone as far as a consumer knows that has not heard its own word yet.
    """
    last_words = [(run.state.instance, run.state.heartbeat_at) for run in asked_about]
    last_words += [(instance, now) for instance in speakers]
    since, until = hearing or Hearing(now, now)
    return registry.living(
        last_words, hearing_since=since, heard_until=until, lost_after_seconds=conf().worker_lost_after_seconds
    )


def answer(
    run: Run | None, asked: Inquiry, worker: str, instance: str, living: registry.Living, *, now: datetime
) -> messages.Outgoing:
    """Whether the asking instance may run the attempt. `run` makes it the holder, so that of two askers one gets it."""
    action, reason = _decide(run, asked, instance, living)
    if run is not None and action == "run" and run.state.instance != instance:
        if run.state.cancel_requested_at:
            transitions.not_resumed(run, now=now)
            action, reason = "drop", "its cancellation was asked for"
        else:
            transitions.granted(run, attempt=asked.attempt, instance=instance, now=now, reason=reason)
    verdict = Verdict(
        id=asked.id, attempt=asked.attempt, action=action, ask_again_seconds=ASK_AGAIN_SECONDS, reason=reason
    )
    return messages.command(occurrence_id=UUID(asked.id), worker=worker, instance=instance, command=verdict)


def _decide(run: Run | None, asked: Inquiry, instance: str, living: registry.Living) -> tuple[Any, str]:
    if run is None:
        return "drop", "no such occurrence"
    state = run.state
    if run.status in FINAL:
        return "drop", f"already {run.status.label}"
    if state.attempt != asked.attempt:
        return "drop", f"attempt {state.attempt} is the current one"
    if state.instance in ("", instance):
        return "run", "nobody else has it"
    if asked.question == "lease":
        return "drop", f"held by {state.instance}"
    if state.instance in living:
        return "wait", f"held by {state.instance}"
    return "run", f"taken over from {state.instance}, which is gone"
