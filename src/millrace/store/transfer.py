"""Moves everything that a store keeps to another store.

Every moment, a job can be claimed in one store at most:

    draining   source: all queues are paused, running jobs end; target: closed
    frozen     both stores are closed; the source no longer changes, and is copied and compared
    moved      source: closed for good; then the target is opened
    aborting   source: its queues are resumed, and then it is opened; the target stays closed

Both stores contain the stage of the move (`StoreSettings.closed`), and the target how far it has imported. So after a
crash at any point, the same call continues. A stage is changed only if the store still has the stage that this command
has seen last, so a mover stops when another command aborts or finishes the move. Instants are shifted by the difference
between the clocks of the stores.
docs/decisions/0033-moving.md explains why the source is frozen.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.export import Exported, ExportedPast, ExportedStore, ExportPage, comparable, identity, shifted
from millrace.domain.outcome import Failure, Lost
from millrace.domain.request import QueueCounts, Reclaim
from millrace.domain.rules.decide import decide
from millrace.domain.settings import Closing, QueueSettings, StoreSettings
from millrace.store.protocol import Store, Sweeping
from millrace.store.read_access import split_access
from millrace.store.transfer_comparison import compare
from millrace.store.transfer_pages import page_after, records_of

BATCH = 500  # records per import, at most
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
        """Return what a move would copy. Raise InvalidInput if it would be refused.

        Nothing is written, so read access to both stores is enough.
        """
        mine, theirs = await self._stages()
        if theirs is None and (mine is None or mine.stage != "moved"):
            await self._refuse_records()
        return await self._report()

    async def run(self) -> TransferReport:
        """Move everything, or continue an interrupted move. A finished move is left as it is."""
        mine, theirs = await self._stages()
        if mine is None or mine.stage != "moved":
            mine, theirs = await self._begin(mine, theirs)
            if mine.stage == "draining" or (theirs.stage == "empty" and not await self._stands_still(mine)):
                mine = await self._freeze(mine, theirs)
            theirs, copied = await self._copy(theirs)
            await self._compare(theirs, copied)
            await _change(self._source, mine, msgspec.structs.replace(mine, stage="moved"))
        if theirs is not None and theirs.stage != "opened":
            await _change(self._target, theirs, msgspec.structs.replace(theirs, stage="opened", cursor=None))
        return msgspec.structs.replace(await self._report(), imported=self._imported)

    # ── the stages ────────────────────────────────────────────────────────────────────────────

    async def _stages(self) -> tuple[Closing | None, Closing | None]:
        """Return why the stores are closed. Raise InvalidInput if the move is refused."""
        mine, theirs = await closed(self._source), await _stage(self._target)
        if theirs is not None and theirs.stage == "opened" and (mine is None or mine.move != theirs.move):
            theirs = None
        self._check(mine, theirs)
        return mine, theirs

    def _check(self, mine: Closing | None, theirs: Closing | None) -> None:
        """Raise InvalidInput if the stores are the same, or belong to another move."""
        source, target = plain_url(self._source), plain_url(self._target)
        if source == target:
            raise InvalidInput(f"both URLs are {source}: a store cannot be moved to itself")
        if mine is not None and mine.role == "target":
            raise InvalidInput(f"{source} is closed: jobs are being moved into it from {mine.peer}. Finish that first.")
        begun = theirs is not None and theirs.stage != "empty"
        if mine is not None and (mine.stage == "aborting" or (mine.stage == "draining" and begun)):
            raise InvalidInput(f"{source}: an abort was interrupted. Run `millrace move` with --abort again.")
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
        if mine is not None and mine.stage == "moved":
            raise InvalidInput(
                f"the jobs of {source} were moved to {target}, but the store that is there now did not receive them: "
                "it was replaced or emptied. Restore it from a backup. To go back to the jobs as they were when they "
                "were moved, run `millrace move` with --abort --force."
            )

    async def _begin(self, mine: Closing | None, theirs: Closing | None) -> tuple[Closing, Closing]:
        if theirs is None:
            await self._refuse_records()
        if mine is None:
            paused = [name for name in await self._queues() if (await self._settings(name)).paused]
            mine = Closing(uuid.uuid4().hex, "source", "draining", self._target.url, tuple(paused))
            await _change(self._source, await _open_stage(self._source), mine)
        if theirs is None:
            shift = await self._target.now() - await self._source.now()
            shift = 0 if abs(shift) < SAME_CLOCK else shift
            theirs = Closing(mine.move, "target", "empty", self._source.url, shift=shift)
            await _change(self._target, await _open_stage(self._target), theirs)
            try:
                await self._refuse_records()
            except InvalidInput:  # enqueued since the first check
                await _change(self._target, theirs, None)
                await _reopen(self._source, mine)
                raise
        elif theirs.stage == "empty":
            await _change(self._target, theirs, theirs)  # queues of a bucket that a kill has left open
        return mine, theirs

    async def _refuse_records(self) -> None:
        """Raise InvalidInput if the target has anything that a move copies: then the copy would differ."""
        url, found = plain_url(self._target), [counts for counts in await self._target.count() if total(counts)]
        if found:
            jobs = sum(map(total, found))
            raise InvalidInput(f"{url} has {jobs} jobs already (queue {found[0].queue!r}). Move into an empty store.")
        async for record in records_of(self._target, 1):
            if comparable(record) != ExportedStore(StoreSettings()):
                raise InvalidInput(
                    f"{url} is not empty: it has {_described(record)}. Move into a new store. All settings are moved."
                )

    async def _freeze(self, mine: Closing, theirs: Closing) -> Closing:
        """Pause all queues, wait until no job runs, and close the source."""
        draining = msgspec.structs.replace(mine, stage="draining")
        frozen = msgspec.structs.replace(mine, stage="frozen")
        while True:
            await _change(self._source, mine, draining)
            await self._drain(draining, theirs)
            await self._repair()
            await _change(self._source, draining, frozen)
            if await self._stands_still(frozen):
                return frozen
            mine = frozen

    async def _drain(self, mine: Closing, theirs: Closing) -> None:
        """Pause all queues and wait until no job runs. Open both stores again and raise StillRunning if one runs on."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait
        while True:
            await self._pause(mine)
            running = await self._running()
            self._progress("waiting for running jobs", 0, running)
            if running == 0:
                return
            if loop.time() > deadline:
                await _change(self._target, theirs, None)
                await _reopen(self._source, mine)
                raise StillRunning(running, self._wait)
            await self._reap()
            await asyncio.sleep(LOOK)

    async def _pause(self, mine: Closing) -> None:
        """Pause the queues that are not paused. Raise StoreError if another command has changed the stage.

        An abort may resume a queue just before it is paused here. So check the stage again afterwards, and undo.
        """
        await _change(self._source, mine, mine)
        names = [name for name in await self._queues() if not (await self._settings(name)).paused]
        for name in names:
            await self._source.control("queue", name, {"paused": True})
        if names:
            try:
                await _change(self._source, mine, mine)
            except StoreError:
                now = await closed(self._source)
                if now is None or now.stage == "aborting":
                    await _resume(self._source, names)
                raise

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
            await _change(self._source, frozen, frozen)  # queues that were used first meanwhile
        return await self._running() == 0

    async def _reap(self) -> None:
        """Settle jobs whose worker is gone, as the reaper of a worker does. Perhaps no worker runs any more."""
        jobs = await self._source.reclaim(Reclaim("millrace-move"))
        changes = [(job.lease, decide(job, Lost(_LOST, bool(job.lost_worker)), random.random())) for job in jobs]
        if changes:
            await self._source.settle(changes)

    async def _copy(self, theirs: Closing) -> tuple[Closing, int]:
        """Import page by page, and read the next page meanwhile. Return the stage of the target, and the number of
        records that were copied.
        """
        expected = sum(map(total, await self._source.count()))
        done, cursor = 0, theirs.cursor
        reading = self._read(cursor) if cursor != COPIED else None
        try:
            while reading is not None:
                page = await reading
                reading = None if page.cursor is None else self._read(page.cursor)
                theirs = await self._import(page, theirs)
                done += len(page.records)
                self._progress("copying", done, max(done, expected))
        finally:
            if reading is not None:
                reading.cancel()
        return theirs, done

    async def _import(self, page: ExportPage, theirs: Closing) -> Closing:
        """Import a page and note it in the target. Return the target's stage."""
        records = [shifted(record, theirs.shift) for record in page.records]
        self._imported += await self._target.import_records(records, theirs.move)
        theirs = msgspec.structs.replace(theirs, stage="importing")  # the import has noted this
        noted = msgspec.structs.replace(theirs, cursor=page.cursor or COPIED)
        await _change(self._target, theirs, noted)
        return noted

    def _read(self, cursor: str | None) -> asyncio.Task[ExportPage]:
        return asyncio.create_task(page_after(self._source, cursor, self._batch))

    async def _compare(self, theirs: Closing, expected: int) -> None:
        """Raise StoreError if the target does not have exactly what the source has."""

        def compared(done: int) -> None:
            self._progress("comparing", done, max(done, expected))

        await compare(self._source, self._target, theirs.shift, compared)

    # ── the source ────────────────────────────────────────────────────────────────────────────

    async def _queues(self) -> list[str]:
        return [counts.queue for counts in await self._source.count()]

    async def _settings(self, queue: str) -> QueueSettings:
        return await _queue_settings(self._source, queue)

    async def _running(self) -> int:
        return sum(counts.running for counts in await self._source.count())

    async def _report(self) -> TransferReport:
        queues = tuple(await self._source.count())
        schedules = await self._source.schedules()
        return TransferReport(queues, sum(map(total, queues)), len(schedules))


