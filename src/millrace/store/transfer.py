"""Moves everything that a store keeps to another store.

Every moment, a job can be claimed in one store at most:

    draining   source: all queues are paused, running jobs end; target: closed
    frozen     both stores are closed; the source no longer changes, and is copied and compared
    moved      source: closed for good; then the target is opened

Both stores contain the stage of the move (`StoreSettings.closed`), and the target how far it has imported. So after a
crash at any point, the same call continues. Instants are shifted by the difference between the clocks of the stores.
docs/decisions/0033-moving.md explains why the source is frozen.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from itertools import zip_longest
from typing import cast

import msgspec

from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.export import Exported, ExportedHold, ExportPage, comparable, identity, shifted
from millrace.domain.outcome import Failure, Lost
from millrace.domain.request import QueueCounts, Reclaim
from millrace.domain.rules.decide import decide
from millrace.domain.settings import Closing, QueueSettings, StoreSettings
from millrace.store.protocol import Store, Sweeping

BATCH = 500  # records per page
SAME_CLOCK = 1_000  # milliseconds; clocks that differ by less count as equal
LOOK = 0.5  # seconds between two checks for running jobs
COPIED = "end"  # the cursor of a target that has everything
_LOST = Failure("WorkerLost", "the worker's lease expired before the store was moved")

Progress = Callable[[str, int, int], None]


class TransferReport(msgspec.Struct, frozen=True):
    """The result of a move. `records` counts jobs, remembered deleted jobs and keys; `imported` those copied now."""

    queues: tuple[QueueCounts, ...]
    jobs: int
    schedules: int
    records: int = 0
    imported: int = 0


class StillRunning(StoreError):
    """Jobs of the source did not end in time. Its queues were resumed."""

    def __init__(self, running: int, waited: float) -> None:
        super().__init__(
            f"{running} running jobs have not ended within {waited:g} s. Nothing was moved, and the source is open "
            "again. Wait for them, cancel them, or pass a longer --wait."
        )


class StoreTransfer:
    """One move. `wait` is how many seconds running jobs may take to end. `progress` is called with what is done, and
    the numbers of records done and in all.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        wait: float = 300.0,
        batch: int = BATCH,
        progress: Progress = lambda what, done, total: None,
    ) -> None:
        self._source = source
        self._target = target
        self._wait = wait
        self._batch = batch
        self._progress = progress
        self._imported = 0

    async def plan(self) -> TransferReport:
        """Return what a move would copy. Raise InvalidInput if it would be refused. Nothing is written."""
        mine, theirs = await closed(self._source), await closed(self._target)
        self._check(mine, theirs)
        if theirs is None and not self._is_done(mine):
            await self._refuse_jobs()
        return await self._report()

    async def run(self) -> TransferReport:
        """Move everything, or continue an interrupted move. A finished move is left as it is."""
        mine, theirs = await closed(self._source), await closed(self._target)
        self._check(mine, theirs)
        if mine is None or mine.stage != "moved":
            mine = await self._begin(mine, theirs)
            begun = theirs is not None and theirs.cursor is not None
            if mine.stage == "draining" or (not begun and not await self._stands_still(mine)):
                mine = await self._freeze(msgspec.structs.replace(mine, stage="draining"))
            records = await self._copy(mine)
            await self._compare(mine, records)
            await self._close(self._source, msgspec.structs.replace(mine, stage="moved"))
        if await closed(self._target) is not None:
            await self._close(self._target, None)
        return msgspec.structs.replace(await self._report(), imported=self._imported)

    async def abort(self) -> bool:
        """Open the source again, if the move is not complete. Return False if no move has begun.

        The target stays closed, because it has copies of jobs that can run in the source from now on.
        """
        mine = await closed(self._source)
        if mine is None:
            return False
        if mine.role == "target" or mine.stage == "moved":
            raise InvalidInput(f"{self._source.url}: its jobs are in {mine.peer} now, so the move cannot be aborted")
        await self._reopen(mine)
        return True

    # ── the stages ────────────────────────────────────────────────────────────────────────────

    def _check(self, mine: Closing | None, theirs: Closing | None) -> None:
        """Raise InvalidInput if the stores are the same, or belong to another move."""
        source, target = self._source.url, self._target.url
        if source == target:
            raise InvalidInput(f"both URLs are {source}: a store cannot be moved to itself")
        if mine is not None and mine.role == "target":
            raise InvalidInput(f"{source} is closed: jobs are being moved into it from {mine.peer}. Finish that first.")
        if mine is not None and theirs is not None and mine.move == theirs.move:
            return
        if mine is not None and mine.peer != target:
            done = "were moved" if mine.stage == "moved" else "are being moved"
            raise InvalidInput(
                f"the jobs of {source} {done} to {mine.peer}, not to {target}."
                + ("" if mine.stage == "moved" else " Finish that move, or end it with --abort.")
            )
        if theirs is not None:
            raise InvalidInput(
                f"{target} has what another move has left there (from {theirs.peer}), or was itself moved. Move into "
                "an empty store."
            )

    def _is_done(self, mine: Closing | None) -> bool:
        return mine is not None and mine.stage == "moved" and mine.peer == self._target.url

    async def _begin(self, mine: Closing | None, theirs: Closing | None) -> Closing:
        if theirs is None:
            await self._refuse_jobs()
        if mine is None:
            paused = [name for name in await self._queues() if (await self._settings(name)).paused]
            mine = Closing(uuid.uuid4().hex, "source", "draining", self._target.url, tuple(paused))
            await self._close(self._source, mine)
        if theirs is None:
            shift = await self._target.now() - await self._source.now()
            shift = 0 if abs(shift) < SAME_CLOCK else shift
            await self._close(self._target, Closing(mine.move, "target", "empty", self._source.url, shift=shift))
            try:
                await self._refuse_jobs()
            except InvalidInput:  # enqueued since the first check
                await self._close(self._target, None)
                await self._reopen(mine)
                raise
        return mine

    async def _refuse_jobs(self) -> None:
        found = [counts for counts in await self._target.count() if total(counts)]
        if found:
            jobs = sum(map(total, found))
            raise InvalidInput(
                f"{self._target.url} has {jobs} jobs already (queue {found[0].queue!r}). Move into an empty store."
            )

    async def _freeze(self, mine: Closing) -> Closing:
        """Pause all queues, wait until no job runs, and close the source."""
        frozen = msgspec.structs.replace(mine, stage="frozen")
        while True:
            await self._close(self._source, mine)
            await self._drain(mine)
            await self._repair()
            await self._close(self._source, frozen)
            if await self._stands_still(frozen):
                return frozen

    async def _drain(self, mine: Closing) -> None:
        """Pause all queues and wait until no job runs. Open both stores again and raise StillRunning if one runs on."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait
        while True:
            for name in await self._queues():
                if not (await self._settings(name)).paused:
                    await self._source.control("queue", name, {"paused": True})
            running = await self._running()
            self._progress("waiting for running jobs", 0, running)
            if running == 0:
                return
            if loop.time() > deadline:
                await self._close(self._target, None)
                await self._reopen(mine)
                raise StillRunning(running, self._wait)
            await self._reap()
            await asyncio.sleep(LOOK)

    async def _repair(self) -> None:
        """Have a store without a server complete what crashes have left, such as children of a job that has ended."""
        if isinstance(self._source, Sweeping):
            await asyncio.sleep(self._source.closes_after)  # a sweep leaves alone what may still be in progress
            while (await self._source.sweep(full=True)).more:
                self._progress("checking the source", 0, 0)

    async def _stands_still(self, frozen: Closing) -> bool:
        """Wait until changes that were decided before the source was frozen are written. Return whether no job runs: a
        job of a new queue may have been claimed meanwhile.
        """
        if self._source.closes_after:
            await asyncio.sleep(self._source.closes_after)
            await self._close(self._source, frozen)  # queues that were used first meanwhile
        return await self._running() == 0

    async def _reap(self) -> None:
        """Settle jobs whose worker is gone, as the reaper of a worker does. Perhaps no worker runs any more."""
        jobs = await self._source.reclaim(Reclaim("millrace-move"))
        changes = [(job.lease, decide(job, Lost(_LOST, bool(job.lost_worker)), random.random())) for job in jobs]
        if changes:
            await self._source.settle(changes)

    async def _copy(self, mine: Closing) -> int:
        """Import page by page, and read the next page meanwhile. Return the number of records of the source."""
        theirs = await closed(self._target)
        assert theirs is not None
        expected = sum(map(total, await self._source.count()))
        done, cursor = 0, theirs.cursor
        reading = self._read(cursor) if cursor != COPIED else None
        while reading is not None:
            page = await reading
            reading = None if page.cursor is None else self._read(page.cursor)
            self._imported += await self._target.import_records(
                [shifted(record, theirs.shift) for record in page.records]
            )
            done += len(page.records)
            noted = msgspec.structs.replace(theirs, stage="importing", cursor=page.cursor or COPIED)
            await self._close(self._target, noted)
            self._progress("copying", done, max(done, expected))
        return done

    def _read(self, cursor: str | None) -> asyncio.Task[ExportPage]:
        return asyncio.create_task(self._source.export(cursor, self._batch))

    async def _compare(self, mine: Closing, expected: int) -> None:
        """Raise StoreError if the target does not have exactly what the source has."""
        theirs = await closed(self._target)
        assert theirs is not None
        done = 0
        keys: list[dict[tuple[str, ...], Exported]] = [{}, {}]  # their order is not defined
        ours, copies = _records(self._source, self._batch), _records(self._target, self._batch)
        async for one, other in _pairs(ours, copies):
            wanted = None if one is None else comparable(shifted(one, theirs.shift))
            found = None if other is None else comparable(other)
            done += 1
            self._progress("comparing", done, max(done, expected))
            if wanted == found:
                continue
            if isinstance(wanted, ExportedHold | None) and isinstance(found, ExportedHold | None):
                for side, record in zip(keys, (wanted, found), strict=True):
                    if record is not None:
                        side[identity(record)] = record
                continue
            raise self._difference(wanted, found)
        if keys[0] != keys[1]:
            raise self._difference(*(next(iter(side.values()), None) for side in keys))

    def _difference(self, wanted: Exported | None, found: Exported | None) -> StoreError:
        record = wanted or found
        what = "" if record is None else " ".join(identity(record))
        return StoreError(
            f"the copy differs from the source at {what or 'its end'}: {_differing(wanted, found)}. The target stays "
            "closed, and no job is lost: run the command again, or end the move with --abort."
        )

    # ── both stores ───────────────────────────────────────────────────────────────────────────

    @staticmethod
    async def _close(store: Store, value: Closing | None) -> None:
        await store.control("store", "", {"closed": value})

    async def _reopen(self, mine: Closing) -> None:
        await self._close(self._source, msgspec.structs.replace(mine, stage="draining"))
        for name in await self._queues():
            if name not in mine.paused and (await self._settings(name)).paused:
                await self._source.control("queue", name, {"paused": False})
        await self._close(self._source, None)

    async def _queues(self) -> list[str]:
        return [counts.queue for counts in await self._source.count()]

    async def _settings(self, queue: str) -> QueueSettings:
        return cast("QueueSettings", await self._source.control("queue", queue, {}))

    async def _running(self) -> int:
        return sum(counts.running for counts in await self._source.count())

    async def _report(self) -> TransferReport:
        queues = tuple(await self._source.count())
        schedules = await self._source.schedules()
        return TransferReport(queues, sum(map(total, queues)), len(schedules))


async def closed(store: Store) -> Closing | None:
    """Return why a store is closed; None if it is open."""
    return cast("StoreSettings", await store.control("store", "", {})).closed


def total(counts: QueueCounts) -> int:
    """Return the number of jobs of a queue."""
    return counts.waiting + counts.running + counts.completed + counts.dead + counts.cancelled


async def _records(store: Store, batch: int) -> AsyncIterator[Exported]:
    cursor: str | None = None
    while True:
        page = await store.export(cursor, batch)
        for record in page.records:
            yield record
        if page.cursor is None:
            return
        cursor = page.cursor


async def _pairs(
    ours: AsyncIterator[Exported], copies: AsyncIterator[Exported]
) -> AsyncIterator[tuple[Exported | None, Exported | None]]:
    while True:
        pair = await anext(ours, None), await anext(copies, None)
        if pair == (None, None):
            return
        yield pair


def _differing(wanted: object, found: object, path: str = "") -> str:
    """Return the first field that differs, with both values."""
    if isinstance(wanted, msgspec.Struct) and type(wanted) is type(found):
        for name in wanted.__struct_fields__:
            one, other = getattr(wanted, name), getattr(found, name)
            if one != other:
                return _differing(one, other, f"{path}.{name}".lstrip("."))
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        for number, (one, other) in enumerate(zip_longest(wanted, found)):
            if one != other:
                return _differing(one, other, f"{path}[{number}]")
    return f"{path or 'the record'} is {found!r}, not {wanted!r}"
