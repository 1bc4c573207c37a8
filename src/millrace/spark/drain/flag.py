"""The flag of a drain: a record among the store's workers that says whether the drain should continue.

Spark cancels a Python task by killing its process, so a cancelled worker could not stop cleanly. Instead the driver
renews this record for as long as the drain should run, and changes the text in it when the drain should stop. The
workers read the record. If the driver dies, the record expires, and the workers stop too.
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
    """The flag of one drain. The driver writes it, and the workers of the drain read it."""

    def __init__(self, drain: str) -> None:
        self.drain = drain

    async def show(self, store: Store, grace: float | None = None) -> None:
        """Write the flag. Without `grace`, the workers continue; with `grace`, they must stop within this many
        seconds.
        """
        word = _GO_ON if grace is None else f"{_STOP}{grace:g}s"
        host, pid = socket.gethostname(), os.getpid()
        await store.beat(
            WorkerInfo(self.drain, slots=0, version=word, host=host, pid=pid), TTL
        )  # not a worker: it has no slots

    async def strike(self, store: Store) -> None:
        await store.beat(WorkerInfo(self.drain), ttl=0)

    async def read(self, store: Store) -> float:
        """Return how many seconds the workers have to stop: infinity if they should continue, and -1 if the flag is
        missing or expired.
        """
        mine = [record for record in await store.workers() if record.info.id == self.drain]
        if not mine or not mine[0].alive:
            return -1
        word = mine[0].info.version
        return float(word.removeprefix(_STOP).removesuffix("s")) if word.startswith(_STOP) else math.inf

    def owns(self, worker: str | None) -> bool:
        """Return whether this worker belongs to the drain."""
        return worker is not None and worker.startswith(f"{self.drain}.")

    def worker(self, partition: int, attempt: int, chance: str) -> str:
        """Return a unique name for a worker. The partition alone is not unique, because Spark may start a partition
        more than once.
        """
        return f"{self.drain}.p{partition}a{attempt}-{socket.gethostname()[:64]}-{os.getpid()}-{chance}"

    def alive(self, records: Sequence[WorkerRecord]) -> int:
        return sum(record.alive and self.owns(record.info.id) for record in records)