async def abort(source: Store, force: bool = False) -> bool:
    """Open the source of a move again, if the move is not complete. Return False if no move has begun.

    The target is not opened or read: it has copies of jobs that can run in the source from now on. With `force`, open
    even the source of a complete move. Its jobs are as they were when they were moved, so jobs that have run in the
    target since then run again.
    """
    mine = await closed(source)
    if mine is None:
        return False
    if mine.role == "target":
        raise InvalidInput(
            f"{source.url}: jobs are being moved into it from {mine.peer}. To end that move, pass that URL as --from."
        )
    if mine.stage == "moved" and not force:
        raise InvalidInput(
            f"{source.url}: its jobs are in {mine.peer} now, so the move cannot be aborted. If that store is lost, "
            "--force opens this one as it was when the jobs were moved: what has run there since then runs again."
        )
    await _reopen(source, mine)
    return True


async def closed(store: Store) -> Closing | None:
    """Return why a store is closed; None if it is open."""
    why = await _stage(store)
    return None if why is None or why.stage == "opened" else why


async def _stage(store: Store) -> Closing | None:
    """Return what the store knows of a move. A complete target is open and knows from which move."""
    return cast("StoreSettings", await store.control("store", "", {})).closed


async def _open_stage(store: Store) -> Closing | None:
    """Return what an open store knows of an earlier move. Raise StoreError if the store is closed."""
    why = await _stage(store)
    if why is not None and why.stage != "opened":
        raise StoreError(f"{store.url}: another `millrace move` has just begun with this store. Let it end first.")
    return why


