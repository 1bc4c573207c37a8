"""Determines what each column of a DataFrame sets in the jobs made from its rows: this is the role of the column.

The roles are determined once, on the driver, from the options and the schema. Options that cannot work with the schema
raise InvalidInput there, before any task starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from pyspark.sql import types as spark

from millrace.app.payloads.jsonable import MAX_DEPTH
from millrace.domain.errors import InvalidInput, did_you_mean
from millrace.spark.options import SourceOptions

_PLAIN = (
    spark.NumericType,
    spark.StringType,
    spark.BooleanType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.DayTimeIntervalType,
    spark.NullType,
)
_INEXACT = (spark.FloatType, spark.DoubleType)
MOST_AT_ONCE = 10_000
Fits = Callable[[spark.DataType], bool]


class SinkPlan(msgspec.Struct, frozen=True):
    """The column names for each role. The payload comes from the column `json`, or else from the columns in
    `payload`.
    """

    payload: tuple[str, ...]
    json: str | None
    ids: tuple[str, ...]
    task: str | None = None
    queue: str | None = None
    priority: str | None = None
    delay: str | None = None
    run_at: str | None = None
    group: str | None = None
    key: str | None = None
    headers: str | None = None

    @property
    def roles(self) -> dict[str, str]:
        """The columns that set options of a job, such as its queue or priority, by option."""
        names = ("task", "queue", "priority", "delay", "run_at", "group", "key", "headers")
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are used. Rows with equal values in these columns make equal jobs."""
        content = self.payload if self.json is None else (self.json,)
        return tuple(dict.fromkeys((*content, *self.roles.values(), *self.ids)))


def read_plan(options: SourceOptions, schema: spark.StructType) -> SinkPlan:
    columns = _Columns(schema)
    _refuse_contradictions(options)
    roles = {
        role: columns.one(option, options[option], fits, wanted)
        for role, (option, fits, wanted) in _ROLES.items()
        if options[option] is not None
    }
    json = None
    if options["payloadColumn"] is not None:
        json = columns.one("payloadColumn", options["payloadColumn"], _is_text, "text")
    payload = () if json is not None else _payload(options, columns, roles.values())
    ids = [columns.one("idColumns", name, _identifies, _WHAT_IDENTIFIES) for name in options["idColumns"] or ()]
    return SinkPlan(payload=payload, json=json, ids=tuple(ids), **roles)


def _payload(options: SourceOptions, columns: _Columns, taken: Iterable[str]) -> tuple[str, ...]:
    if options["payloadColumns"] is not None:
        names = [columns.one("payloadColumns", name) for name in options["payloadColumns"]]
    else:
        others = set(taken)
        names = [name for name in columns.kinds if name not in others]
    for name in names:
        _refuse_strange(f"column {name!r}", columns.kinds[name])
    return tuple(names)


class _Columns:
    """The columns of the DataFrame. They are found by name in any case, as in Spark."""

    def __init__(self, schema: spark.StructType) -> None:
        self.kinds = {field.name: field.dataType for field in schema.fields}
        if len(self.kinds) < len(schema.fields):
            names = [field.name for field in schema.fields]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"there are two columns {twice!r}, and a payload holds each name once. Rename one")

    def one(self, option: str, name: str, fits: Fits | None = None, wanted: str = "") -> str:
        alike = [name] if name in self.kinds else [one for one in self.kinds if one.lower() == name.lower()]
        if len(alike) != 1:
            raise InvalidInput(
                f"option {option} names the column {name!r}, which is not there. {did_you_mean(name, self.kinds)}"
            )
        kind = self.kinds[alike[0]]
        if fits is not None and not fits(kind):
            raise InvalidInput(f"option {option}: column {alike[0]!r} is {kind.simpleString()}; it must be {wanted}")
        return alike[0]


