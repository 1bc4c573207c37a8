"""Findings of the doctor. A finding has the name of the check, its status, what was found, and what to do."""

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
        return Finding(
            "disk", "warn", f"{free >> 20:,} MiB free", "free some space: when the disk is full, enqueues fail"
        )
    return Finding("disk", "ok", f"{free >> 30:,} GiB free")


async def guarded(check: str, awaited: Awaitable[T], do: str) -> T | Finding:
    """Await `awaited` and return its result. If it raises a QueueError or OSError, return a failed finding with the
    message.
    """
    try:
        return await awaited
    except (QueueError, OSError) as error:
        return Finding(check, "fail", str(error), do)
