"""Turns acks in any order into as few ack frames as possible. Used by the consumer, on its I/O thread; pure.

Delivery tags of a channel count up from 1. An ack with `multiple` settles everything up to its tag, so it may be
used up to just below the oldest delivery that is still in hand or in the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Settling:
    """What is settled on one channel. `delivered` must see every tag, in order."""

    def __init__(self) -> None:
        self._oldest = 1
        self._last = 0
        self._settled: set[int] = set()

    def delivered(self, tag: int) -> None:
        """A message came with this tag."""
        self._last = tag

    def settle(self, acks: Iterable[int], rejects: Iterable[int] = ()) -> Iterator[tuple[int, bool]]:
        """The (tag, multiple) pairs to acknowledge with; `rejects` were settled by frames of their own."""
        wanted = set(acks)
        settled = self._settled
        settled |= wanted
        settled.update(rejects)
        covered = 0
        while self._oldest <= self._last and self._oldest in settled:
            settled.discard(self._oldest)
            if self._oldest in wanted:
                wanted.discard(self._oldest)
                covered = self._oldest
            self._oldest += 1
        if covered:
            yield covered, True
        for tag in sorted(wanted):
            yield tag, False
