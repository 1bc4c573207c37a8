"""Specs into the store, one chunk after the other, while the next one is being made.

The ids are derived, so a chunk may be asked for again after any error: what is in already is not put in twice.
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
from millrace.spark.open import Opened
from millrace.spark.sink_tasks import Targets
from millrace.store.protocol import Store

logger = logging.getLogger("millrace.spark")
FIRST_LOOK, SLOWEST_LOOK = 0.05, 2.0  # seconds between two tries
STORE_TRIES = 6


class Counts(msgspec.Struct):
    queued: int = 0  # in by this write
    duplicates: int = 0  # an earlier job stood for the row
    differing: int = 0  # of these: it has another payload

    def add(self, answers: Sequence[Enqueued]) -> None:
        queued = sum(answer.status == "queued" for answer in answers)
        self.queued += queued
        self.duplicates += len(answers) - queued
        self.differing += sum(answer.payload_differs for answer in answers) if queued < len(answers) else 0


class Putter:
    """Holds one chunk in flight; used as a context, it waits for the last."""

    def __init__(self, found: Opened, targets: Targets, patience: float) -> None:
        self.counts = Counts()
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
        """Wait for the chunk in flight; its error is raised here."""
        if self._flying is not None:
            flying, self._flying = self._flying, None
            self.counts.add(flying.result())

    async def _enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        store = self._found.store
        if self._targets.by_app:
            for name in {spec.task for spec in specs} - self._pools_checked:
                await self._targets.check_pool(name, store)
                self._pools_checked.add(name)
        return await enqueue_patiently(store, specs, self._patience)


async def enqueue_patiently(store: Store, specs: Sequence[Spec], patience: float) -> list[Enqueued]:
    """All of them, in steps where the queue has no room for all at once.

    `patience` is how many seconds may pass without any room. The enqueue itself is the question, so that nobody is
    promised room which another producer then takes.
    """
    clock = asyncio.get_running_loop().time
    answers: list[Enqueued] = []
    step, look, since = len(specs), FIRST_LOOK, clock()
    while len(answers) < len(specs):
        try:
            part = specs[len(answers) : len(answers) + step] if len(specs) > step else specs
            answers += await _asked_again(store, part)
            step, look, since = min(2 * step, len(specs)), FIRST_LOOK, clock()
        except QueueFull as full:
            if step > 1 and not isinstance(full, DeadLettersFull):
                step //= 2
                continue
            left = since + patience - clock()
            if left <= 0:
                full.add_note(f"The write waited {patience:g} s for room (option queueFullTimeout).")
                raise
            await asyncio.sleep(min(left, look * random.uniform(0.8, 1.2)))  # so that tasks do not ask in step
            look = min(look * 1.5, SLOWEST_LOOK)
    return answers


async def _asked_again(store: Store, specs: Sequence[Spec]) -> list[Enqueued]:
    look = FIRST_LOOK
    for left in reversed(range(STORE_TRIES)):
        try:
            return await store.enqueue(specs)
        except StoreError as error:
            if not left:
                error.add_note(f"The write asked {STORE_TRIES} times.")
                raise
            logger.warning("the store did not take %d jobs, asking again: %s", len(specs), error)
        await asyncio.sleep(look * random.uniform(0.8, 1.2))
        look *= 2
    raise AssertionError("unreachable")
