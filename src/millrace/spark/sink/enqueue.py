"""Enqueues specs chunk by chunk. While one chunk is being enqueued, the caller builds the next.

Ids are derived from the rows, so a chunk can be sent again after any error without enqueueing a job twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import msgspec

from millrace.domain.errors import DeadLettersFull, QueueFull, StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.spark.open import OpenedStore
from millrace.spark.sink.tasks import Targets
from millrace.store.protocol import Store

logger = logging.getLogger("millrace.spark")
FIRST_LOOK, SLOWEST_LOOK = 0.05, 2.0  # seconds between two attempts
STORE_TRIES = 6


class SinkCounts(msgspec.Struct):
    queued: int = 0  # enqueued by this write
    duplicates: int = 0  # rows that already had a job
    differing: int = 0  # duplicates with another payload

    def add(self, answers: Sequence[Enqueued]) -> None:
        queued = sum(answer.status == "queued" for answer in answers)
        self.queued += queued
        self.duplicates += len(answers) - queued
        self.differing += sum(answer.payload_differs for answer in answers) if queued < len(answers) else 0


class ChunkEnqueuer:
    """Enqueues chunks in a thread, one at a time. Leaving the `with` block waits for the last chunk."""

    def __init__(self, found: OpenedStore, targets: Targets, patience: float) -> None:
        self.counts = SinkCounts()
        self._found = found
        self._targets = targets
        self._patience = patience
        self._pools_checked: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "millrace-put")
        self._flying: Future[list[Enqueued]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.land()
        finally:
            self._thread.shutdown()

    def put(self, specs: Sequence[Spec]) -> None:
        self.land()
        if specs:
            self._flying = self._thread.submit(self._found.run, self._enqueue(specs))

    def land(self) -> None:
        """Wait until the current chunk is enqueued, and count its jobs. Raises the error if the enqueue failed."""
        if self._flying is not None:
            flying, self._flying = self._flying, None
            self.counts.add(flying.result())

    async def _enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        store = self._found.store
        if self._targets.by_app:
            for name in {spec.task for spec in specs} - self._pools_checked:
                await self._targets.check_pool(name, store)
                self._pools_checked.add(name)
        return await enqueue_in_parts(store, specs, self._patience)


async def enqueue_in_parts(store: Store, specs: Sequence[Spec], patience: float) -> list[Enqueued]:
    """Enqueue all specs and return the store's answers. If the queue has no room for all of them, enqueue them in
    parts.

    Raises QueueFull if there was no room for a single job for `patience` seconds. The free room is not queried first,
    because another producer could use it in the meantime.
    """
    clock = asyncio.get_running_loop().time
    answers: list[Enqueued] = []
    step, look, since = len(specs), FIRST_LOOK, clock()
    while len(answers) < len(specs):
        try:
            part = specs[len(answers) : len(answers) + step] if len(specs) > step else specs
            answers += await _enqueued_with_retries(store, part)
            step, look, since = min(2 * step, len(specs)), FIRST_LOOK, clock()
        except QueueFull as full:
            if step > 1 and not isinstance(full, DeadLettersFull):
                step //= 2
                continue
            left = since + patience - clock()
            if left <= 0:
                full.add_note(f"The write waited {patience:g} s for room (option queueFullTimeout).")
                raise
            await asyncio.sleep(
                min(left, look * random.uniform(0.8, 1.2))
            )  # jitter, so that tasks do not retry in step
            look = min(look * 1.5, SLOWEST_LOOK)
    return answers


async def _enqueued_with_retries(store: Store, specs: Sequence[Spec]) -> list[Enqueued]:
    look = FIRST_LOOK
    for left in reversed(range(STORE_TRIES)):
        try:
            return await store.enqueue(specs)
        except StoreError as error:
            if not left:
                error.add_note(f"The write asked {STORE_TRIES} times.")
                raise
            logger.warning("the store did not accept %d jobs, retrying: %s", len(specs), error)
        await asyncio.sleep(look * random.uniform(0.8, 1.2))
        look *= 2
    raise AssertionError("unreachable")
