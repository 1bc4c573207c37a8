"""The columns of a frame task's table, read from the `row` that the user declared.

A `row` is a dataclass, a msgspec Struct, a TypedDict or a function, whose annotations declare the columns; or a mapping
of names to types; or an Arrow schema. Nothing here imports pyarrow.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec

from millrace.app.frames.columns import FrameColumn, column_of
from millrace.domain.errors import InvalidInput

JOB_ID = "job_id"  # the column that every table has
HOW = (
    "Pass row=Reading with a dataclass, a msgspec Struct, a TypedDict or a function with annotations, "
    'row={"sensor": str, "value": float}, or row=pyarrow.schema(…)'
)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Row:
    """The columns of a task's table, in order, with the default values of columns that a payload may leave out."""

    def __init__(self, task: str, declared: object) -> None:
        self.schema = declared if is_arrow_schema(declared) else None
        self.kinds, parameters = _read(task, declared)
        if not self.kinds:
            raise InvalidInput(f"task {task!r}: a table needs a column, and {declared!r} has none. {HOW}")
        if JOB_ID in self.kinds:
            raise InvalidInput(f"task {task!r}: the column name {JOB_ID!r} is reserved; use another name")
        self.signature = inspect.Signature(parameters)
        self.defaults = _defaults(declared, parameters)
        self.columns: dict[str, FrameColumn] = {}
        if self.schema is None:
            self.columns = {name: column_of(task, name, kind) for name, kind in self.kinds.items()}

    def complete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of one row with default values added for columns that the payload leaves out."""
        if len(arguments) == len(self.kinds):
            return arguments
        return {name: arguments[name] if name in arguments else self.defaults[name]() for name in self.kinds}


def is_arrow_schema(declared: object) -> bool:
    kind = type(declared)
    return kind.__module__.partition(".")[0] == "pyarrow" and kind.__name__ == "Schema"


def _read(task: str, declared: Any) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    if is_arrow_schema(declared):
        kinds = {field.name: _kind_of(field.type, field.nullable) for field in declared}
        return kinds, [_by_name(name) for name in kinds]
    if isinstance(declared, Mapping):
        return dict(declared), [_by_name(str(name)) for name in declared]
    if typing.is_typeddict(declared):
        return _of_typed_dict(_hints(task, declared), declared.__optional_keys__)
    fields = dataclasses.is_dataclass(declared) or _is_struct(declared)
    if not (inspect.isfunction(declared) or (fields and isinstance(declared, type))):
        raise InvalidInput(f"task {task!r}: {declared!r} does not declare columns. {HOW}")
    parameters = list(inspect.signature(declared).parameters.values())
    for parameter in parameters:
        if parameter.kind not in _NAMED:
            raise InvalidInput(f"task {task!r}: {parameter.name!r} of {declared!r} cannot be a column: give it a name")
    hints = _hints(task, declared)
    return {one.name: hints.get(one.name, Any) for one in parameters}, parameters


def _of_typed_dict(hints: dict[str, Any], optional: frozenset[str]) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    """Return the columns and the parameters that a TypedDict declares. A column of an optional key may be null."""
    kinds: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, hint in hints.items():
        origin = typing.get_origin(hint)
        kind = typing.get_args(hint)[0] if origin in (typing.Required, typing.NotRequired) else hint
        missing = origin is typing.NotRequired or (name in optional and origin is not typing.Required)
        kinds[name] = kind | None if missing else kind
        parameters.append(_by_name(name, None if missing else inspect.Parameter.empty))
    return kinds, parameters


def _by_name(name: str, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    if not name.isidentifier():
        raise InvalidInput(f"{name!r} is not a Python name, so it cannot be a parameter or a column: rename it")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _hints(task: str, declared: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except NameError as error:
        raise InvalidInput(
            f"task {task!r}: the annotations of {declared!r} cannot be resolved ({error}). Import or define the types "
            "at the top of the module, not under TYPE_CHECKING."
        ) from None
    return {name: kind for name, kind in hints.items() if name != "return"}


def _is_struct(declared: object) -> bool:
    return isinstance(declared, type) and issubclass(declared, msgspec.Struct)


def _defaults(declared: Any, parameters: list[inspect.Parameter]) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        one.name: partial(_same, one.default) for one in parameters if one.default is not inspect.Parameter.empty
    }
    if dataclasses.is_dataclass(declared):
        made = {field.name: field.default_factory for field in dataclasses.fields(declared)}
        found |= {name: factory for name, factory in made.items() if factory is not dataclasses.MISSING}
    elif _is_struct(declared):
        for field in msgspec.structs.fields(declared):
            if field.default_factory is not msgspec.NODEFAULT:
                found[field.name] = field.default_factory
    return found


def _same(value: Any) -> Any:
    return value


# ── from Arrow types to Python types, to validate payloads ────────────────────────────────────


_PLAIN: tuple[tuple[str, Any], ...] = (
    ("bool", bool),
    ("int", int),
    ("uint", int),
    ("float", float),
    ("double", float),
    ("halffloat", float),
    ("string", str),
    ("large_string", str),
    ("binary", bytes),
    ("large_binary", bytes),
    ("timestamp", datetime),
    ("date", date),
    ("time", time),
    ("duration", timedelta),
    ("decimal", Decimal),
)


def _kind_of(kind: Any, nullable: bool) -> Any:
    found = _bare_kind(kind)
    return found | None if nullable and found is not Any else found


def _bare_kind(kind: Any) -> Any:
    text = str(kind)
    if text.startswith(("list", "large_list", "fixed_size_list")):
        return list[_kind_of(kind.value_type, True)]  # type: ignore[misc]
    if text.startswith("map"):
        return dict[_bare_kind(kind.key_type), _kind_of(kind.item_type, True)]  # type: ignore[misc]
    if text.startswith("dictionary"):
        return _bare_kind(kind.value_type)
    if text.startswith("struct"):
        return dict[str, Any]
    letters = text.partition("[")[0].partition("(")[0].rstrip("0123456789")
    return dict(_PLAIN).get(letters, Any)
