"""Arguments and results as data: values that JSON lacks are tagged, so that a task gets what its caller passed.

The tags are those that Celery's own JSON serializer writes, so a date arrives as a date.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from millrace.domain.errors import PayloadInvalid

_TAG, _VALUE = "__type__", "__value__"

# In this order: a datetime is a date too.
_WRITE: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (datetime, "datetime", datetime.isoformat),
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (Decimal, "decimal", str),
    (UUID, "uuid", lambda value: {"hex": value.hex}),
    (bytes, "base64", lambda value: base64.b64encode(value).decode()),
)
_READ: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda value: UUID(value["hex"]),
    "base64": base64.b64decode,
    "bytes": str.encode,
}


def plain(value: Any) -> Any:
    """Return a value as JSON data. Raises PayloadInvalid for a value that a task cannot get back."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {_key(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    for kind, tag, write in _WRITE:
        if isinstance(value, kind):
            return {_TAG: tag, _VALUE: write(value)}
    raise PayloadInvalid(
        f"{value!r} of type {type(value).__name__} cannot be an argument or a result of a task: these are JSON data, "
        "dates, Decimal, UUID and bytes. Pass an id, or a dict of its fields"
    )


def restored(value: Any) -> Any:
    """Return the value that `plain` has made data of."""
    if isinstance(value, dict):
        if value.keys() == {_TAG, _VALUE} and value[_TAG] in _READ:
            return _READ[value[_TAG]](value[_VALUE])
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item) for item in value]
    return value


def _key(key: object) -> str:
    """Return the key of a mapping as JSON has it: text. Celery's JSON does the same to numbers."""
    if isinstance(key, str):
        return key
    if isinstance(key, int | float) and not isinstance(key, bool):
        return str(key)
    raise PayloadInvalid(f"{key!r} cannot be a key of a dict that a task gets: JSON has text keys only")
