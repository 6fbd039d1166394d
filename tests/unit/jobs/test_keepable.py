"""Which JSON values can be kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.keepable import MAX_DEPTH, fault


def nested(levels: int) -> Any:
    """A list in a list in a list …"""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place", "word"),
    [
        ("a\0", "", "NUL"),
        ({"a": ["x", {"b": "\0"}]}, "a.1.b", "NUL"),
        ({"a": {"b\0": 1}}, "a", "NUL"),
        ({"a": 2**64}, "a", "64 bits"),
        ([-(2**63) - 1], "0", "64 bits"),
        ({"a": 1e20}, "a", "64 bits"),
        ({"a": float("nan")}, "a", "64 bits"),
        ({"a": float("-inf")}, "a", "64 bits"),
        (nested(MAX_DEPTH + 1), ".".join(["0"] * MAX_DEPTH), "deeper"),
    ],
)
def test_what_cannot_be_kept_is_told_with_its_place(value: Any, place: str, word: str) -> None:
    found = fault(value)
    assert found is not None
    assert found[0] == place
    assert word in found[1]


LIMITS = {"a": 2**64 - 1, "b": -(2**63), "c": 1.8e19, "d": 1e-300}


@pytest.mark.parametrize("value", [{}, [], None, True, "\\u0000", LIMITS, nested(MAX_DEPTH), {1: 2}])
def test_what_can_be_kept_has_no_fault(value: Any) -> None:
    assert fault(value) is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(anything)
def test_what_has_no_fault_survives_the_codec_of_the_messages(value: Any) -> None:
    if fault(value) is None:
        assert msgspec.json.decode(msgspec.json.encode(value)) == value
