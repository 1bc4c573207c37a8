"""Types that msgspec does not know, and how they are stored: paths as text, types of pydantic as pydantic dumps them.

pydantic is never imported here. A class can be one of its types only if the program has imported it.
"""

from __future__ import annotations

import os
import sys
import types
import typing
from functools import lru_cache
from pathlib import PurePath
from typing import Any

_HOOK = "__get_pydantic_core_schema__"  # what a class defines to be a type of pydantic
_UNIONS = (typing.Union, types.UnionType)


def is_storable(kind: Any) -> bool:
    """Return whether a type that msgspec does not know can be stored nevertheless."""
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type):
        return False
    return issubclass(kind, PurePath | _Adapted) or _is_pydantic(kind)


def to_stored(value: Any) -> Any:
    """Return a value as data that msgspec encodes. Raises TypeError or ValueError if that would lose something.

    This is the hook for values whose type msgspec does not know.
    """
    if isinstance(value, PurePath):
        return os.fspath(value)
    if _is_pydantic(type(value)):
        return _dumped(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def from_stored(kind: Any, data: Any) -> Any:
    """Return stored data as a value of `kind`, a type that msgspec does not know. Raises ValueError or TypeError."""
    kind = typing.get_origin(kind) or kind
    if issubclass(kind, PurePath):
        if not isinstance(data, str | PurePath):
            raise TypeError(f"Expected str, got {type(data).__name__}")
        return kind(data)
    if issubclass(kind, _Adapted):
        return _validated(kind.adapter, data)
    if _is_pydantic(kind):
        return _validated(_adapter(kind), data)
    raise NotImplementedError(f"{kind!r} cannot be read from stored data")  # refused when a task is declared


def with_pydantic_unions(kind: Any) -> Any:
    """Return an annotation in which pydantic decides which member of a union a value is, if one is a type of pydantic.

    msgspec allows such a type in a union only with None. Other annotations are returned unchanged.
    """
    if "pydantic" not in sys.modules:
        return kind
    parts = typing.get_args(kind)
    if typing.get_origin(kind) in _UNIONS:
        members = [part for part in parts if part is not type(None)]
        if len(members) > 1 and any(isinstance(one, type) and _is_pydantic(one) for one in members):
            return _Adaptation("Adapted", (_Adapted,), {"adapter": _type_adapter(kind), "union": kind})
    inner = tuple(with_pydantic_unions(part) if _has_parts(part) else part for part in parts)
    if inner == parts:
        return kind
    if typing.get_origin(kind) in _UNIONS:
        return typing.Union[inner]  # noqa: UP007  # its members are known only at run time
    return kind.copy_with(inner) if hasattr(kind, "copy_with") else typing.get_origin(kind)[inner]


class _Adaptation(type):
    def __instancecheck__(cls, value: object) -> bool:
        return True  # msgspec compares what `from_stored` returns with the class; pydantic has checked it

    def __repr__(cls) -> str:
        return str(getattr(cls, "union", "Adapted"))


class _Adapted(metaclass=_Adaptation):
    """The type of a parameter whose values pydantic checks. Each such annotation has a subclass of its own."""

    adapter: Any


def _has_parts(kind: Any) -> bool:
    return typing.get_origin(kind) not in (None, typing.Literal) and not isinstance(kind, list)


def _is_pydantic(kind: type) -> bool:
    return hasattr(kind, _HOOK) and "pydantic" in sys.modules


def _type_adapter(kind: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(kind)


@lru_cache(1_000)
def _adapter(kind: Any) -> Any:
    return _type_adapter(kind)


def _dumped(value: Any) -> Any:
    """Return a value of pydantic as JSON data.

    Raises ValueError if reading the data back gives another value: pydantic dumps a `SecretStr` as asterisks.
    """
    kind: type = type(value)
    adapter = _adapter(kind)
    data = adapter.dump_python(value, mode="json", by_alias=True, round_trip=True)
    again = _validated(adapter, data)
    if adapter.dump_python(again, round_trip=True) != adapter.dump_python(value, round_trip=True):
        raise ValueError(
            f"{type(value).__name__} would change when it is stored: its JSON is not read back as the same value. "
            "A field of type SecretStr has this effect, for example; declare it as another type"
        )
    return data


def _validated(adapter: Any, data: Any) -> Any:
    try:
        return adapter.validate_python(data)
    except sys.modules["pydantic"].ValidationError as error:
        lines = error.errors(include_url=False, include_input=False, include_context=False)
        raise ValueError("; ".join(_text(line) for line in lines)) from None


def _text(line: dict[str, Any]) -> str:
    place = ".".join(map(str, line["loc"]))
    return f"{place}: {line['msg']}" if place else str(line["msg"])
