"""Tickwork for job authors: `from tickwork import Worker, JobContext, PermanentError`.

The names are loaded when they are first used, so that `import tickwork.contracts` stays light: no broker
client, no worker runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tickwork.errors import (
        ConfigurationError,
        JobCancelled,
        JobError,
        PermanentError,
        RetryableError,
        TickworkError,
    )
    from tickwork.testing import JobRun, run_job
    from tickwork.worker.context import JobContext
    from tickwork.worker.jobs import Worker

__version__ = "0.1.0"

_HOMES = {
    "ConfigurationError": "tickwork.errors",
    "JobCancelled": "tickwork.errors",
    "JobError": "tickwork.errors",
    "PermanentError": "tickwork.errors",
    "RetryableError": "tickwork.errors",
    "TickworkError": "tickwork.errors",
    "JobContext": "tickwork.worker.context",
    "Worker": "tickwork.worker.jobs",
    "JobRun": "tickwork.testing",
    "run_job": "tickwork.testing",
}

__all__ = [
    "ConfigurationError",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobRun",
    "PermanentError",
    "RetryableError",
    "TickworkError",
    "Worker",
    "__version__",
    "run_job",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tickwork' has no attribute {name!r}")
    return getattr(import_module(home), name)
