"""Which queues a routing key reaches: topic patterns, and the queue that a job message needs.

Used by both implementations: the embedded one routes with `Router`, both derive a job's own queue with
`job_queue_for`. Pure; knows no broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from tickwork.broker import topology
from tickwork.broker.topology import Queue

T = TypeVar("T")


def job_queue_for(exchange: str, routing_key: str) -> Queue | None:
    """The queue that must exist before this message is published: a job message's own, else None."""
    if exchange != topology.JOBS:
        return None
    words = routing_key.split(".", 2)
    if len(words) < 3 or not (topology.NAME.match(words[0]) and topology.NAME.match(words[1])):
        return None
    return topology.job_queue(words[0], words[1])


class Router(Generic[T]):
    """Topic patterns of one exchange, with a target each; `*` is one word, `#` any number of words.

    Patterns without wildcard, and those whose only wildcard is a last `#`, are found by look-up, so that the
    cost of a message does not grow with the number of job queues.
    """

    def __init__(self) -> None:
        self._exact: dict[str, list[T]] = {}
        self._prefixes: dict[str, list[T]] = {}
        self._patterns: list[tuple[list[str], T]] = []

    def add(self, pattern: str, target: T) -> None:
        """Send what matches `pattern` to `target` too."""
        words = pattern.split(".")
        wild = [word for word in words if word in ("*", "#")]
        if not wild:
            self._exact.setdefault(pattern, []).append(target)
        elif wild == ["#"] and words[-1] == "#":
            self._prefixes.setdefault(".".join(words[:-1]), []).append(target)
        else:
            self._patterns.append((words, target))

    def route(self, routing_key: str) -> list[T]:
        """The targets of a message, each once."""
        found = list(self._exact.get(routing_key, ()))
        if self._prefixes:
            found += self._prefixes.get("", ())
            end = routing_key.find(".")
            while end >= 0:
                found += self._prefixes.get(routing_key[:end], ())
                end = routing_key.find(".", end + 1)
            if routing_key:
                found += self._prefixes.get(routing_key, ())
        if self._patterns:
            words = routing_key.split(".") if routing_key else []
            found += [target for pattern, target in self._patterns if _matches(pattern, words)]
        return found if len(found) < 2 else list(dict.fromkeys(found))


def _matches(pattern: Sequence[str], key: Sequence[str]) -> bool:
    """Whether the words of a key fit the words of a pattern."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(_matches(pattern[1:], key[start:]) for start in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and _matches(pattern[1:], key[1:])
