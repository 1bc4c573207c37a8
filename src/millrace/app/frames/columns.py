"""The Arrow column type of a Python annotation.

An annotation that cannot be a column is refused when the task is registered. pyarrow is imported only when the first
table is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect as types

from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow


class FrameColumn(msgspec.Struct, frozen=True):
    """The type of a column. `name` is Arrow's name of the type, `inside` the types within a list, map or struct."""

    name: str
    inside: dict[str, FrameColumn] = {}
    nullable: bool = False


_PLAIN: dict[type[types.Type], str] = {
    types.StrType: "string",
    types.IntType: "int64",
    types.FloatType: "float64",
    types.BoolType: "bool_",
    types.BytesType: "binary",
    types.ByteArrayType: "binary",
    types.MemoryViewType: "binary",
    types.DateTimeType: "timestamp",
    types.DateType: "date32",
    types.TimeType: "time64",
    types.TimeDeltaType: "duration",
    types.DecimalType: "decimal",
    types.UUIDType: "string",
    types.NoneType: "null",
}
_LISTS = (types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType, types.CollectionType)
_RECORDS = (types.StructType, types.DataclassType, types.TypedDictType, types.NamedTupleType)
_DECIMAL = (38, 18)  # precision and scale; an Arrow schema as `row` can declare others


def column_of(task: str, name: str, kind: Any) -> FrameColumn:
    """Return the column type of an annotation. Raises InvalidInput if the annotation cannot be a column."""
    try:
        found = _of(types.type_info(kind), ())
    except (TypeError, NameError) as error:
        raise InvalidInput(f"task {task!r}, column {name!r}: {error}") from None
    if found is None:
        raise InvalidInput(
            f"task {task!r}: the type of column {name!r} does not follow from {kind!r}. Annotate it with one type "
            "(or one and None), such as float, str, datetime or list[int]; or declare row=pyarrow.schema(…)"
        )
    return found


def _of(info: types.Type, seen: tuple[Any, ...]) -> FrameColumn | None:
    if isinstance(info, types.Metadata):
        return _of(info.type, seen)
    if type(info) in _PLAIN:
        return FrameColumn(_PLAIN[type(info)])
    if isinstance(info, types.EnumType):
        return _of_values([member.value for member in info.cls])
    if isinstance(info, types.LiteralType):
        return _of_values(list(info.values))
    if isinstance(info, types.UnionType):
        return _of_union(info, seen)
    if isinstance(info, _LISTS):
        return _around("list_", {"item": _of(info.item_type, seen)})
    if isinstance(info, types.DictType):
        return _around("map_", {"key": _of(info.key_type, seen), "value": _of(info.value_type, seen)})
    if isinstance(info, _RECORDS):
        owner = getattr(info, "cls", None)
        if owner in seen:
            return None  # a recursive type cannot be a column
        return _around("struct", {field.encode_name: _of(field.type, (*seen, owner)) for field in info.fields})
    return None


def _of_values(values: list[Any]) -> FrameColumn | None:
    kinds = {type(value) for value in values}
    names = {str: "string", int: "int64", float: "float64", bool: "bool_"}
    return FrameColumn(names[kinds.pop()]) if len(kinds) == 1 and kinds <= names.keys() else None


def _of_union(info: types.UnionType, seen: tuple[Any, ...]) -> FrameColumn | None:
    rest = [part for part in info.types if not isinstance(part, types.NoneType)]
    if len(rest) != 1 or (found := _of(rest[0], seen)) is None:
        return None
    return msgspec.structs.replace(found, nullable=True)


def _around(name: str, inside: dict[str, FrameColumn | None]) -> FrameColumn | None:
    known = {key: column for key, column in inside.items() if column is not None}
    return FrameColumn(name, known) if len(known) == len(inside) else None


def arrow_type(column: FrameColumn) -> pyarrow.DataType:
    import pyarrow as pa

    inside = {name: arrow_type(part) for name, part in column.inside.items()}
    match column.name:
        case "timestamp":
            return pa.timestamp("us", tz="UTC")
        case "time64" | "duration" as name:
            return getattr(pa, name)("us")
        case "decimal":
            return pa.decimal128(*_DECIMAL)
        case "list_":
            return pa.list_(inside["item"])
        case "map_":
            return pa.map_(inside["key"], inside["value"])
        case "struct":
            return pa.struct(list(inside.items()))
        case name:
            return getattr(pa, name)()
