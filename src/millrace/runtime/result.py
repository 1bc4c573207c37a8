"""Results: what a handler returned, as bytes, and back as its return annotation says."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.domain.check import MAX_PAYLOAD
from millrace.domain.errors import PayloadInvalid
from millrace.runtime.plain import may_be_deep, refuse_unsafe, too_deep
from millrace.runtime.serde import Codec, Serde


class Result:
    """Encodes and decodes the results of one task with one serde."""

    def __init__(self, task: str, kind: Any, serde: Serde) -> None:
        self._where = f"the result of task {task!r}"
        self._codec = Codec(serde, kind)
        self._json = serde.name == "json"

    def dump(self, value: Any) -> bytes:
        try:
            data = self._codec.encode(value)
        except RecursionError:
            raise too_deep(self._where) from None
        except Exception as error:  # a serde of somebody else's may raise anything
            raise PayloadInvalid(f"{self._where} cannot be encoded: {error}. Return plain data.") from error
        if len(data) > MAX_PAYLOAD:
            raise PayloadInvalid(
                f"{self._where} is {len(data):,} bytes; at most {MAX_PAYLOAD:,} are kept. "
                "Keep big data elsewhere and return a reference to it."
            )
        hides_nan = self._json and value is not None and b"null" in data
        if hides_nan or may_be_deep(data, self._json):
            refuse_unsafe(self._where, msgspec.to_builtins(value), finite=self._json, keys=False)
        return data

    def load(self, data: bytes) -> Any:
        try:
            return self._codec.decode(data)
        except Exception as error:
            text = str(error).replace("`", "")
            raise PayloadInvalid(f"{self._where} does not fit its return annotation: {text}") from error
