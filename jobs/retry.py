"""Whether a failed attempt is worth another one, and how long to wait before it; pure.

Called where the scheduler decides about a finished attempt and by the outbox relay. It never waits and never counts
attempts: the caller stores the result as `next_attempt_at`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_ATTEMPTS = 100
# A server that asks for more than this is not waited for longer.
MAX_RETRY_AFTER_SECONDS = 24 * 3600.0

# By the last part of the type's name, so that msgspec's, pydantic's and Django's ValidationError count alike. What is
# not named here may pass by itself: network errors, deadlocks, serialization failures and everything unforeseen.
PERMANENT_TYPES = frozenset({"PermanentError", "JobCancelled", "ValidationError", "ContractError"})
PERMANENT_STATUSES = frozenset({400, 401, 403, 404, 422})
RETRYABLE_STATUSES = frozenset({408, 429, 502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """How failed attempts are spaced: base_seconds doubled after each, at most cap_seconds, plus 0 to jitter_seconds.

    `max_attempts` counts the first try. `preset` is the name that the figures came from, for people.
    Raises ValueError that names the field when a figure is not allowed.
    """

    preset: str = "default"
    base_seconds: float = 10.0
    cap_seconds: float = 6 * 3600.0
    jitter_seconds: float = 3.0
    max_attempts: int = 3

    def __post_init__(self) -> None:
        for name, least in (("base_seconds", 0.0), ("cap_seconds", 0.0), ("jitter_seconds", 0.0)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"{name}: {value} must be {least:g} or more")
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise ValueError(f"max_attempts: {self.max_attempts} is out of range 1-{MAX_ATTEMPTS}")


PRESETS: Mapping[str, RetryPolicy] = MappingProxyType(
    {
        policy.preset: policy
        for policy in (
            RetryPolicy("default"),
            RetryPolicy("milvaion", jitter_seconds=0.0),
            RetryPolicy("flare", base_seconds=60.0),
            RetryPolicy("outbox", base_seconds=5.0, cap_seconds=15 * 60.0, jitter_seconds=0.0),
        )
    }
)


def delay_seconds(
    policy: RetryPolicy, failed_attempt: int, *, random: float = 0.0, retry_after: float | None = None
) -> float:
    """Seconds to wait after attempt `failed_attempt` (from 1) failed: base * 2**(n-1), capped, plus jitter.

    `random` from 0 to below 1 chooses the jitter. `retry_after` is the least wait that the job or a server asked for;
    it counts up to 24 hours. Raises ValueError when the attempt or `random` is out of range.
    """
    if failed_attempt < 1:
        raise ValueError(f"failed_attempt: {failed_attempt} must be 1 or more")
    if not 0 <= random < 1:
        raise ValueError(f"random: {random} must be from 0 to below 1")
    # Beyond 2**60 each base is over each cap; the bound keeps the power a float for any attempt.
    backoff = min(policy.base_seconds * 2.0 ** min(failed_attempt - 1, 60), policy.cap_seconds)
    delay = backoff + policy.jitter_seconds * random
    if retry_after is not None and retry_after > delay:
        return max(delay, min(retry_after, MAX_RETRY_AFTER_SECONDS))
    return delay


def classify(error_type: str, retryable: bool | None, http_status: int | None = None) -> bool:
    """Whether this failure is worth another attempt.

    What the job said itself (`retryable`) decides; then the HTTP status, where one is known; then the error's type
    (its name, with or without the module); then: yes.
    """
    if retryable is not None:
        return retryable
    if http_status in PERMANENT_STATUSES:
        return False
    if http_status in RETRYABLE_STATUSES:
        return True
    return error_type.rpartition(".")[2] not in PERMANENT_TYPES
