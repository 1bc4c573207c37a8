"""For the type checker: a value that is there, of a kind the test knows."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def the(value: T | None) -> T:
    """`value`, which must not be None."""
    assert value is not None
    return value


def checked_cast(kind: type[T], value: object) -> T:
    """`value`, which must be a `kind`."""
    assert isinstance(value, kind), value
    return value
