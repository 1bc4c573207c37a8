"""Objects that change hold an envelope: a value, and what is needed to change several of them as one.

A transaction over several objects first leaves what it wants to write as `pending` in all but one of them. The write
of that one, the primary, is the commit: it names the transaction and the others in `commits`. Whoever meets a pending
value asks the primary. So a crash leaves a transaction that everybody sees as done, or one that nobody sees.
"""

from __future__ import annotations

import os
import random
from typing import TypeAlias

import msgspec

# A generator of our own: everything stands on bodies that never repeat, and programs seed the shared one.
_chance = random.Random(os.urandom(16))
os.register_at_fork(after_in_child=lambda: _chance.seed(os.urandom(16)))

Value: TypeAlias = msgspec.Raw | msgspec.UnsetType


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    tx: str
    primary: str
    next: Value = msgspec.UNSET  # the value, if the transaction is done


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """`nonce` makes every body unique, so that a tag never comes back and an own write is known again (BO-05)."""

    nonce: str
    value: Value = msgspec.UNSET  # unset: there is nothing here (any more)
    pending: Pending | None = None
    commits: dict[str, tuple[str, ...]] | None = None  # transaction -> the other objects that it wrote


_decoder = msgspec.json.Decoder(Envelope)


def opened(body: bytes) -> Envelope:
    return _decoder.decode(body)


def sealed(
    value: bytes | None, *, pending: Pending | None = None, commits: dict[str, tuple[str, ...]] | None = None
) -> bytes:
    return msgspec.json.encode(Envelope(nonce(), raw(value), pending, commits))


def nonce() -> str:
    return f"{_chance.getrandbits(64):016x}"


def raw(value: bytes | None) -> Value:
    return msgspec.UNSET if value is None else msgspec.Raw(value)


def plain(value: Value) -> bytes | None:
    return bytes(value) if isinstance(value, msgspec.Raw) else None
