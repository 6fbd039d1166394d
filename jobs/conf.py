"""Every `SCHEDULER_*` setting: meaning, unit, default and allowed values, in one place.

`scheduler_project.settings` loads them once from the environment; the apps read them with `conf()`.
A value that is not allowed stops the start with the setting's name (`ConfigurationError`).
`docs/reference/settings.md` is generated from this file.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.bounds import BOUNDS, Bounds, plain
from tickwork.errors import ConfigurationError

PREFIX = "SCHEDULER_"


def _setting(
    default: Any, text: str, *, low: float | None = None, high: float | None = None, among: tuple[str, ...] = ()
) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "low": low, "high": high, "among": among})


def _as_of_a_job(default: Any, bounds: Bounds, text: str) -> Any:
    """A number that a job may also say itself, within the same bounds."""
    return _setting(default, text, low=bounds.low, high=bounds.high)


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """The settings, each also the environment variable `SCHEDULER_` + its name in capitals."""

    # Dispatching
    dispatch_batch: int = _setting(
        500, "Due jobs that one dispatcher pass claims in one transaction.", low=1, high=5000
    )
    dispatch_poll_seconds: float = _setting(
        1.0, "Longest time the dispatcher sleeps before it looks for due jobs again, in seconds.", low=0.01, high=60
    )
    misfire_grace_seconds: float = _setting(
        5.0, "A tick at most this late, in seconds, still counts as on time.", low=0, high=3600
    )
    # Outbox
    relay_batch: int = _setting(500, "Outbox messages that the relay claims and publishes together.", low=1, high=5000)
    relay_poll_seconds: float = _setting(
        0.5, "Longest time the relay sleeps when nothing wakes it, in seconds.", low=0.01, high=60
    )
    outbox_lease_seconds: float = _setting(
        30.0,
        "A claimed outbox message that was not confirmed is free for another relay after this many seconds.",
        low=1,
        high=600,
    )
    outbox_warn_age_seconds: float = _setting(
        60.0,
        "Readiness reports a warning when the oldest due outbox message waits longer than this, in seconds.",
        low=1,
        high=86400,
    )
    # Events of workers
    intake_batch: int = _setting(
        500, "Event messages that the event consumer takes and applies in one transaction.", low=1, high=5000
    )
    pace_seconds: float = _setting(
        0.02,
        "While messages flow, the least time between two small passes of the relay and of the event consumer,"
        " in seconds:"
        " fewer and larger passes cost less. A lone message never waits.",
        low=0,
        high=1,
    )
    # Defaults of a job that says nothing itself (precedence: call, job, job type, these)
    default_timeout_seconds: float = _as_of_a_job(
        1800.0, BOUNDS["timeout_seconds"], "Longest run of one attempt, in seconds."
    )
    default_max_attempts: int = _as_of_a_job(
        3, BOUNDS["max_attempts"], "Attempts of one occurrence, the first try included."
    )
    default_retry_preset: str = _setting(
        "default",
        "Backoff of a failed attempt: default (10 s doubled, 0-3 s jitter, cap 6 h), milvaion (10 s doubled, "
        "no jitter), flare (60 s doubled, 0-3 s jitter, cap 6 h), outbox (5 s doubled, cap 15 min).",
        among=("default", "milvaion", "flare", "outbox"),
    )
    default_retry_on_timeout: bool = _setting(False, "Whether an attempt that timed out is tried again.")
    default_retry_on_zombie: bool = _setting(
        False, "Whether an occurrence whose worker vanished for good is tried again."
    )
    default_on_worker_unavailable: str = _setting(
        "fail",
        "What happens to an occurrence that no worker took in time: fail it, or redispatch it.",
        among=("fail", "redispatch"),
    )
    default_queue_ttl_seconds: float = _as_of_a_job(
        300.0, BOUNDS["queue_ttl_seconds"], "Longest wait of a sent occurrence for a worker, in seconds."
    )
    # Silence
    worker_lost_after_seconds: float = _setting(
        30.0,
        "An instance silent for this many seconds no longer blocks another one from taking over its redelivered work.",
        low=1,
        high=3600,
    )
    heartbeat_stale_seconds: float = _setting(
        60.0, "A running occurrence without a heartbeat for this many seconds becomes Unknown.", low=1, high=3600
    )
    zombie_timeout_seconds: float = _setting(
        600.0,
        "A running or Unknown occurrence silent for this many seconds (or its own timeout, if longer) fails "
        "as a zombie.",
        low=2,
        high=86400,
    )
    zombie_interval_seconds: float = _setting(
        300.0, "Pause between two passes of the zombie detector, in seconds.", low=0.1, high=3600
    )
    queued_backstop_seconds: float = _setting(
        420.0,
        "A sent occurrence that neither ran nor expired for this many seconds was lost by the broker and is "
        "sent again; must be longer than the queue TTL.",
        low=2,
        high=31 * 86400,
    )
    redispatch_limit: int = _setting(
        5, "How often one attempt is sent again after a loss before it fails.", low=0, high=1000
    )
    # Auto-disable
    auto_disable_threshold: int = _as_of_a_job(
        5, BOUNDS["auto_disable_threshold"], "Consecutive failed occurrences that disable a job; 0 turns this off."
    )
    auto_disable_window_seconds: float = _as_of_a_job(
        3600.0, BOUNDS["auto_disable_window_seconds"], "They must have failed within the last so many seconds."
    )
    auto_reenable_after_seconds: float = _as_of_a_job(
        0.0,
        BOUNDS["auto_reenable_after_seconds"],
        "Cool-down in seconds after which a disabled job gets one probe run; 0 turns this off.",
    )
    # Retention
    retention_days: float = _setting(30.0, "Days for which finished occurrences are kept.", low=0.01, high=36500)
    failure_retention_days: float = _setting(90.0, "Days for which resolved failures are kept.", low=0.01, high=36500)
    idempotency_hours: float = _setting(
        24.0, "Hours for which the answer to an Idempotency-Key is kept.", low=0.01, high=8760
    )
    idempotency_required: bool = _setting(False, "Whether the API refuses changes that carry no Idempotency-Key.")
    purge_interval_seconds: float = _setting(
        3600.0, "Pause between two passes of retention, in seconds.", low=0.1, high=86400
    )
    purge_batch: int = _setting(1000, "Rows that retention deletes in one transaction.", low=1, high=100000)
    # Pages
    live_interval_seconds: float = _setting(
        0.25,
        "Shortest time between two live messages of one process, in seconds; changes in between are sent together.",
        low=0.05,
        high=10,
    )
    max_data_bytes: int = _setting(
        262144, "Largest job data of one occurrence, in bytes of JSON.", low=2, high=16 * 1024 * 1024
    )


def load(environ: Mapping[str, str]) -> SchedulerSettings:
    """Read the settings from environment variables.

    Raises ConfigurationError that names the variable and what is allowed: for a value of the wrong type or out of
    range, for an unknown `SCHEDULER_*` name (with the nearest known one), and for two settings that contradict each
    other.
    """
    fields = {PREFIX + field.name.upper(): field for field in dataclasses.fields(SchedulerSettings)}
    for name in environ:
        if name.startswith(PREFIX) and name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            raise ConfigurationError(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    values = {
        field.name: _read(name, environ[name], field) for name, field in fields.items() if environ.get(name, "") != ""
    }
    settings = SchedulerSettings(**values)
    _refuse_contradictions(settings)
    return settings


def _read(name: str, text: str, field: dataclasses.Field[Any]) -> Any:
    meta = field.metadata
    kind: Any = type(field.default)
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigurationError(f"{name} is {text!r}; allowed are true and false")
        return text.lower() == "true"
    if kind is str:
        if text not in meta["among"]:
            raise ConfigurationError(f"{name} is {text!r}; allowed are {', '.join(meta['among'])}")
        return text
    try:
        value = kind(text)
    except ValueError:
        raise ConfigurationError(
            f"{name} is {text!r}; a {'whole number' if kind is int else 'number'} is needed"
        ) from None
    if not meta["low"] <= value <= meta["high"]:
        raise ConfigurationError(f"{name} is {text}; allowed is {plain(meta['low'])} to {plain(meta['high'])}")
    return value


def _refuse_contradictions(s: SchedulerSettings) -> None:
    if s.queued_backstop_seconds <= s.default_queue_ttl_seconds:
        raise ConfigurationError(
            f"SCHEDULER_QUEUED_BACKSTOP_SECONDS ({s.queued_backstop_seconds:g}) must be longer than "
            f"SCHEDULER_DEFAULT_QUEUE_TTL_SECONDS ({s.default_queue_ttl_seconds:g}), or a waiting occurrence "
            f"would be sent twice"
        )
    if s.zombie_timeout_seconds <= s.heartbeat_stale_seconds:
        raise ConfigurationError(
            f"SCHEDULER_ZOMBIE_TIMEOUT_SECONDS ({s.zombie_timeout_seconds:g}) must be longer than "
            f"SCHEDULER_HEARTBEAT_STALE_SECONDS ({s.heartbeat_stale_seconds:g})"
        )


def conf() -> SchedulerSettings:
    """The loaded settings (tests replace `settings.SCHEDULER`)."""
    from django.conf import settings

    return settings.SCHEDULER
