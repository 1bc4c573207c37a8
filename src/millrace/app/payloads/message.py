"""Payloads that consist of one message of a user's class, such as a Protocol Buffer.

A serde for message classes gets the declared type and the value. The payload is the encoded message itself, so that
other programs can read and write it. Therefore such a task has exactly one parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.app.payloads.payload import refuse_large
from millrace.app.payloads.serde import TypedSerde
from millrace.app.payloads.signature import Signature
from millrace.domain.errors import InvalidInput, PayloadInvalid


class Message:
    """The encoder and decoder of a task's only parameter, a message. It has the same interface as `Payload`."""

    def __init__(self, task: str, signature: Signature, serde: TypedSerde) -> None:
        if len(signature.names) != 1 or signature.extra is not msgspec.UNSET:
            raise InvalidInput(
                f"task {task!r}: with serde {serde.name!r} the payload is one message, so the handler takes one "
                f"parameter (besides the context), not {len(signature.names)}"
            )
        self._task = task
        self._serde = serde
        [(self._name, self._kind)] = signature.kinds.items()
        self._warned = False

    def pack(self, values: dict[str, Any]) -> bytes:
        if list(values) != [self._name]:
            given = ", ".join(map(repr, values)) or "nothing"
            raise PayloadInvalid(f"task {self._task!r} takes one parameter, {self._name!r}; it got {given}")
        value = values[self._name]
        if inspect.isclass(self._kind) and not isinstance(value, self._kind):
            raise PayloadInvalid(
                f"task {self._task!r}: parameter {self._name!r}: expected {self._kind.__name__}, "
                f"got {type(value).__name__}. Pass a value that fits the annotation."
            )
        try:
            data = self._serde.encode_as(value, self._kind)
        except Exception as error:  # a custom serde may raise anything
            raise PayloadInvalid(f"task {self._task!r}: parameter {self._name!r}: {error}") from error
        self._warned = refuse_large(self._task, data, self._warned)
        return data

    def pack_many(self, many: Sequence[dict[str, Any]], first: int = 0) -> list[bytes]:
        packed = []
        for index, values in enumerate(many, start=first):
            try:
                packed.append(self.pack(values))
            except PayloadInvalid as error:
                raise PayloadInvalid(f"item {index}: {error}") from error.__cause__
        return packed

    def unpack(self, data: bytes) -> dict[str, Any]:
        try:
            return {self._name: self._serde.decode_as(data, self._kind)}
        except Exception as error:  # a custom serde may raise anything
            raise PayloadInvalid(f"the payload does not fit task {self._task!r}: {error}") from error
