"""Findings of the doctor: what was looked at, how it is, and what to do."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, TypeVar

from millrace.domain.errors import QueueError

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    check: str
    status: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""


async def guarded(check: str, asked: Awaitable[T], do: str) -> T | Finding:
    """The answer, or a failed check that says why there is none."""
    try:
        return await asked
    except (QueueError, OSError) as error:
        return Finding(check, "fail", str(error), do)
