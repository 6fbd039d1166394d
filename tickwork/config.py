"""The settings of a worker process, read from the environment once, checked, and frozen.

The command line builds a `WorkerSettings` and hands it to the runtime; nothing else reads the environment.
Each field below carries its variable's name, bounds and meaning: the reference page is made from them.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tickwork.errors import ConfigurationError

PREFIXES = ("TICKWORK_WORKER_", "TICKWORK_LOG_")
_WORDS = {"": "a text", "int": "a whole number", "float": "a number"}


def _setting(
    default: Any = dataclasses.MISSING,
    *,
    env: str,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    metadata = {"env": env, "help": help, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Every setting of a worker. Raises ConfigurationError for a value that is not allowed."""

    broker_url: str = _setting(
        env="BROKER_URL", help="where the messages travel: sqlite:///path/to/file or amqp[s]://user:password@host/vhost"
    )
    concurrency: int = _setting(
        8, env="TICKWORK_WORKER_CONCURRENCY", low=1, high=1000, help="attempts that run at the same time"
    )
    prefetch_extra: int = _setting(
        16,
        env="TICKWORK_WORKER_PREFETCH_EXTRA",
        low=0,
        high=10_000,
        help="messages held beyond the running ones: more is faster for short jobs, fewer shares long jobs more evenly",
    )
    heartbeat_seconds: float = _setting(
        5.0, env="TICKWORK_WORKER_HEARTBEAT_SECONDS", low=0.1, high=60, help="pause between two heartbeats"
    )
    lease_after_seconds: float = _setting(
        900.0,
        env="TICKWORK_WORKER_LEASE_AFTER_SECONDS",
        low=0.1,
        high=86_400,
        help="age at which a running attempt's message is exchanged for a lease; below the broker's consumer timeout",
    )
    shutdown_seconds: float = _setting(
        30.0, env="TICKWORK_WORKER_SHUTDOWN_SECONDS", low=0, high=86_400, help="time that running jobs have at a stop"
    )
    max_result_bytes: int = _setting(
        256 * 1024, env="TICKWORK_WORKER_MAX_RESULT_BYTES", low=16, high=16 * 1024**2, help="largest result, as JSON"
    )
    max_log_lines: int = _setting(
        10_000, env="TICKWORK_WORKER_MAX_LOG_LINES", low=0, high=10_000_000, help="log lines kept of one attempt"
    )
    store_directory: str = _setting(
        ".data/worker-store",
        env="TICKWORK_WORKER_STORE",
        help="folder of the local store: reports that wait for the broker, and the ends of attempts of the last day",
    )
    store_max_bytes: int = _setting(
        256 * 1024**2,
        env="TICKWORK_WORKER_STORE_MAX_BYTES",
        low=1024**2,
        high=1024**4,
        help="size of the local store; near it, log lines and progress are left out, results never",
    )
    health_file: str = _setting(
        "", env="TICKWORK_WORKER_HEALTH_FILE", help="file written at each heartbeat for `tickwork health`; empty: none"
    )

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            _check(setting, getattr(self, setting.name))

    @property
    def prefetch(self) -> int:
        """How many unacknowledged messages an instance may hold."""
        return self.concurrency + self.prefetch_extra

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> WorkerSettings:
        """Settings from the environment; `overrides` win (command line), those that are None are ignored."""
        return cls(**_values(cls, os.environ if environ is None else environ, overrides))


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """How a process writes its own log."""

    format: str = _setting(
        "console", env="TICKWORK_LOG_FORMAT", choices=("console", "json"), help="readable lines, or a JSON object each"
    )
    level: str = _setting(
        "INFO",
        env="TICKWORK_LOG_LEVEL",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="the least important level that is written",
    )

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            _check(setting, getattr(self, setting.name))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> LogSettings:
        """Settings from the environment; `overrides` win, those that are None are ignored."""
        return cls(**_values(cls, os.environ if environ is None else environ, overrides))


def refuse_unknown_names(environ: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a variable that looks like one of these settings and is none: it has no effect."""
    known = [f.metadata["env"] for kind in (WorkerSettings, LogSettings) for f in dataclasses.fields(kind)]
    for name in sorted(environ):
        if name.startswith(PREFIXES) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ConfigurationError(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))


def _values(kind: Any, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(kind):
        name = setting.metadata["env"]
        if overrides.get(setting.name) is not None:
            values[setting.name] = overrides[setting.name]
        elif environ.get(name, "") != "":
            values[setting.name] = _parse(setting, environ[name])
        elif setting.default is dataclasses.MISSING:
            raise ConfigurationError(f"{name} is not set: {setting.metadata['help']}")
    return values


def _parse(setting: dataclasses.Field[Any], text: str) -> Any:
    try:
        if setting.type == "int":
            return int(text)
        if setting.type == "float":
            return float(text)
    except ValueError:
        raise ConfigurationError(f"{setting.metadata['env']} is {text!r}; allowed is {_allowed(setting)}") from None
    return text.upper() if text.upper() in setting.metadata["choices"] else text


def _check(setting: dataclasses.Field[Any], value: Any) -> None:
    low, high, choices = (setting.metadata[key] for key in ("low", "high", "choices"))
    if choices:
        fits = value in choices
    elif low is None:
        fits = isinstance(value, str)
    else:
        kinds = (int,) if setting.type == "int" else (int, float)
        fits = isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high
    if not fits:
        raise ConfigurationError(f"{setting.metadata['env']} is {value!r}; allowed is {_allowed(setting)}")


def _allowed(setting: dataclasses.Field[Any]) -> str:
    low, high, choices = (setting.metadata[key] for key in ("low", "high", "choices"))
    if choices:
        return " or ".join(choices)
    word = _WORDS.get(str(setting.type), "a text")
    return word if low is None else f"{word} from {low:g} to {high:,}".replace(",", "_")
