"""Payloads: a handler's parameters by name, checked against its annotations, as bytes.

They are checked at enqueue, so that a mistake is the producer's to see, and again at run, because the code that
runs may be newer than the code that enqueued.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from millrace.domain.check import LARGE_PAYLOAD, MAX_PAYLOAD
from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.runtime.plain import may_be_deep, refuse_unsafe, too_deep
from millrace.runtime.serde import Codec, Serde
from millrace.runtime.signature import Signature, contents

# What `convert` checks as it is. Bytes must not have become text by then, or a text parameter would take them.
_AS_THEY_ARE = (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
_PLACE = re.compile(r"(?s)(.*) - at `\$\.(.*)`")


class Payload:
    """Packs and unpacks the parameters of one task with one serde."""

    def __init__(self, task: str, signature: Signature, serde: Serde) -> None:
        self._task = task
        self._signature = signature
        self._required = frozenset(signature.names) - signature.optional
        self._has_extra = signature.extra is not msgspec.UNSET
        try:
            self._model = _model(task, signature)
            self._many = list[self._model]  # type: ignore[name-defined]  # made at run time, for `convert` only
            self._codec = Codec(serde, dict[str, Any] if self._has_extra else self._model)
            msgspec.json.Decoder(self._model)  # refuses what no serde could tell apart, e.g. datetime | str
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
        except Exception as error:  # a serde of somebody else's may raise anything
            raise self._explained(values, error) from error
        if self._floats or self._open:
            self._look_inside(values, data)
        if len(data) > LARGE_PAYLOAD:
            self._refuse_large(data)
        return data

    def pack_many(self, many: Sequence[dict[str, Any]], first: int = 0) -> list[bytes]:
        """All payloads, or PayloadInvalid for the one at fault; `first` is the number of the first of them.

        One pass over all of them is what makes it fast.
        """
        if self._has_extra:
            return self._one_by_one(many, first)
        encode = self._codec.encode
        try:
            plain = msgspec.to_builtins(many, builtin_types=_AS_THEY_ARE) if self._objects else many
            packed = [encode(one) for one in msgspec.convert(plain, self._many)]
            if self._floats or self._open:
                for values, data in zip(many, packed, strict=True):
                    self._look_inside(values, data)
        except Exception:
            return self._one_by_one(many, first)  # it finds the one at fault, and says what is wrong with it
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
        plain = msgspec.to_builtins(values, builtin_types=_AS_THEY_ARE) if self._objects else values
        return self._split(plain) if self._has_extra else msgspec.convert(plain, self._model)

    def unpack(self, data: bytes) -> dict[str, Any]:
        """The arguments for the handler: those with a default may be missing."""
        try:
            decoded = self._codec.decode(data)
            if self._has_extra:
                return self._split(decoded)
        except PayloadInvalid:
            raise
        except Exception as error:  # a serde of somebody else's may raise anything
            raise PayloadInvalid(f"the payload does not fit task {self._task!r}: {_placed(error)}") from error
        values = msgspec.structs.asdict(decoded)
        if self._signature.optional:
            return {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return values

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The parameters by name, as a call of the handler would take them."""
        if not args:
            return kwargs
        names = self._signature.names[: self._signature.positional]
        if len(args) > len(names):
            raise PayloadInvalid(
                f"task {self._task!r} takes {len(names)} parameters by position, not {len(args)}: {', '.join(names)}"
            )
        twice = kwargs.keys() & set(names[: len(args)])
        if twice:
            raise PayloadInvalid(f"task {self._task!r}: parameter {min(twice)!r} was given twice")
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _split(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Named parameters and the rest, each checked against its own annotation."""
        names = self._signature.kinds.keys()
        known = msgspec.convert({name: values[name] for name in names & values.keys()}, self._model)
        checked = {name: value for name, value in msgspec.structs.asdict(known).items() if value is not msgspec.UNSET}
        for name in values.keys() - names:
            try:
                checked[name] = msgspec.convert(values[name], self._signature.extra)
            except msgspec.ValidationError as error:
                raise PayloadInvalid(f"task {self._task!r}: parameter {name!r}: {_plain(error)}") from None
        return checked

    def _look_inside(self, values: dict[str, Any], data: bytes) -> None:
        """What encoders let pass: NaN (JSON writes null), bottomless nesting, and keys that come back as text."""
        if self._open:
            for name, value in values.items():
                if isinstance(value, dict | list | tuple) and name not in self._firm:
                    refuse_unsafe(f"task {self._task!r}", {name: value}, finite=self._floats, keys=True)
        if (self._floats and b"null" in data) or (self._open and may_be_deep(data, self._json)):
            refuse_unsafe(f"task {self._task!r}", msgspec.to_builtins(values), finite=self._floats, keys=False)

    def _refuse_large(self, data: bytes) -> None:
        if len(data) > MAX_PAYLOAD:
            raise PayloadInvalid(
                f"task {self._task!r}: the payload is {len(data):,} bytes; at most {MAX_PAYLOAD:,} are taken. "
                "Keep big data elsewhere and pass a reference to it."
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"task {self._task!r}: a payload of {len(data):,} bytes is slow to store and to claim. "
                "Keep big data elsewhere and pass a reference to it. (Said once per task.)",
                stacklevel=5,
            )

    def _explained(self, values: object, error: Exception) -> PayloadInvalid:
        """The error in words that name the task and the parameter."""
        if isinstance(error, PayloadInvalid):
            return error
        if not isinstance(values, Mapping):
            return PayloadInvalid(f"task {self._task!r}: parameters are given by name, in a dict, not as {values!r}")
        unknown = [] if self._has_extra else [name for name in values if name not in self._signature.kinds]
        if unknown:
            takes = ", ".join(self._signature.names) or "none"
            return PayloadInvalid(f"task {self._task!r} has no parameter {unknown[0]!r}; its parameters are: {takes}")
        missing = [name for name in self._signature.names if name in self._required and name not in values]
        if missing:
            return PayloadInvalid(f"task {self._task!r} needs parameter {missing[0]!r}, which was not given")
        return PayloadInvalid(f"task {self._task!r}: {_placed(error)}. Pass a value that fits the annotation.")


def _model(task: str, signature: Signature) -> type[msgspec.Struct]:
    """The payload as a struct. A parameter with a default may be unset: then it is not written at all."""
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
    """`Expected int, got str - at $.to[0]` in words that name the parameter."""
    found = _PLACE.fullmatch(str(error)) if isinstance(error, msgspec.ValidationError) else None
    return _plain(error) if found is None else f"parameter {found[2]!r}: {found[1].replace('`', '')}"


def _plain(error: Exception) -> str:
    return str(error).replace("`", "")
