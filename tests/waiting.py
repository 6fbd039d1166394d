"""Waiting for something that another thread or process does. For tests that cannot await an event.

PATIENCE_SECONDS bounds every wait for something that must happen. It is no measure of speed: a machine that is
slow and busy gets there too, and a test that passes never waits longer than it has to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 90.0


def eventually(
    condition: Callable[[], T], *, timeout: float = PATIENCE_SECONDS, every: float = 0.02, what: str = ""
) -> T:
    """Call `condition` until it returns something true, and return that.

    An AssertionError that it raises counts as "not yet". After `timeout` seconds the last AssertionError is raised,
    or a new one that says what was awaited (`what`) and what was seen last.
    """
    deadline = time.monotonic() + timeout
    while True:
        failure: AssertionError | None = None
        value: T | None = None
        try:
            value = condition()
        except AssertionError as error:
            failure = error
        if value:
            return value
        if time.monotonic() > deadline:
            raise failure or AssertionError(f"not within {timeout} s: {what or condition}; last value: {value!r}")
        time.sleep(every)
