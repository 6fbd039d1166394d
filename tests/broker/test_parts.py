"""The pure parts beneath the brokers: routing, ack folding, frames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from tickwork.broker import topology
from tickwork.broker.base import Message
from tickwork.broker.rabbitmq_frames import publish_frames
from tickwork.broker.rabbitmq_settling import Settling
from tickwork.broker.routing import Router, job_queue_for

# ── routing ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.b.#", "a.b", True),
        ("a.b.#", "a.b.c.d", True),
        ("a.b.#", "a.bc", False),
        ("#", "", True),
        ("#", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b.*", "a.b.c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("a.#.c", "a.b", False),
        ("a.#.*", "a", False),
    ],
)
def test_a_pattern_takes_the_keys_that_it_should(pattern: str, key: str, fits: bool) -> None:
    router: Router[str] = Router()
    router.add(pattern, "queue")

    assert router.route(key) == (["queue"] if fits else [])


def test_a_queue_that_is_bound_twice_gets_a_message_once() -> None:
    router: Router[str] = Router()
    for pattern in ("a.b", "a.#", "*.b", "#"):
        router.add(pattern, "queue")
    router.add("a.#", "another")

    assert sorted(router.route("a.b")) == ["another", "queue"]


def test_a_job_message_names_its_queue_and_others_do_not() -> None:
    key = topology.job_key("mail", "Send", "0199-abc")

    assert job_queue_for(topology.JOBS, key) == topology.job_queue("mail", "Send")
    assert job_queue_for(topology.EVENTS, key) is None
    assert job_queue_for(topology.JOBS, "mail.Send") is None
    assert job_queue_for(topology.JOBS, "mail.#.1") is None


# ── acks ───────────────────────────────────────────────────────────────────────────────────────────


def test_acks_in_order_are_one_frame() -> None:
    settling = Settling()
    for tag in range(1, 6):
        settling.delivered(tag)

    assert list(settling.settle([3, 1, 2])) == [(3, True)]
    assert list(settling.settle([5, 4])) == [(5, True)]


def test_an_ack_behind_an_unfinished_delivery_stands_alone_until_that_one_is_settled() -> None:
    settling = Settling()
    for tag in range(1, 5):
        settling.delivered(tag)

    assert list(settling.settle([2, 4])) == [(2, False), (4, False)]
    assert list(settling.settle([3])) == [(3, False)]
    assert list(settling.settle([1])) == [(1, True)]


@given(st.data())
def test_folded_acks_settle_exactly_what_was_acked(data: st.DataObject) -> None:
    settling = Settling()
    unsettled: set[int] = set()
    last = 0
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(0, 5))):
            last += 1
            settling.delivered(last)
            unsettled.add(last)
        chosen = data.draw(st.sets(st.sampled_from(sorted(unsettled)))) if unsettled else set()
        rejected = data.draw(st.sets(st.sampled_from(sorted(chosen)))) if chosen else set()
        acked = chosen - rejected
        unsettled -= rejected
        confirmed: set[int] = set()
        for tag, multiple in settling.settle(acked, rejected):
            confirmed |= {one for one in unsettled if one <= tag} if multiple else {tag}
        assert confirmed == acked
        unsettled -= acked


# ── frames ─────────────────────────────────────────────────────────────────────────────────────────

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
values = st.one_of(st.booleans(), st.none(), text, st.integers(-(2**62), 2**62), st.lists(st.integers(0, 9)))


def as_pika_would(message: Message, frame_max: int) -> bytes:
    method = spec.Basic.Publish(exchange=message.exchange, routing_key=message.routing_key, mandatory=message.mandatory)
    expiration: Any = None if message.expiration_seconds is None else str(int(message.expiration_seconds * 1000))
    properties = spec.BasicProperties(
        headers=dict(message.headers) or None,
        delivery_mode=2,
        correlation_id=message.correlation_id or None,
        message_id=message.message_id or None,
        type=message.type or None,
        expiration=expiration,
    )
    room = frame_max - 8
    parts = [message.body[start : start + room] for start in range(0, len(message.body), room)]
    frames = [frame.Method(1, method), frame.Header(1, len(message.body), properties)]
    return b"".join(one.marshal() for one in [*frames, *(frame.Body(1, part) for part in parts)])


@given(
    message=st.builds(
        Message,
        exchange=text,
        routing_key=text,
        body=st.binary(max_size=9000),
        headers=st.dictionaries(text, values, max_size=4),
        correlation_id=text,
        message_id=text,
        type=text,
        expiration_seconds=st.none() | st.floats(0, 1e6),
        mandatory=st.booleans(),
    )
)
def test_frames_are_those_of_pika(message: Message) -> None:
    assert publish_frames(1, message, 4096) == as_pika_would(message, 4096)


@pytest.mark.parametrize(
    "changes",
    [{"routing_key": "k" * 256}, {"headers": {"h" * 256: 1}}, {"headers": {"much": "x" * 5000}}],
    ids=["long key", "long header name", "headers larger than a frame"],
)
def test_a_message_that_breaks_a_limit_of_the_protocol_is_refused(changes: dict[str, Any]) -> None:
    message = Message(**{"exchange": "e", "routing_key": "k", "body": b"", **changes})

    with pytest.raises(ValueError, match="than"):
        publish_frames(1, message, 4096)
