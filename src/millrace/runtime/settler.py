"""The settler: writes how runs ended, many per call.

It has no timer. Nothing under way: settle at once; else join the next batch. So a lone job is not delayed and a
busy worker makes few, large calls. A settle names its lease, so it may be repeated: until the store answers, or
until the lease is so long over that somebody else has the job.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from millrace.domain.change import Change
from millrace.domain.decide import decide
from millrace.domain.errors import QueueError, StoreError
from millrace.domain.job import Job
from millrace.domain.outcome import Failure, Raised
from millrace.domain.request import Receipt
from millrace.runtime.hold import Hold, Holds
from millrace.runtime.polling import Backoff, Chance
from millrace.store.protocol import Consumer

log = logging.getLogger("millrace.worker")

BATCH = 1_000
CALL_TIMEOUT = 30.0  # a call that hangs is given up and asked again: a settle may be repeated
PATIENCE = 2.0  # leases after the end of a run; then its settle is given up


class Settlement:
    """One settle on its way. `hold` stays extended until it is answered."""

    __slots__ = ("change", "give_up_at", "hold", "refused")

    def __init__(self, hold: Hold, change: Change, now: float) -> None:
        self.hold = hold
        self.change = change
        self.give_up_at = hold.extend_until = now + hold.length * PATIENCE
        self.refused = False

    @property
    def job(self) -> Job:
        return self.hold.job


Settled = Callable[[Sequence[Settlement], Sequence[Receipt]], None]


class Settler:
    def __init__(
        self,
        store: Consumer,
        holds: Holds,
        settled: Settled,
        failed: Callable[[Exception], None],
        chance: Chance,
    ) -> None:
        self._store = store
        self._holds = holds
        self._settled = settled
        self._failed = failed
        self._chance = chance
        self._queue: deque[Settlement] = deque()
        self._under_way = 0
        self._batch = BATCH
        self._backoff = Backoff(0.05, 5.0, chance)
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    @property
    def pending(self) -> int:
        return len(self._queue) + self._under_way

    def submit(self, item: Settlement) -> None:
        self._queue.append(item)
        if self._task is None:
            # It begins in the loop's next turn, so whatever else ends in this one is in its first batch.
            self._task = asyncio.get_running_loop().create_task(self._work_off())

    async def room(self, below: int) -> None:
        """Wait until fewer than `below` settles are pending."""
        while self.pending >= below:
            self._moved.clear()
            await self._moved.wait()

    async def flush(self, timeout: float) -> int:
        """Wait until all is settled, so many seconds at most; answers how many are not."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
        return self.pending

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work_off(self) -> None:
        try:
            while self._queue:
                batch = self._take()
                self._under_way = len(batch)
                try:
                    await self._settle(batch)
                finally:
                    self._under_way = 0
                    self._moved.set()
        finally:
            self._task = None

    def _take(self) -> list[Settlement]:
        if len(self._queue) <= self._batch:
            batch = list(self._queue)
            self._queue.clear()
            return batch
        return [self._queue.popleft() for _ in range(self._batch)]

    async def _settle(self, batch: list[Settlement]) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                receipts = await self._store.settle([(item.hold.lease, item.change) for item in batch])
        except Exception as error:
            self._failed(error)
            await self._after_failure(batch, error)
            return
        self._backoff.reset()
        self._batch = min(BATCH, self._batch * 2)
        self._answer(batch, receipts)

    async def _after_failure(self, batch: list[Settlement], error: Exception) -> None:
        """Try again in halves and from the back, so that one change which cannot be written stops no other."""
        refused = isinstance(error, QueueError) and not isinstance(error, StoreError)
        self._batch = max(1, len(batch) // 2)
        now = asyncio.get_running_loop().time()
        if refused and len(batch) == 1:
            self._replace(batch[0], error, now)
        late = [item for item in batch if item.give_up_at <= now]
        self._queue.extend(item for item in batch if item.give_up_at > now)
        if late:
            log.error("gave up settling %d jobs after: %s; they will run again", len(late), error)
            self._answer(late, [Receipt.LOST] * len(late))
        if not refused:
            self._under_way = 0
            await asyncio.sleep(self._backoff.next())

    def _replace(self, item: Settlement, error: Exception, now: float) -> None:
        """The store will never write this change (a child it carries is not acceptable): the run has failed."""
        if item.refused:
            item.give_up_at = now
            return
        item.refused = True
        item.change = decide(item.job, Raised(Failure.from_exception(error)), self._chance())

    def _answer(self, batch: list[Settlement], receipts: Sequence[Receipt]) -> None:
        holds = self._holds
        for item in batch:
            holds.pop(item.hold.lease.id, None)
        self._settled(batch, receipts)
