"""Reads payloads from the command line: JSON, @file, or - for stdin. Payloads are checked before the store is
opened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from millrace.app.payloads.jsonable import refuse_unsafe
from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.domain.rules.check import MAX_PAYLOAD

MOST_INPUT = 64 << 20


def one_of(what: str, first: str | None, second: str | None) -> str | None:
    if first is not None and second is not None:
        raise InvalidInput(f"{what} was given twice: {first!r} and {second!r}. Give it once.")
    return second if first is None else first


def read_bytes(text: str) -> bytes:
    """Return the bytes of a payload. `text` is the payload itself, `@` and the path of a file, or `-` for stdin."""
    if text == "-":
        data = sys.stdin.buffer.read(MOST_INPUT + 1)
    elif text.startswith("@"):
        data = _file(text[1:])
    else:
        data = text.encode("utf-8", "surrogateescape")
    if len(data) > MOST_INPUT:
        raise PayloadInvalid(f"a payload has at most {MAX_PAYLOAD:,} bytes; for many jobs at once use --many")
    return data


def read_lines(text: str) -> Iterator[bytes]:
    if text == "-":
        source: Iterator[bytes] = iter(sys.stdin.buffer)
    elif text.startswith("@"):
        source = iter(_file(text[1:]).splitlines())
    else:
        source = iter(text.encode("utf-8", "surrogateescape").splitlines())
    return (line for line in source if line.strip())


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"the payload cannot be read from {name!r}: {why}") from None


def read_values(data: bytes, where: str) -> dict[str, Any]:
    """Decode a JSON object that has the parameters of a task by name. Empty input means no parameters. Raises
    PayloadInvalid if the input is anything else.
    """
    if not data.strip():
        return {}
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise PayloadInvalid(f'{where} is not JSON: {error}. Write an object, e.g. \'{{"to": "ada"}}\'') from None
    if not isinstance(values, dict):
        raise PayloadInvalid(
            f"{where} must be a JSON object with the task's parameters by name, not a {type(values).__name__}"
        )
    refuse_unsafe(where, values, finite=True, keys=False)
    return values
