"""Payloads and results of a task: validated by the handler's annotations and encoded as bytes.

A payload has the handler's parameters by name. It is validated at enqueue, so that the producer sees a mistake, and
again when the job runs, because the handler may be newer than the code that enqueued the job.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from millrace.app.payloads.extra_types import from_stored, to_stored
from millrace.app.payloads.inputs import holds_input, is_input
from millrace.app.payloads.jsonable import may_be_deep, refuse_unsafe, too_deep
from millrace.app.payloads.serde import AnySerde, Codec, Serde, TypedSerde
from millrace.app.payloads.signature import Signature, contents
from millrace.domain.errors import InvalidInput, PayloadInvalid, ResultInvalid
from millrace.domain.rules.check import LARGE_PAYLOAD, MAX_PAYLOAD

_convert = partial(msgspec.convert, dec_hook=from_stored)
_plain_data = partial(msgspec.to_builtins, enc_hook=to_stored)
# Types that `convert` validates without encoding. Bytes stay bytes, or a text parameter would accept them.
_AS_THEY_ARE = (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
_PLACE = re.compile(r"(?s)(.*) - at `\$\.(.*)`")


class Payload:
    """The encoder and decoder of one task's parameters, for one serde."""

    def __init__(self, task: str, signature: Signature, serde: Serde) -> None:
        self._task = task
        self._signature = signature
        self._required = frozenset(signature.names) - signature.optional
        self._has_extra = signature.extra is not msgspec.UNSET
        try:
            self._model = _model(task, signature)
            self._many = list[self._model]  # type: ignore[name-defined]  # made at run time, for `convert` only
            self._codec = Codec(serde, dict[str, Any] if self._has_extra else self._model)
            msgspec.json.Decoder(self._model)  # raises for ambiguous types, such as datetime | str
        except TypeError as error:
            raise InvalidInput(f"task {task!r}: its parameters cannot be read back from a payload: {error}") from None
        self._json = serde.name == "json"
        held, more = contents(self._model), contents(signature.extra if self._has_extra else None)
        self._objects = held.objects or more.objects
        self._floats = self._json and (held.floats or more.floats)
        self._open = held.open or more.open
        self._firm = frozenset(name for name, kind in signature.kinds.items() if not contents(kind).open)
        self._warned = False

    def pack(self, values: dict[str, Any]) -> bytes:
        try:
            data = self._codec.encode(self._checked(values))
        except RecursionError:
            raise too_deep(f"task {self._task!r}") from None
        except Exception as error:  # a custom serde may raise anything
            raise self._explained(values, error) from error
        if self._may_hide_inputs(data) and (refused := self._refusal_of_inputs(values)) is not None:
            raise refused
        if self._floats or self._open:
            self._look_inside(values, data)
        if len(data) > LARGE_PAYLOAD:
            self._warned = refuse_large(self._task, data, self._warned)
        return data

    def pack_many(self, many: Sequence[dict[str, Any]], first: int = 0) -> list[bytes]:
        """Return the encoded payloads of many jobs. This is faster than encoding them one by one.

        Raises PayloadInvalid if an item is invalid. The message has the number of the item, counted from `first`.
        """
        if self._has_extra:
            return self._one_by_one(many, first)
        encode = self._codec.encode
        try:
            plain = msgspec.to_builtins(many, builtin_types=_AS_THEY_ARE, enc_hook=to_stored) if self._objects else many
            packed = [encode(one) for one in msgspec.convert(plain, self._many, dec_hook=from_stored)]
            if self._objects or self._open:
                hiding = [values for values, data in zip(many, packed, strict=True) if self._may_hide_inputs(data)]
                if any(map(self._refusal_of_inputs, hiding)):
                    return self._one_by_one(many, first)
            if self._floats or self._open:
                for values, data in zip(many, packed, strict=True):
                    self._look_inside(values, data)
        except Exception:
            return self._one_by_one(many, first)  # finds the invalid item and explains the error
        if packed and len(max(packed, key=len)) > LARGE_PAYLOAD:
            return self._one_by_one(many, first)
        return packed

    def _one_by_one(self, many: Sequence[dict[str, Any]], first: int) -> list[bytes]:
        packed = []
        for index, values in enumerate(many, start=first):
            try:
                packed.append(self.pack(values))
            except PayloadInvalid as error:
                raise PayloadInvalid(f"item {index}: {error}") from error.__cause__
        return packed

    def _checked(self, values: dict[str, Any]) -> Any:
        plain = msgspec.to_builtins(values, builtin_types=_AS_THEY_ARE, enc_hook=to_stored) if self._objects else values
        return self._split(plain) if self._has_extra else _convert(plain, self._model)

    def unpack(self, data: bytes) -> dict[str, Any]:
        """Decode a payload and return the handler's arguments by name. Raises PayloadInvalid.

        A parameter with a default may be missing from the returned dict.
        """
        try:
            decoded = self._codec.decode(data)
            if self._has_extra:
                return self._split(decoded)
        except PayloadInvalid:
            raise
        except Exception as error:  # a custom serde may raise anything
            raise PayloadInvalid(f"the payload does not fit task {self._task!r}: {_placed(error)}") from error
        values = msgspec.structs.asdict(decoded)
        if self._signature.optional:
            return {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return values

    def _split(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the values of the handler's parameters, including those of **kwargs, and return them by name."""
        names = self._signature.kinds.keys()
        known = _convert({name: values[name] for name in names & values.keys()}, self._model)
        checked = {name: value for name, value in msgspec.structs.asdict(known).items() if value is not msgspec.UNSET}
        for name in values.keys() - names:
            try:
                checked[name] = _convert(values[name], self._signature.extra)
            except msgspec.ValidationError as error:
                raise PayloadInvalid(f"task {self._task!r}: parameter {name!r}: {_plain(error)}") from None
        return checked

    def _look_inside(self, values: dict[str, Any], data: bytes) -> None:
        """Raise PayloadInvalid for data that an encoder accepts but that must not be stored.

        Such data are NaN (which JSON writes as null), deep nesting, and dict keys that would be decoded as text.
        """
        if self._open:
            for name, value in values.items():
                if isinstance(value, dict | list | tuple) and name not in self._firm:
                    refuse_unsafe(f"task {self._task!r}", {name: value}, finite=self._floats, keys=True)
        if (self._floats and b"null" in data) or (self._open and may_be_deep(data, self._json)):
            refuse_unsafe(f"task {self._task!r}", _plain_data(values), finite=self._floats, keys=False)

    def _may_hide_inputs(self, data: bytes) -> bool:
        """Return whether a spec may have been encoded as data: its fields, or what a type of the user takes of them."""
        return self._objects or (self._open and b"token" in data)

    def _refusal_of_inputs(self, values: Mapping[str, Any]) -> PayloadInvalid | None:
        """Return an error if a value is a spec or a handle, else None. Some types accept these as data."""
        for name, value in values.items():
            if is_input(value):
                return PayloadInvalid(
                    f"task {self._task!r}: parameter {name!r} is a job whose result is not known yet. "
                    "Make the spec with task.spec(…)"
                )
            if holds_input(value):
                return PayloadInvalid(
                    f"task {self._task!r}: parameter {name!r} has results of other jobs beside values. A list or "
                    "dict has either results only, or values only: pass them as two parameters."
                )
        return None

    def _explained(self, values: object, error: Exception) -> PayloadInvalid:
        """Return a PayloadInvalid for this error that names the task and the parameter."""
        if isinstance(error, PayloadInvalid):
            return error
        if not isinstance(values, Mapping):
            return PayloadInvalid(f"task {self._task!r}: parameters must be a dict by name, not {values!r}")
        unknown = [] if self._has_extra else [name for name in values if name not in self._signature.kinds]
        if unknown:
            takes = ", ".join(self._signature.names) or "none"
            return PayloadInvalid(f"task {self._task!r} has no parameter {unknown[0]!r}; its parameters are: {takes}")
        if (refused := self._refusal_of_inputs(values)) is not None:
            return refused
        missing = [name for name in self._signature.names if name in self._required and name not in values]
        if missing:
            return PayloadInvalid(f"task {self._task!r} needs parameter {missing[0]!r}, which is missing")
        return PayloadInvalid(f"task {self._task!r}: {_placed(error)}. Pass a value that fits the annotation.")


class Result:
    """The encoder and decoder of one task's results, for one serde."""

    def __init__(self, task: str, kind: Any, serde: AnySerde) -> None:
        self._where = f"the result of task {task!r}"
        self._codec = Codec(serde, Any if kind is msgspec.UNSET else kind)
        self._json = serde.name == "json"
        self._is_message = isinstance(serde, TypedSerde)
        self._is_dropped = kind is msgspec.UNSET

    def dump(self, value: Any) -> bytes:
        """Return the encoded result. Raises ResultInvalid if it cannot be encoded or is too large."""
        if self._is_dropped:
            value = None
        try:
            data = self._codec.encode(value)
        except RecursionError:
            raise ResultInvalid(str(too_deep(self._where))) from None
        except Exception as error:  # a custom serde may raise anything
            raise ResultInvalid(f"{self._where} cannot be encoded: {error}. Return JSON-like data.") from error
        if len(data) > MAX_PAYLOAD:
            raise ResultInvalid(
                f"{self._where} has {len(data):,} bytes; the limit is {MAX_PAYLOAD:,}. "
                "Store large data elsewhere and return a reference to it."
            )
        hides_nan = self._json and value is not None and b"null" in data
        if not self._is_message and (hides_nan or may_be_deep(data, self._json)):
            try:
                refuse_unsafe(self._where, _plain_data(value), finite=self._json, keys=False)
            except Exception as error:
                raise ResultInvalid(str(error)) from error
        return data

    def load(self, data: bytes) -> Any:
        try:
            return self._codec.decode(data)
        except Exception as error:
            text = str(error).replace("`", "")
            raise PayloadInvalid(f"{self._where} does not fit its return annotation: {text}") from error


def bind(task: str, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return positional and keyword arguments as one dict by parameter name.

    Raises PayloadInvalid for too many positional arguments, or for a parameter that is passed twice.
    """
    if not args:
        return kwargs
    names = signature.names[: signature.positional]
    if len(args) > len(names):
        raise PayloadInvalid(
            f"task {task!r} takes {len(names)} parameters by position, not {len(args)}: {', '.join(names)}"
        )
    twice = kwargs.keys() & set(names[: len(args)])
    if twice:
        raise PayloadInvalid(f"task {task!r}: parameter {min(twice)!r} is passed twice")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def refuse_large(task: str, data: bytes, warned: bool) -> bool:
    """Raise PayloadInvalid if the payload is too large, and warn if it is large and `warned` is False.

    Return the new value of `warned`: whether a warning has been shown for the task, now or before.
    """
    if len(data) <= LARGE_PAYLOAD:
        return warned
    if len(data) > MAX_PAYLOAD:
        raise PayloadInvalid(
            f"task {task!r}: the payload has {len(data):,} bytes; the limit is {MAX_PAYLOAD:,}. "
            "Store large data elsewhere and pass a reference to it."
        )
    if not warned:
        warnings.warn(
            f"task {task!r}: a payload of {len(data):,} bytes is slow to store and to claim. "
            "Store large data elsewhere and pass a reference to it. (Shown once per task.)",
            stacklevel=5,
        )
    return True


def _model(task: str, signature: Signature) -> type[msgspec.Struct]:
    """Return a struct type for the payload. A parameter with a default may be left out of the payload."""
    required = [(name, kind) for name, kind in signature.kinds.items() if name not in signature.optional]
    optional = [
        (name, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET)
        for name, kind in signature.kinds.items()
        if name in signature.optional
    ]
    return msgspec.defstruct(
        re.sub(r"\W", "_", task), [*required, *optional], forbid_unknown_fields=True, kw_only=True, gc=False
    )


def _placed(error: Exception) -> str:
    """Return the text of an error, with the parameter's name first if the error has one.

    `Expected int, got str - at $.to[0]` becomes `parameter 'to[0]': Expected int, got str`.
    """
    found = _PLACE.fullmatch(str(error)) if isinstance(error, msgspec.ValidationError) else None
    return _plain(error) if found is None else f"parameter {found[2]!r}: {found[1].replace('`', '')}"


def _plain(error: Exception) -> str:
    return str(error).replace("`", "")
