"""Filter pushdown: which of Spark's filters this source can apply, and which rows match them.

Spark does not check pushed filters again. Therefore every filter whose result could differ from Spark's is left to
Spark. As in Spark, a comparison with null is neither true nor false, so such a row does not match, even if the filter
is negated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark

from millrace.spark.table import Table, arrow_type

_COMPARED: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "EqualTo": pc.equal,
    "EqualNullSafe": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
_SEARCHED: dict[str, Callable[..., pa.Array]] = {
    "StringStartsWith": pc.starts_with,
    "StringEndsWith": pc.ends_with,
    "StringContains": pc.match_substring,
}
_PLAIN = frozenset({"string", "bigint", "int", "boolean", "timestamp"})


class Condition(msgspec.Struct, frozen=True):
    """A filter of Spark on one column: `column` is compared with `value` by `test`. With `negated`, the result is
    inverted.
    """

    column: str
    test: str
    value: Any = None
    negated: bool = False

    def mask(self, values: pa.Array) -> pa.Array:
        """Return for each value whether it matches. The result is null for comparisons with null."""
        if self.test in ("IsNull", "IsNotNull"):
            found = pc.is_null(values) if self.test == "IsNull" else pc.is_valid(values)
        elif self.test in _COMPARED:
            found = _COMPARED[self.test](values, pa.scalar(self.value, values.type))
            if self.test == "EqualNullSafe":
                found = pc.fill_null(found, False)
        elif self.test in _SEARCHED:
            found = _SEARCHED[self.test](values, self.value)
        else:  # In
            found = pc.is_in(values, pa.array(self.value, values.type))
            found = pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))
        return pc.invert(found) if self.negated else found

    @property
    def wanted(self) -> tuple[Any, ...] | None:
        """The only values that can match, if this is a test for equality; otherwise None."""
        if self.negated or self.test not in ("EqualTo", "EqualNullSafe", "In"):
            return None
        return tuple(self.value) if self.test == "In" else (self.value,)


def condition(spark_filter: spark.Filter, table: Table) -> Condition | None:
    """Return the condition for one of Spark's filters; None if the filter is left to Spark."""
    negated = isinstance(spark_filter, spark.Not)
    plain: Any = spark_filter.child if isinstance(spark_filter, spark.Not) else spark_filter
    test = type(plain).__name__
    path: list[str] = list(getattr(plain, "attribute", ()))
    kinds = {column.name: column.type for column in table.columns}
    kind = kinds.get(path[0]) if len(path) == 1 else None
    if kind not in _PLAIN:
        return None
    if test in ("IsNull", "IsNotNull"):
        return Condition(path[0], test, None, negated)
    if test in _SEARCHED and (kind != "string" or not isinstance(plain.value, str)):
        return None
    if test not in (*_COMPARED, *_SEARCHED, "In"):
        return None
    values = tuple(plain.value) if test == "In" else (plain.value,)
    if not all(_fits(value, kind) for value in values):
        return None
    return Condition(path[0], test, values if test == "In" else plain.value, negated)


def _fits(value: Any, kind: str) -> bool:
    """Return whether the value can be compared with a column of this type without a conversion."""
    expected = {"string": str, "bigint": int, "int": int, "boolean": bool, "timestamp": datetime}[kind]
    if type(value) is not expected or (isinstance(value, datetime) and value.tzinfo is None):
        return False
    try:
        pa.scalar(value, arrow_type(kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def passing(conditions: Sequence[Condition], columns: dict[str, pa.Array]) -> pa.Array:
    """Return a boolean for each row: whether all conditions are true. `columns` has the values by column name."""
    masks = [one.mask(columns[one.column]) for one in conditions]
    found = masks[0]
    for mask in masks[1:]:
        found = pc.and_kleene(found, mask)
    return pc.fill_null(found, False)
