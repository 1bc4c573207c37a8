"""Serdes: how payloads and results become bytes. JSON by default, msgpack built in, others by registration.

A serde of one's own sees plain data only (dicts with text keys, lists, text, numbers, bytes as base64 text, null),
so that it need not know the types of any task, and never turns stored bytes into anything but data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import msgspec

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.hints import meant


@runtime_checkable
class Serde(Protocol):
    """What to implement for another format. The name is stored with each job."""

    @property
    def name(self) -> str: ...
    def encode(self, value: Any, /) -> bytes: ...
    def decode(self, data: bytes, /) -> Any: ...


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
    """A serde for one type: what is decoded is checked against the type in the same pass where possible."""

    __slots__ = ("decode", "encode", "serde")

    def __init__(self, serde: Serde, kind: Any) -> None:
        self.serde = serde.name
        self.encode: Callable[[Any], bytes]
        self.decode: Callable[[bytes], Any]
        if isinstance(serde, JsonSerde):
            self.encode, self.decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode
        elif isinstance(serde, MsgpackSerde):
            self.encode, self.decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
        else:
            self.encode = lambda value: serde.encode(msgspec.to_builtins(value, str_keys=True))
            self.decode = lambda data: msgspec.convert(serde.decode(data), kind, str_keys=True)


class Serdes:
    """The serdes an app knows, by name."""

    def __init__(self, more: Iterable[Serde] = ()) -> None:
        self._known: dict[str, Serde] = {serde.name: serde for serde in (JsonSerde(), MsgpackSerde())}
        for serde in more:
            self.add(serde)

    def add(self, serde: Serde) -> str:
        """Register a serde and answer its name; the same object may come twice, another of its name may not."""
        if not isinstance(serde, Serde):
            raise InvalidInput(f"{serde!r} is no serde: it needs a name, encode(value) and decode(data)")
        check_name("serde", serde.name)
        if self._known.setdefault(serde.name, serde) is not serde:
            raise InvalidInput(f"a serde named {serde.name!r} is registered already; give this one another name")
        return serde.name

    def name(self, serde: str | Serde) -> str:
        """The name of a serde that is known by name, or handed in as an object and registered by this."""
        if not isinstance(serde, str):
            return self.add(serde)
        if serde not in self._known:
            raise InvalidInput(f"no serde {serde!r} is registered. {meant(serde, self._known)}")
        return serde

    def get(self, name: str) -> Serde:
        serde = self._known.get(name)
        if serde is None:
            raise PayloadInvalid(
                f"the data was written with serde {name!r}, which this app does not know. "
                "Register it: App(…, serdes=[…])."
            )
        return serde
