"""A Run: an occurrence while moves are applied to it, from the read to the guarded write. Decides nothing.

Made by `load`, changed by the functions of `occurrences.transitions`, written by `transitions.save`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from occurrences import messages, sql
from occurrences.failures import Failure
from occurrences.states import LIVE, Status


@dataclass(slots=True)
class Resend:
    """The attempt's message must be written (again)."""

    not_before: datetime | None
    maybe_duplicate: bool
    data: str | None = None


@dataclass(slots=True)
class Run:
    """An occurrence while moves are applied to it: what is fixed, its State, the guard it was read with, and what
    follows.
    """

    id: UUID
    job_id: UUID
    worker: str
    job_type: str
    timeout_seconds: float
    policy_text: str
    state: sql.State
    guard: sql.Guard
    touched: bool = False
    resend: Resend | None = None
    withdraw: bool = False
    commands: list[messages.Outgoing] = field(default_factory=list)
    attempts: list[tuple[Any, ...]] = field(default_factory=list)
    failure: Failure | None = None
    outcomes: list[bool] = field(default_factory=list)
    new_data: str | None = None

    @property
    def status(self) -> Status:
        """Where it stands now, moves of this batch included."""
        return Status(self.state.status)

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that was resolved when the occurrence was made."""
        policy: dict[str, Any] = msgspec.json.decode(self.policy_text)
        return policy

    def is_held_by(self, attempt: int, instance: str) -> bool:
        """Whether a report of this attempt by this instance is current. An attempt that nobody holds is open to its
        first reporter.
        """
        state = self.state
        return state.attempt == attempt and state.status in LIVE and state.instance in ("", instance)


def load(ids: Iterable[UUID]) -> dict[UUID, Run]:
    """The known ones among these occurrences, as they are now."""
    return {
        fixed["id"]: Run(
            id=fixed["id"],
            job_id=fixed["job_id"],
            worker=fixed["worker"],
            job_type=fixed["job_type"],
            timeout_seconds=fixed["timeout_seconds"],
            policy_text=fixed["policy"],
            state=state,
            guard=(state.status, state.attempt, state.instance, fixed["version"]),
        )
        for fixed, state in sql.read_states(ids)
    }