def _refuse_contradictions(options: SourceOptions) -> None:
    if options["task"] is None and options["taskColumn"] is None:
        raise InvalidInput("which task are the jobs for? Name it by option('task', …), or a column by taskColumn")
    for one, other in (("payloadColumn", "payloadColumns"), ("delayColumn", "runAtColumn")):
        if options[one] is not None and options[other] is not None:
            raise InvalidInput(f"options {one} and {other} say the same thing in two ways; give one of them")
    for name in ("keyScope", "keyWindow", "onHit"):
        if options[name] is not None and options["keyColumn"] is None:
            raise InvalidInput(f"option {name} is about keys, and there are none: name their column by keyColumn")
    if (options["keyScope"] == "window") != (options["keyWindow"] is not None):
        raise InvalidInput("options keyScope=window and keyWindow go together; give both, or neither")
    if options["onHit"] == "extend" and options["keyScope"] != "window":
        raise InvalidInput("option onHit=extend restarts a window: it needs keyScope=window and keyWindow as well")
    if options["batchSize"] > MOST_AT_ONCE:
        raise InvalidInput(
            f"option batchSize takes at most {MOST_AT_ONCE:,}: others wait while the store takes a chunk"
        )
    if (options["onInvalid"] == "reject") != (options["rejectPath"] is not None):
        raise InvalidInput("options onInvalid=reject and rejectPath go together; give both, or neither")


def _refuse_strange(where: str, kind: spark.DataType, depth: int = 1) -> None:
    """Raise InvalidInput if JSON cannot represent the type, so that the column cannot be part of a payload."""
    if depth >= MAX_DEPTH:
        raise InvalidInput(f"{where} is nested deeper than {MAX_DEPTH} levels. Pass flatter data")
    match kind:
        case spark.ArrayType():
            _refuse_strange(f"{where}, an element,", kind.elementType, depth + 1)
        case spark.StructType():
            for field in kind.fields:
                _refuse_strange(f"{where}.{field.name}", field.dataType, depth + 1)
        case spark.MapType():
            if not isinstance(kind.keyType, spark.StringType):
                raise InvalidInput(
                    f"{where} has keys of {kind.keyType.simpleString()}, and JSON has only text. Cast them"
                )
            _refuse_strange(f"{where}, a value,", kind.valueType, depth + 1)
        case _ if not isinstance(kind, _PLAIN) and kind.typeName() != "time":
            raise InvalidInput(
                f"{where} is {kind.simpleString()}, which a payload cannot hold. Cast it, e.g. to string"
            )
        case _:
            pass


def _is_text(kind: spark.DataType) -> bool:
    return isinstance(kind, spark.StringType)


def _is_whole(kind: spark.DataType) -> bool:
    return isinstance(kind, spark.IntegralType)


def _is_name(kind: spark.DataType) -> bool:
    return _is_text(kind) or _is_whole(kind)


def _is_span(kind: spark.DataType) -> bool:
    return isinstance(kind, (spark.NumericType, spark.StringType, spark.DayTimeIntervalType))


def _is_instant(kind: spark.DataType) -> bool:
    return isinstance(kind, spark.TimestampType)


def _is_headers(kind: spark.DataType) -> bool:
    return isinstance(kind, spark.MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


_WHAT_IDENTIFIES = "a whole number, a decimal, text, binary, a boolean, a date or a timestamp"


def _identifies(kind: spark.DataType) -> bool:
    """Return whether a column of this type can identify a row. Floats and maps cannot, because equal values can have
    different texts.
    """
    return isinstance(kind, _PLAIN) and not isinstance(kind, (*_INEXACT, spark.NullType))


_ROLES: dict[str, tuple[str, Fits, str]] = {
    "task": ("taskColumn", _is_text, "text"),
    "queue": ("queueColumn", _is_text, "text"),
    "priority": ("priorityColumn", _is_whole, "a whole number"),
    "delay": ("delayColumn", _is_span, "seconds, text such as 10m, or an interval"),
    "run_at": ("runAtColumn", _is_instant, "a timestamp"),
    "group": ("groupColumn", _is_name, "text or a whole number"),
    "key": ("keyColumn", _is_name, "text or a whole number"),
    "headers": ("headersColumn", _is_headers, "a map of texts"),
}
