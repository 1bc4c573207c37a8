"""Findings of the doctor: what was looked at, how it is, and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from millrace.domain.errors import QueueError

T = TypeVar("T")
LITTLE = 100 << 20


@dataclass(frozen=True)
class Finding:
    check: str
    status: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""


def disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    if free < LITTLE:
        return Finding("disk", "warn", f"{free >> 20:,} MiB free", "free some room: a full disk stops enqueues")
    return Finding("disk", "ok", f"{free >> 30:,} GiB free")


async def guarded(check: str, asked: Awaitable[T], do: str) -> T | Finding:
    """The answer, or a failed check that says why there is none."""
    try:
        return await asked
    except (QueueError, OSError) as error:
        return Finding(check, "fail", str(error), do)
