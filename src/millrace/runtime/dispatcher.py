"""The dispatcher: one loop that keeps the slots full.

Fill the free slots with one claim, and rest when there is nothing to claim. While every slot is taken it waits for
one; whatever ends in the same turn of the event loop is refilled by the same claim. With a slot free and nothing
to run, it waits for the store's notification, with a poll behind it.

Many slots are filled in two halves where the store works apart. While more waits than was asked for, the next claim is
on its way before the jobs of the last one are started, so that the store works while handlers do, and neither waits
for the other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from millrace.domain.change import Change
from millrace.domain.decide import decide
from millrace.domain.errors import InvalidInput
from millrace.domain.job import SECOND, Job
from millrace.domain.outcome import Buried, Failure, Outcome, Released
from millrace.domain.request import Claim
from millrace.runtime.hold import Hold, Holds
from millrace.runtime.host import Runnable
from millrace.runtime.polling import Backoff, Chance, Rotation
from millrace.runtime.run import Run, change_after
from millrace.runtime.settler import Settlement, Settler
from millrace.runtime.slots import Slots
from millrace.runtime.tally import Tally
from millrace.store.protocol import Apart, Store

UNSETTLED = 2  # per slot: so many ended runs may wait for their settle before no more is claimed
LEAST_PAUSE = 0.01  # between claims that find nothing, should a store's `wait` return at once for no good reason
STRANGER_DELAY = 5 * SECOND
IN_HALVES = 100  # so many slots, or more, are filled in two claims: with fewer a call costs more than it saves

UnknownTask = Literal["leave", "bury"]
Burst = bool | Callable[[], Awaitable[bool]]  # asked whenever there is nothing to do: is that all?


class _Asked(NamedTuple):
    """A claim under way."""

    jobs: asyncio.Task[list[Job]]
    queues: tuple[str, ...]
    limit: int
    since: float
    held: bool  # was any job held when it was sent? What ends meanwhile may open the next of a line


class Dispatcher:
    def __init__(
        self,
        store: Store,
        worker: str,
        queues: tuple[str, ...],
        tasks: Mapping[str, Runnable],
        slots: Slots,
        settler: Settler,
        holds: Holds,
        tally: Tally,
        *,
        poll: Backoff,
        lease: int | None,
        unknown: UnknownTask,
        chance: Chance,
        max_jobs: int | None,
        idle: Callable[[], None],
        leased: Callable[[float], None],
    ) -> None:
        self._store = store
        self._apart = isinstance(store, Apart)
        self._worker = worker
        self._tasks = tasks
        self._wanted = None if unknown == "bury" else frozenset(tasks)
        self._rotation = Rotation(queues)
        self._slots = slots
        self._settler = settler
        self._holds = holds
        self._tally = tally
        self._poll = poll
        self._trouble = Backoff(poll.least, poll.most, chance)
        self._lease = lease
        self._chance = chance
        self._idle = idle
        self._leased = leased
        self._loop = asyncio.get_running_loop()
        self._asked: _Asked | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._poked = False
        self._waits_for_slot = False
        self._empty = 0  # claims in a row that found nothing
        self._claimed_at = 0.0
        self._left = math.inf if max_jobs is None else max_jobs  # so many more may be claimed
        self.stopping = False
        self._joined = False  # has a run joined a batch since the last look?
        slots.when_joined = self._on_join

    # ── the loop ──────────────────────────────────────────────────────────────────────────────

    async def work(self, *, burst: Burst = False) -> None:
        """Until `stop`, or `max_jobs` are done; with `burst`, until nothing is claimable, running or unsettled."""
        while not self.stopping:
            asked = self._asked
            if asked is None:
                if self._left <= 0:
                    if not self._holds:
                        return
                    await self._wait_for_an_end()
                    continue
                free = self._free()
                if free <= 0:
                    if self._joined:
                        await self._fill_batches(self._rotation.queues)
                    await self._wait_for_slot()
                    continue
                asked = self._ask(self._rotation.next(), min(free, self._most), self._wanted)
            found = await self._fill(asked)
            if found > 0 and self._slots.gatherers:
                await self._fill_batches(asked.queues)
            if found < 0:
                await self._sleep(self._trouble.next())
            elif found < asked.limit and len(asked.queues) == len(self._rotation.queues):
                self._idle()
                if not burst:
                    if found > 0:
                        await self._let_them_begin()
                    await self._rest()
                elif self._holds:
                    await self._wait_for_an_end()
                elif not found and not asked.held:
                    if await self._is_all(burst):
                        return
                    await self._rest()

    def stop(self) -> None:
        self.stopping = True
        for gatherer in self._slots.gatherers.values():
            gatherer.hurry()
        self.poke()

    def poke(self) -> None:
        """Something may be claimable, or it is time to stop: look again."""
        self._poked = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _is_all(self, burst: Burst) -> bool:
        if isinstance(burst, bool):
            return burst
        try:
            return await burst()
        except Exception as error:  # it asks the store, which may be away for a while
            self._tally.error(error)
            return False

    def _free(self) -> int:
        slots = self._slots
        return int(min(slots.free, UNSETTLED * slots.size - self._settler.pending, self._left))

    async def _wait_for_slot(self) -> None:
        self._waits_for_slot = True
        try:
            while self._free() <= 0 and not self.stopping and not self._joined:
                await self._sleep(None)
        finally:
            self._waits_for_slot = False

    async def _wait_for_an_end(self) -> None:
        self._waits_for_slot = True
        try:
            await self._sleep(None)
        finally:
            self._waits_for_slot = False

    async def _let_them_begin(self) -> None:
        """A job that ends at once is settled before this worker tells that it waits: somebody may wait for the job."""
        for _ in range(2):  # turns of the loop: its handler runs in the first, its settle is sent in the second
            await asyncio.sleep(0)

    async def _rest(self) -> None:
        """Until the store says that something may be claimable, or the poll comes round."""
        timeout = self._poll.next()
        if self._poked:
            self._poked = False
            return
        waiting = self._loop.create_task(self._store.wait(self._rotation.queues, self._wanted, timeout))
        waiting.add_done_callback(lambda _: self._wake())
        try:
            await self._sleep(timeout * 2)  # twice: were `wait` to hang, polling goes on
        finally:
            error = await _ended(waiting)
        if error is not None:
            self._tally.error(error)
            await self._sleep(timeout)
        if self._empty > 1:
            too_early = self._claimed_at + LEAST_PAUSE - self._loop.time()
            if too_early > 0:
                await asyncio.sleep(too_early)

    async def _sleep(self, timeout: float | None) -> None:
        """Until poked; a poke that came since the last sleep counts."""
        if not self._poked:
            self._sleeper = self._loop.create_future()
            timer = None if timeout is None else self._loop.call_later(timeout, self._wake)
            try:
                await self._sleeper
            finally:
                self._sleeper = None
                if timer is not None:
                    timer.cancel()
        self._poked = False

    def _on_join(self) -> None:
        """A batch has one slot: those that its jobs were counted for are free again."""
        self._joined = True
        if self._waits_for_slot:
            self._wake()

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    # ── claim and start ───────────────────────────────────────────────────────────────────────

    @property
    def _most(self) -> int:
        """Jobs to ask for at once."""
        size = self._slots.size
        return (size + 1) // 2 if self._apart and size >= IN_HALVES else size

    def _ask(self, queues: tuple[str, ...], limit: int, wanted: frozenset[str] | None) -> _Asked:
        since = self._loop.time()
        request = Claim(queues, self._worker, limit, wanted, self._lease)
        task = self._loop.create_task(self._store.claim(request))
        asked = self._asked = _Asked(task, queues, limit, since, bool(self._holds))
        return asked

    async def _fill(self, asked: _Asked) -> int:
        """Start what a claim brings; answers how many there were, -1 when the store failed."""
        try:
            jobs = await asyncio.shield(asked.jobs)  # a cancelled worker must still learn what it was given
        except InvalidInput:  # a name that no store takes: asking again would not help
            self._asked = None
            raise
        except Exception as error:
            self._asked = None
            self._tally.error(error)
            return -1
        self._asked = None
        self._claimed_at = asked.since
        self._trouble.reset()
        self._tally.claimed(jobs)
        if not jobs:
            self._empty += 1
            return 0
        self._empty = 0
        self._left -= len(jobs)
        self._poll.reset()
        if len(jobs) == asked.limit:
            self._ask_ahead(len(jobs))
        self._take(jobs, asked.since)
        return len(jobs)

    def _ask_ahead(self, about_to_start: int) -> None:
        """There is more, and room for it: a task made now is on its way before those of the jobs just claimed begin."""
        free = self._free() - about_to_start
        if free > 0 and self._most < self._slots.size and not self.stopping and not self._slots.gatherers:
            self._ask(self._rotation.next(), min(free, self._most), self._wanted)

    async def _fill_batches(self, queues: tuple[str, ...]) -> None:
        """A batch that has begun to gather takes one slot, and all that is there for it up to its size."""
        self._joined = False
        await asyncio.sleep(0)  # the runs just started join their batches
        for name, gatherer in self._slots.gatherers.items():
            if (missing := int(min(gatherer.missing, self._left))) > 0 and not self.stopping:
                with gatherer.held():
                    await self._fill(self._ask(queues, missing, frozenset({name})))
                    await asyncio.sleep(0)

    async def last_claim(self, timeout: float) -> None:
        """Give back what a claim brings that was under way when the worker was told to stop."""
        if self._asked is None:
            return
        asked, self._asked = self._asked, None
        claim = asked.jobs
        await asyncio.wait([claim], timeout=timeout)
        if not claim.done():
            claim.cancel()
        elif not claim.cancelled() and claim.exception() is None:
            self._take(claim.result(), asked.since)

    def _take(self, jobs: list[Job], since: float) -> None:
        loop, tasks, holds, slots = self._loop, self._tasks, self._holds, self._slots
        for job in jobs:
            spec = job.spec
            length = (spec.lease if self._lease is None else self._lease) / 1000
            task = tasks.get(spec.task)
            if task is None or self.stopping:
                self._turn_down(job, length, since)
                continue
            run = Run(job, task, length, since, loop.time, slots.grace)
            holds[run.lease.id] = run
            slots.start(run, loop)
            self._leased(length)

    def _turn_down(self, job: Job, length: float, since: float) -> None:
        """A job that is not started: nobody knows its task, or the worker is stopping."""
        outcome: Outcome = Released()
        if job.task not in self._tasks:
            text = f"no task named {job.task!r} is registered here; register it, or let another worker run it"
            outcome = Buried(Failure("UnknownTask", text), "unknown_task")
            if self._wanted is not None:  # it asked for known tasks only, so this is not its job to judge
                outcome = Released(STRANGER_DELAY)
        hold = Hold(job, length, since, since)
        self._holds[hold.lease.id] = hold
        self._submit(hold, decide(job, outcome, self._chance()))

    # ── the end of a run ──────────────────────────────────────────────────────────────────────

    def ended(self, run: Run, outcome: Outcome | None) -> None:
        """A slot is free from here on; its settle goes its own way."""
        if outcome is None:
            del self._holds[run.lease.id]  # no longer ours to extend: the reaper decides
            self._tally.lost(run.job)
        else:
            self._submit(run, change_after(run, outcome, self._chance(), self._loop.time()))
        if self._waits_for_slot:
            self._wake()

    def _submit(self, hold: Hold, change: Change) -> None:
        self._settler.submit(Settlement(hold, change, self._loop.time()))

    def settled(self, batch: Sequence[Settlement]) -> None:
        """A settle may have opened the next of a line, or brought children: look again before the poll."""
        if self._waits_for_slot:
            self._wake()
        for item in batch:
            if item.change.jobs or item.job.lane is not None or item.job.spec.group is not None:
                self.poke()
                return


async def _ended(task: asyncio.Task[None]) -> Exception | None:
    """Its error, if it has ended with one; a task that is still waiting is cancelled."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    error = None if task.cancelled() else task.exception()
    return error if isinstance(error, Exception) else None
