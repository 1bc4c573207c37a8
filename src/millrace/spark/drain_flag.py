"""The flag of a drain: its own record among the store's workers, which says whether to go on.

Spark cancels a Python task by killing its process, which is no way to stop a worker in good order. So the driver keeps
a record beating for as long as the drain is to go on, and changes its word when it is to stop. The workers look at it.
A driver that dies stops beating, and then they stop too.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence

from millrace.domain.request import WorkerInfo, WorkerRecord
from millrace.store.protocol import Store

TTL = 30_000
BEAT = 3.0  # seconds
_GO_ON = "draining"
_STOP = "stop within "


class Flag:
    """One word, written by the driver and read by its workers."""

    def __init__(self, drain: str) -> None:
        self.drain = drain

    async def show(self, store: Store, grace: float | None = None) -> None:
        """Go on; or, with a grace, stop within so many seconds."""
        word = _GO_ON if grace is None else f"{_STOP}{grace:g}s"
        host, pid = socket.gethostname(), os.getpid()
        await store.beat(WorkerInfo(self.drain, slots=0, version=word, host=host, pid=pid), TTL)  # it runs no jobs

    async def strike(self, store: Store) -> None:
        await store.leave(self.drain)

    async def read(self, store: Store) -> float:
        """Seconds of grace: infinite while the drain is to go on; -1 when nobody holds the flag up any more."""
        mine = [record for record in await store.workers() if record.info.id == self.drain]
        if not mine or not mine[0].alive:
            return -1
        word = mine[0].info.version
        return float(word.removeprefix(_STOP).removesuffix("s")) if word.startswith(_STOP) else math.inf

    def owns(self, worker: str | None) -> bool:
        """Is it the name of one of this drain's workers?"""
        return worker is not None and worker.startswith(f"{self.drain}.")

    def worker(self, partition: int, attempt: int, chance: str) -> str:
        """No two share a name: Spark may start a partition again, or twice at once."""
        return f"{self.drain}.p{partition}a{attempt}-{socket.gethostname()[:64]}-{os.getpid()}-{chance}"

    def alive(self, records: Sequence[WorkerRecord]) -> int:
        return sum(record.alive and self.owns(record.info.id) for record in records)
