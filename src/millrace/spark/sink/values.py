"""Converts Arrow columns into the Python values of payloads: instants in UTC, maps as dicts.

The conversion is done column by column, because a Python loop over rows and columns would dominate the cost.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.app.payloads.jsonable import not_finite, refuse_unsafe
from millrace.domain.errors import PayloadInvalid


def values_of(column: pa.Array) -> list[Any]:
    kind = column.type
    if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and column.null_count == 0:
        numbers: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return numbers
    wanted = in_utc(kind)
    found: list[Any] = (column if wanted == kind else column.cast(wanted)).to_pylist(maps_as_pydicts="strict")
    return found


def in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the same Arrow type with every instant in UTC. Spark passes instants in the session's time zone."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(in_utc(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(in_utc(field.type)) for field in kind])
    return kind


def unfit_numbers(name: str, column: pa.Array, values: list[Any]) -> dict[int, str]:
    """Return the rows with a number that JSON cannot represent, such as NaN, each with the reason. Nested values are
    checked too.
    """
    where = f"column {name!r}"
    if pa.types.is_floating(column.type):
        odd = pc.invert(pc.fill_null(pc.is_finite(column), True))
        rows = pc.indices_nonzero(odd).to_pylist() if pc.any(odd).as_py() else []
        return {row: str(not_finite(where, values[row])) for row in rows}
    found: dict[int, str] = {}
    if _holds_floats(column.type):
        for row, value in enumerate(values):
            try:
                refuse_unsafe(where, value if value is not None else [], finite=True, keys=False)
            except PayloadInvalid as unfit:
                found[row] = str(unfit)
    return found


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return (
        any(_holds_floats(kind.field(at).type) for at in range(kind.num_fields)) if pa.types.is_nested(kind) else False
    )
