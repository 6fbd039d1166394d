"""A transaction that the database gave up for another one's sake is made again, so that no request fails for it.

Used by whatever people and programs ask for. The loops do not need it: they make their next pass.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import OperationalError, connection

P = ParamSpec("P")
R = TypeVar("R")

TRIES = 5
PAUSE_SECONDS = 0.05
GIVEN_UP = frozenset({"40001", "40P01"})
"""SQLSTATE of a serialization failure and of a deadlock."""


def was_given_up(error: Exception) -> bool:
    """Whether the database ended the transaction for another one's sake."""
    return isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) in GIVEN_UP


def made_again(work: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that is a whole transaction: a deadlock or serialization failure begins it anew, TRIES times
    in all; the last one's OperationalError is raised. Inside a caller's transaction it is called once: that one is lost
    as a whole, and its owner's to repeat.
    """

    @wraps(work)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        for number in range(1, TRIES):
            try:
                return work(*args, **kwargs)
            except OperationalError as error:
                if connection.in_atomic_block or not was_given_up(error):
                    raise
                time.sleep(random.uniform(0, PAUSE_SECONDS * number))
        return work(*args, **kwargs)

    return again
