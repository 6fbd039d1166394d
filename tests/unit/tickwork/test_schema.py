"""Signatures: JSON Schemas out of type hints, arguments out of job data, errors that name the field."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from jsonschema import Draft202012Validator

from tickwork.errors import ConfigurationError
from tickwork.worker.schema import InvalidData, read_signature

if TYPE_CHECKING:
    from tickwork import JobContext


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    y: float = 0.0


class Plain:
    """No type of JSON."""


def report(ctx: JobContext, month: str, fmt: Literal["pdf", "csv"] = "pdf", *, tags: list[str] = []) -> dict[str, int]:  # noqa: B006
    return {}


def test_hints_become_a_schema_of_the_data_and_one_of_the_result() -> None:
    signature = read_signature(report, "report")
    assert signature.takes_context
    assert signature.data_schema == {
        "type": "object",
        "properties": {
            "month": {"type": "string"},
            "fmt": {"enum": ["csv", "pdf"], "default": "pdf"},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        "required": ["month"],
        "additionalProperties": False,
    }
    assert signature.result_schema == {"type": "object", "additionalProperties": {"type": "integer"}}


def everything(
    when: datetime,
    day: date,
    key: UUID,
    price: Decimal,
    colour: Colour,
    point: Point,
    size: Annotated[int, msgspec.Meta(ge=1)],
) -> None: ...


def test_data_become_the_hinted_types_and_the_schema_accepts_them() -> None:
    data: dict[str, Any] = {
        "when": "2026-11-01T12:00:00Z", "day": "2026-11-01", "key": "0198c0de-0000-7000-8000-000000000001",
        "price": "1.20", "colour": "red", "point": {"x": 1}, "size": 2,
    }  # fmt: skip
    signature = read_signature(everything, "everything")
    Draft202012Validator.check_schema(signature.data_schema)
    Draft202012Validator(signature.data_schema).validate(data)
    assert signature.bind(data) == {
        "when": datetime(2026, 11, 1, 12, tzinfo=UTC), "day": date(2026, 11, 1),
        "key": UUID("0198c0de-0000-7000-8000-000000000001"), "price": Decimal("1.20"), "colour": Colour.RED,
        "point": Point(1.0), "size": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "job data: missing required field 'month'"),
        ({"month": 3}, "job data: field 'month': Expected 'str', got 'int'"),
        ({"month": "x", "tags": ["a", 1]}, r"job data: field 'tags\[1\]': Expected 'str', got 'int'"),
        ({"month": "x", "year": 1}, "job data: contains unknown field 'year'"),
        ({"month": "x", "fmt": "doc"}, "job data: field 'fmt': Invalid enum value 'doc'"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_the_field(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        read_signature(report, "report").bind(data)


def test_numbers_are_not_made_from_texts() -> None:
    def count(n: int) -> None: ...

    with pytest.raises(InvalidData, match="field 'n'"):
        read_signature(count, "count").bind({"n": "3"})


def test_a_function_without_hints_takes_anything() -> None:
    def free(ctx, a, b=1, **rest):  # type: ignore[no-untyped-def]
        return None

    signature = read_signature(free, "free")
    assert signature.bind({"a": [1], "c": {"d": 2}}) == {"a": [1], "b": 1, "c": {"d": 2}}
    assert "additionalProperties" not in signature.data_schema


def test_a_default_that_json_cannot_show_is_left_to_the_function() -> None:
    marker: Any = Plain()

    def keep(n: int = marker) -> None: ...

    signature = read_signature(keep, "keep")
    assert signature.bind({}) == {}
    assert signature.bind({"n": 3}) == {"n": 3}


def test_a_mutable_default_is_not_shared_between_attempts() -> None:
    signature = read_signature(report, "report")
    signature.bind({"month": "a"})["tags"].append("x")
    assert signature.bind({"month": "b"})["tags"] == []


def positional(a: int, /) -> None: ...
def many(*a: int) -> None: ...
def unreadable(a: Plain) -> None: ...
def unresolved(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (positional, "'a' takes positions"),
        (many, "'a' takes positions"),
        (unreadable, "cannot be read from JSON"),
        (unresolved, "cannot be resolved: name 'Missing'"),
    ],
)
def test_a_signature_that_cannot_work_is_refused_when_it_is_declared(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"job 'x': .*{message}"):
        read_signature(function, "x")


def test_a_result_hint_that_is_no_json_type_is_no_error() -> None:
    def make() -> Plain:
        return Plain()

    assert read_signature(make, "make").result_schema == {}
