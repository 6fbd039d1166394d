"""Ids sort by time, within a process strictly, and are version 7 of RFC 9562."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from tickwork import ids


def test_ids_are_version_7_and_tell_when_they_were_made() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    made = ids._uuid7()
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= ids.made_at(made) <= datetime.now(UTC) + timedelta(seconds=1)


def test_ids_of_one_thread_grow_also_within_a_millisecond() -> None:
    made = [ids._uuid7() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_ids_of_many_threads_differ() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [
            identifier
            for part in pool.map(lambda _: [ids._uuid7() for _ in range(2_000)], range(8))
            for identifier in part
        ]
    assert len(set(made)) == len(made)


def test_the_first_id_of_an_instant_divides_earlier_from_later() -> None:
    made = ids._uuid7()
    assert ids.first_at(ids.made_at(made)) <= made < ids.first_at(ids.made_at(made) + timedelta(milliseconds=1))
