"""Which policy an occurrence runs under: call before job before job type before setting, field by field; pure.

Called when an occurrence is made; the result is stored on it, so that a later edit of the job does not change what
already runs. It remembers where each value came from, for the page that explains it. It never reads settings or rows:
the caller hands in mappings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jobs.retry import MAX_ATTEMPTS, PRESETS, RetryPolicy

OnWorkerUnavailable = Literal["fail", "redispatch"]
Level = tuple[str, Mapping[str, Any]]

# What holds where nobody, not even a setting, says anything.
DEFAULTS: Mapping[str, Any] = {
    "timeout_seconds": 1800.0,
    "max_attempts": 3,
    "retry_preset": "default",
    "retry_on_timeout": False,
    "retry_on_zombie": False,
    "on_worker_unavailable": "fail",
    "queue_ttl_seconds": 300.0,
}
FIGURES = ("base_seconds", "cap_seconds", "jitter_seconds")
FIELDS = (*DEFAULTS, *(f"retry_{figure}" for figure in FIGURES))


@dataclass(frozen=True)
class ResolvedPolicy:
    """The policy of one occurrence. `sources` names for each of FIELDS where it came from:
    `call`, `job`, `job type`, `setting` or `default`."""

    timeout_seconds: float
    retry: RetryPolicy
    retry_on_timeout: bool
    retry_on_zombie: bool
    on_worker_unavailable: OnWorkerUnavailable
    queue_ttl_seconds: float
    sources: Mapping[str, str]

    @property
    def max_attempts(self) -> int:
        """Attempts of the occurrence, the first try included."""
        return self.retry.max_attempts

    def as_json(self) -> dict[str, Any]:
        """Plain values, to be kept on the occurrence; `retry` holds the arguments of RetryPolicy."""
        return asdict(self)


def resolve(
    call: Mapping[str, Any], job: Mapping[str, Any], job_type: Mapping[str, Any], setting: Mapping[str, Any]
) -> ResolvedPolicy:
    """The policy from four mappings, most specific first. A key that is missing, None or "" was not given.

    Keys are FIELDS. The figures of a preset count as given where the preset is: a job's preset beats a setting's
    retry_base_seconds, and a figure beside a preset beats the preset's own.
    Raises ValueError that names the field, its value and where it came from.
    """
    levels: list[Level] = [
        ("call", call),
        ("job", job),
        ("job type", job_type),
        ("setting", setting),
        ("default", DEFAULTS),
    ]
    values, sources = {}, {}
    for name in DEFAULTS:
        values[name], sources[name] = _pick(name, levels)
    for figure in FIGURES:
        values[f"retry_{figure}"], sources[f"retry_{figure}"] = _pick_figure(figure, levels)
    return ResolvedPolicy(
        timeout_seconds=values["timeout_seconds"],
        retry=RetryPolicy(
            preset=values["retry_preset"],
            base_seconds=values["retry_base_seconds"],
            cap_seconds=values["retry_cap_seconds"],
            jitter_seconds=values["retry_jitter_seconds"],
            max_attempts=values["max_attempts"],
        ),
        retry_on_timeout=values["retry_on_timeout"],
        retry_on_zombie=values["retry_on_zombie"],
        on_worker_unavailable=values["on_worker_unavailable"],
        queue_ttl_seconds=values["queue_ttl_seconds"],
        sources=sources,
    )


def _pick(name: str, levels: list[Level]) -> tuple[Any, str]:
    """The most specific value that was given, checked, and its source."""
    source, value = next((source, given[name]) for source, given in levels if _is_given(given, name))
    return _checked(name, value, source), source


def _pick_figure(figure: str, levels: list[Level]) -> tuple[float, str]:
    name = f"retry_{figure}"
    for source, given in levels:
        if _is_given(given, name):
            return _checked(name, given[name], source), source
        if _is_given(given, "retry_preset"):
            preset = PRESETS[_checked("retry_preset", given["retry_preset"], source)]
            return getattr(preset, figure), source
    raise AssertionError("the defaults name a preset")


def _is_given(given: Mapping[str, Any], name: str) -> bool:
    return given.get(name) not in (None, "")


def _checked(name: str, value: Any, source: str) -> Any:
    """The value, or ValueError in words that help whoever gave it."""
    where = f"{name}: {value!r} (from the {source})"
    if name == "retry_preset":
        if not isinstance(value, str) or value not in PRESETS:
            raise ValueError(f"{where} is not known; allowed are {', '.join(PRESETS)}")
    elif name == "on_worker_unavailable":
        if value not in ("fail", "redispatch"):
            raise ValueError(f"{where} is not known; allowed are fail, redispatch")
    elif name in ("retry_on_timeout", "retry_on_zombie"):
        if not isinstance(value, bool):
            raise ValueError(f"{where} must be true or false")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} must be a number")
    elif name == "max_attempts":
        if not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
            raise ValueError(f"{where} is out of range 1-{MAX_ATTEMPTS}")
    elif not 0 <= value < math.inf or (value == 0 and not name.startswith("retry_")):
        least = "0 or more" if name.startswith("retry_") else "more than 0"
        raise ValueError(f"{where} must be {least}, in seconds")
    return value
