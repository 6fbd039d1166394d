"""Why something that a person or a program asked for was refused.

OperationRefused        has a code, an HTTP status and, where a field is to blame, errors by field
├── InvalidDefinition   400: a job's definition or data are not valid
├── NotPossibleNow      409: the thing is in a state in which this cannot be done
└── NotKnown            404: there is no such thing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class OperationRefused(Exception):
    """Base. The text is for the person who asked; `code` is for programs; `fields` maps a field to its messages."""

    http_status = 400
    code = "refused"

    def __init__(self, message: str, *, code: str = "", fields: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.fields = {name: list(messages) for name, messages in (fields or {}).items()}


class InvalidDefinition(OperationRefused):
    """A job's definition or its data are not valid."""

    code = "invalid"


class NotPossibleNow(OperationRefused):
    """The thing is in a state in which this cannot be done."""

    http_status = 409
    code = "not_possible_now"


class NotKnown(OperationRefused):
    """There is no such thing."""

    http_status = 404
    code = "not_found"