async def _change(store: Store, was: Closing | None, value: Closing | None) -> None:
    """Change the stage of a store. Raise StoreError if it is not the one that this command has seen last."""
    await store.control("store", "", {"closed": value, "closed_was": was})


async def _reopen(source: Store, mine: Closing) -> None:
    aborting = msgspec.structs.replace(mine, stage="aborting")
    await _change(source, mine, aborting)
    await _resume(source, [counts.queue for counts in await source.count() if counts.queue not in mine.paused])
    await _change(source, aborting, None)


async def _resume(source: Store, queues: Sequence[str]) -> None:
    for name in queues:
        if (await _queue_settings(source, name)).paused:
            await source.control("queue", name, {"paused": False})


async def _queue_settings(store: Store, queue: str) -> QueueSettings:
    return cast("QueueSettings", await store.control("queue", queue, {}))


def plain_url(store: Store) -> str:
    """Return the URL without `access=read`, by which the stores of a plan differ from those of the move."""
    return split_access(store.url)[0]


def total(counts: QueueCounts) -> int:
    """Return the number of jobs of a queue."""
    return counts.waiting + counts.running + counts.completed + counts.dead + counts.cancelled


def _described(record: Exported) -> str:
    """Return what a record of a store that should be empty shows."""
    match record:
        case ExportedStore(queues=queues, tasks=tasks, schedules=schedules):
            found = [f"settings or totals of queue {queue.name!r}" for queue in queues]
            found += [f"settings of task {task.name!r}" for task in tasks]
            found += [f"schedule {schedule.name!r}" for schedule in schedules]
            return next(iter(found), "settings of the store")
        case ExportedPast(past=past):
            return f"a deleted job {past.id!r}"
        case _:
            return " ".join(identity(record))
