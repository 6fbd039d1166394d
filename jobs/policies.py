"""Which policy an occurrence runs under: call before job before job type before setting, field by field; pure.

Called when an occurrence is made; the result is stored on it, so that a later edit of the job does not change what
already runs. It remembers where each value came from, for the page that explains it. It never reads settings or rows:
the caller hands in mappings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jobs.bounds import BOUNDS
from jobs.retry import PRESETS, RetryPolicy

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


class PolicyError(ValueError):
    """A policy value that is not allowed; `field` names it, the text also says where it came from."""

    def __init__(self, field: str, value: Any, source: str, wanted: str) -> None:
        super().__init__(f"{field}: {value!r} (from the {source}) {wanted}")
        self.field = field


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
    Raises PolicyError.
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
    return checked(name, value, source), source


def _pick_figure(figure: str, levels: list[Level]) -> tuple[float, str]:
    name = f"retry_{figure}"
    for source, given in levels:
        if _is_given(given, name):
            return checked(name, given[name], source), source
        if _is_given(given, "retry_preset"):
            preset = PRESETS[checked("retry_preset", given["retry_preset"], source)]
            return getattr(preset, figure), source
    raise AssertionError("the defaults name a preset")


def _is_given(given: Mapping[str, Any], name: str) -> bool:
    return given.get(name) not in (None, "")


def checked(name: str, value: Any, source: str) -> Any:
    """The value, when it is allowed for this one of FIELDS. Raises PolicyError."""
    if name == "retry_preset":
        if not isinstance(value, str) or value not in PRESETS:
            raise PolicyError(name, value, source, f"is not known; allowed are {', '.join(PRESETS)}")
    elif name == "on_worker_unavailable":
        if value not in ("fail", "redispatch"):
            raise PolicyError(name, value, source, "is not known; allowed are fail, redispatch")
    elif name in ("retry_on_timeout", "retry_on_zombie"):
        if not isinstance(value, bool):
            raise PolicyError(name, value, source, "must be true or false")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(name, value, source, "must be a number")
    elif name == "max_attempts" and not isinstance(value, int):
        raise PolicyError(name, value, source, "must be a whole number")
    elif not BOUNDS[name].allows(value):
        raise PolicyError(name, value, source, f"must be {BOUNDS[name]}")
    return value
