"""The store under test, and the leases that the model holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from millrace.domain.job import Job, Lease
from millrace.store.clock import Clock
from millrace.store.protocol import Store


class Held(msgspec.Struct):
    """One lease as each side names it, and the job as it was returned."""

    leases: tuple[Lease, Lease]
    job: Job


class Subject(NamedTuple):
    """The kind of store under test: how to create one, reopen it, and clean up.

    `runner` is an event loop for all examples; without it, each has its own.
    """

    make: Callable[[Clock], Store]
    reopen: Callable[[Store, Clock], Store] | None
    discard: Callable[[Store], None] | None
    label: str
    runner: asyncio.Runner | None = None
