"""From a job function's signature to JSON Schemas, and from job data to its arguments.

Called by the decorator (`jobs`), so that a signature that cannot work fails when the module is imported, and
by the execution, so that data that do not fit fail with a sentence that names the field.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from tickwork.errors import ConfigurationError, PermanentError
from tickwork.worker.context import JobContext


class InvalidData(PermanentError):
    """The data of a job do not fit the signature of its function; the text names the field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What a job function takes and returns."""

    takes_context: bool
    free_form: bool
    fields: tuple[str, ...]
    struct: type[msgspec.Struct]
    data_schema: dict[str, Any]
    result_schema: dict[str, Any]

    def bind(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for these data, converted to the hinted types.

        Conversion is strict (no number from a text), but texts become dates, UUIDs, decimals and enums as in JSON.
        Raises InvalidData.
        """
        try:
            values = msgspec.convert(data, self.struct)
        except msgspec.ValidationError as error:
            raise InvalidData(_explain(error)) from None
        arguments = {name: getattr(values, name) for name in self.fields}
        if self.free_form:
            arguments.update((name, value) for name, value in data.items() if name not in arguments)
        return {name: value for name, value in arguments.items() if value is not msgspec.UNSET}


def read_signature(function: Callable[..., Any], job_name: str) -> Signature:
    """The signature of a job function. Raises ConfigurationError when job data cannot be passed to it."""
    hints = _hints(function, job_name)
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and _is_context(parameters[0], hints)
    if takes_context:
        parameters = parameters[1:]
    free_form = False
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            free_form = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"job {job_name!r}: parameter {parameter.name!r} takes positions; job data are passed by name"
            )
        else:
            fields.append(_field(parameter, hints.get(parameter.name, Any)))
    try:
        struct = msgspec.defstruct(f"{job_name}_data", fields, kw_only=True, forbid_unknown_fields=not free_form)
        data_schema = _with_defaults(_schema(struct), parameters)
        msgspec.json.Decoder(struct)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"job {job_name!r}: its type hints cannot be read from JSON: {error}") from error
    return Signature(
        takes_context=takes_context,
        free_form=free_form,
        fields=tuple(field[0] for field in fields),
        struct=struct,
        data_schema=data_schema,
        result_schema=_result_schema(hints.get("return", Any)),
    )


def _hints(function: Callable[..., Any], job_name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, localns={"JobContext": JobContext}, include_extras=True)
    except Exception as error:
        raise ConfigurationError(f"job {job_name!r}: its type hints cannot be resolved: {error}") from error


def _is_context(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    hint = hints.get(parameter.name)
    return hint is JobContext or (hint is None and parameter.name == "ctx")


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    default = parameter.default
    if default is parameter.empty:
        return (parameter.name, hint)
    try:
        msgspec.json.encode(default)
    except Exception:  # a default that JSON cannot show: left out of the schema, the function fills it in
        return (parameter.name, hint | msgspec.UnsetType, msgspec.UNSET)
    if isinstance(default, list | dict | set | bytearray):
        return (parameter.name, hint, msgspec.field(default_factory=lambda: copy.deepcopy(default)))
    return (parameter.name, hint, default)


def _schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type with its own definition at the top instead of a reference."""
    (top,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    name = top.get("$ref", "").removeprefix("#/$defs/")
    schema = dict(definitions.pop(name) if name in definitions else top)
    schema.pop("title", None)
    if definitions:
        schema["$defs"] = dict(definitions)
    return schema


def _with_defaults(schema: dict[str, Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """The schema with the defaults that the struct makes anew each time, which msgspec does not show."""
    for parameter in parameters:
        if isinstance(parameter.default, list | dict | set | bytearray):
            schema["properties"][parameter.name].setdefault("default", msgspec.to_builtins(parameter.default))
    return schema


def _result_schema(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    try:
        return _schema(hint)
    except TypeError:  # a result only has to be JSON; a hint that says less is no error
        return {}


def _explain(error: msgspec.ValidationError) -> str:
    text, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".")
    text = text.replace("Object ", "").replace("`", "'")
    return f"job data: field '{field}': {text}" if field else f"job data: {text}"
