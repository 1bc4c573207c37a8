"""Serdes, which convert payloads and results to bytes: JSON by default, msgpack built in, others by registration.

A custom serde gets only JSON-like data (dicts with text keys, lists, text, numbers, bytes, null). So it does not depend
on the types of tasks, and decoding stored bytes cannot create other objects. A serde for message classes (`TypedSerde`)
also gets the type that the task declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import msgspec

from millrace.app.payloads.extra_types import from_stored, to_stored
from millrace.domain.errors import InvalidInput, PayloadInvalid, did_you_mean
from millrace.domain.rules.check import check_name


@runtime_checkable
class Serde(Protocol):
    """The interface of a custom serde. The name of the serde is stored with each job."""

    @property
    def name(self) -> str:
        """The name that is stored with each job."""
        ...

    def encode(self, value: Any, /) -> bytes:
        """Return a value as bytes."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """Return the value of these bytes."""
        ...


@runtime_checkable
class TypedSerde(Protocol):
    """The interface of a serde for message classes, such as Protocol Buffers. `kind` is the annotated type.

    The payload of a task with such a serde is one message, the task's only parameter.
    """

    @property
    def name(self) -> str:
        """The name that is stored with each job."""
        ...

    def encode_as(self, value: Any, kind: Any, /) -> bytes:
        """Return a value of this type as bytes."""
        ...

    def decode_as(self, data: bytes, kind: Any, /) -> Any:
        """Return the value of this type from these bytes."""
        ...


AnySerde = Serde | TypedSerde
_RAW = (bytes, bytearray, memoryview)  # formats other than JSON store these as they are


class JsonSerde:
    name = "json"

    def encode(self, value: Any, /) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, data: bytes, /) -> Any:
        return msgspec.json.decode(data)


class MsgpackSerde:
    name = "msgpack"

    def encode(self, value: Any, /) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, data: bytes, /) -> Any:
        return msgspec.msgpack.decode(data)


class Codec:
    """The encoder and decoder of values of one type, for one serde. Decoding also validates the type."""

    __slots__ = ("decode", "encode", "serde")

    def __init__(self, serde: AnySerde, kind: Any) -> None:
        self.serde = serde.name
        self.encode: Callable[[Any], bytes]
        self.decode: Callable[[bytes], Any]
        if isinstance(serde, JsonSerde):
            self.encode = msgspec.json.Encoder(enc_hook=to_stored).encode
            self.decode = msgspec.json.Decoder(kind, dec_hook=from_stored).decode
        elif isinstance(serde, MsgpackSerde):
            self.encode = msgspec.msgpack.Encoder(enc_hook=to_stored).encode
            self.decode = msgspec.msgpack.Decoder(kind, dec_hook=from_stored).decode
        elif isinstance(serde, TypedSerde):
            empty = kind in (None, type(None))  # a handler that returns None has no message
            self.encode = lambda value: b"" if empty and value is None else serde.encode_as(value, kind)
            self.decode = lambda data: None if empty else serde.decode_as(data, kind)
        else:
            self.encode = lambda value: serde.encode(
                msgspec.to_builtins(value, str_keys=True, builtin_types=_RAW, enc_hook=to_stored)
            )
            self.decode = lambda data: msgspec.convert(serde.decode(data), kind, str_keys=True, dec_hook=from_stored)


class Serdes:
    """The serdes that an app knows, by name."""

    def __init__(self, more: Iterable[AnySerde] = ()) -> None:
        self._known: dict[str, AnySerde] = {serde.name: serde for serde in (JsonSerde(), MsgpackSerde())}
        for serde in more:
            self.add(serde)

    def add(self, serde: AnySerde) -> str:
        """Register a serde and return its name. Raises InvalidInput if a different serde has this name."""
        if not isinstance(serde, Serde | TypedSerde):
            raise InvalidInput(
                f"{serde!r} is not a serde: it needs a name, encode(value) and decode(data); or, for message classes, "
                "encode_as(value, kind) and decode_as(data, kind)"
            )
        check_name("serde", serde.name)
        if self._known.setdefault(serde.name, serde) is not serde:
            raise InvalidInput(f"a serde named {serde.name!r} is already registered; give this one another name")
        return serde.name

    def name(self, serde: str | AnySerde) -> str:
        """Return the name of a serde. `serde` is a name or a serde object; an object is registered first.

        Raises InvalidInput if no serde has this name.
        """
        if not isinstance(serde, str):
            return self.add(serde)
        if serde not in self._known:
            raise InvalidInput(f"no serde {serde!r} is registered. {did_you_mean(serde, self._known)}")
        return serde

    def decode(self, data: bytes, name: str) -> Any:
        """Decode data without the types of a task. Raises PayloadInvalid for an unknown or typed serde."""
        serde = self.get(name)
        if isinstance(serde, Serde):
            return serde.decode(data)
        raise PayloadInvalid(
            f"the data is a message of serde {name!r}, which only the task that declares its class can read. "
            "Register that task with this app."
        )

    def get(self, name: str) -> AnySerde:
        serde = self._known.get(name)
        if serde is None:
            raise PayloadInvalid(
                f"the data was written with serde {name!r}, which is not registered on this app. "
                "Register it: App(…, serdes=[…])."
            )
        return serde
