"""A deadline: a write that waits for a lock is given some seconds, so that requests do not pile up behind one.

SQLite's writers take turns, and one that holds the lock for a minute holds up everybody. What was asked for may still
be done once the lock is free; the answer says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from millrace.runtime.app import App
from millrace.runtime.deeds import Deed
from millrace.web.problem import Problem

T = TypeVar("T")
SECONDS = 10.0
EACH = 0.05  # more for each job of many: a bucket writes an object for each
COME_BACK = "5"


async def patient(writing: Awaitable[T], jobs: int = 0) -> T:
    seconds = SECONDS + EACH * jobs
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            return await writing
    except TimeoutError:
        if not bound.expired():
            raise
        raise Problem(
            503,
            "busy",
            f"the store was busy for {seconds:g} seconds: another writer holds it. What was asked for may still be done"
            " once it is free, so look before you ask again; a job with an id of your own can be put in again safely.",
            headers={"retry-after": COME_BACK},
        ) from None


def patiently(deed: Deed) -> Deed:
    """The same deed, each batch of it bounded."""

    async def ask(app: App, ids: Sequence[str]) -> Sequence[str]:
        return await patient(deed.ask(app, ids), len(ids))

    return replace(deed, ask=ask)
