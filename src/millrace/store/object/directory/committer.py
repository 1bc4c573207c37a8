"""Commits changes to a directory in commit batches: many changes are flushed to disk together.

A durable write must be flushed before it is confirmed, and a disk flushes many files in the time of one. So all changes
that arrive during a commit batch form the next one. Files are written and flushed concurrently, each shard's lock is
taken once, and each folder is flushed once. A lock is held while objects are compared and renamed. For a swap that
appends to a file, the lock is also held during the flush, because the next append must follow it in the file.

A change that need not be flushed takes microseconds, less than a switch to another thread. So it is made at once in the
calling thread, unless it would have to wait for a lock.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import TypeAlias, TypeVar

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.directory.locks import Locks, shard_of
from millrace.store.object.directory.object_files import Appended, Drop, Inspect, ObjectFiles, Prepared
from millrace.store.object.driver import Answer, Refused, Write, WriteReply

T = TypeVar("T")
Change: TypeAlias = Write | Drop | Inspect
Outcome: TypeAlias = Answer | BaseException | None  # None: there is no result
FEW = 64  # at most this many changes are made in the calling thread …
SMALL = 256 << 10  # … if they have at most this many bytes
FLUSHERS = 16  # threads; a disk flushes many files in the time of one


class _Call(msgspec.Struct):
    changes: Sequence[Change]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Outcome]]


class _Step(msgspec.Struct):
    """One change of a commit batch, and its progress."""

    change: Change
    prepared: Prepared | None = None
    appended: Appended | None = None
    outcome: Outcome = None
    waits: bool = True  # False: in the event loop, where flushing is not allowed
    later: bool = False


class Committer:
    """A thread that commits changes. After each batch, it calls `signal` with the written keys."""

    def __init__(
        self, object_files: ObjectFiles, flushers: Executor, signal: Callable[[Iterable[str]], None], name: str
    ) -> None:
        self._object_files = object_files
        self._flushers = flushers
        self._signal_changes = signal
        self._locks = Locks(f"{object_files.home.own}/locks")
        self._waiting: list[_Call] = []
        self._condition = threading.Condition()
        self._turn = threading.Lock()  # one batch at a time: file locks belong to one thread
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        call = _Call(changes, loop, loop.create_future())
        with self._condition:
            if self._closing:
                raise StoreError(f"{self._object_files.home.root} was closed")
            self._waiting.append(call)
            self._condition.notify()
        return await call.future

    async def commit_here(self, changes: Sequence[Change]) -> list[Outcome]:
        """Commit changes that need not be flushed, and return their outcomes in order.

        If possible, this is done in the calling thread, otherwise in the committer's thread.
        """
        await asyncio.sleep(0)  # a caller in a loop must not block the event loop
        if len(changes) > FEW or _bytes(changes) > SMALL or self._waiting or self._closing:
            return await self.commit(changes)
        if not self._turn.acquire(blocking=False):
            return await self.commit(changes)
        try:
            steps = [_Step(change, waits=False) for change in changes]
            later = self._carry_out(steps, waits=False)
        finally:
            self._turn.release()
        if later:
            for step, outcome in zip(later, await self.commit([step.change for step in later]), strict=True):
                step.outcome = outcome
        return [step.outcome for step in steps]

    def close(self) -> None:
        """Commit the queued changes, then stop the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()
        with self._turn:  # an event loop may be committing
            self._locks.close()

    def abandon(self) -> None:
        self._locks.close()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._closing:
                    self._condition.wait()
                calls, self._waiting = self._waiting, []
            if not calls:
                return
            steps = [[_Step(change) for change in call.changes] for call in calls]
            try:
                with self._turn:
                    self._carry_out(list(itertools.chain.from_iterable(steps)))
            except BaseException as error:  # every waiter must get an answer
                for step in itertools.chain.from_iterable(steps):
                    step.outcome = error
            self._answer(calls, steps)

    def _answer(self, calls: list[_Call], steps: list[list[_Step]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[list[Outcome]], list[Outcome]]]] = {}
        for call, done in zip(calls, steps, strict=True):
            by_loop.setdefault(call.loop, []).append((call.future, [step.outcome for step in done]))
        for loop, answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, answers)
            except RuntimeError:
                continue  # that loop was closed, and its callers with it

    def _carry_out(self, every: list[_Step], *, waits: bool = True) -> list[_Step]:
        """Make the changes of a commit batch.

        With `waits=False`, skip changes that would have to wait for a lock or a flush, and return them.
        """
        steps = [step for step in every if not self._object_files.is_marker(step.change)]
        marks = [step for step in every if self._object_files.is_marker(step.change)] if len(steps) < len(every) else []
        for step in marks:
            step.outcome = _tried(self._apply_marker, step)
        self._prepare(steps)
        shards: dict[int, list[_Step]] = {}
        for step in steps:
            if step.outcome is None:
                shards.setdefault(shard_of(step.change.key), []).append(step)
        later: list[_Step] = []
        if waits:
            self._flush_while_locked(shards)
            for shard, members in shards.items():
                self._apply_locked(shard, members)
        else:
            for shard, members in shards.items():
                try:
                    with self._locks.held_if_free(shard) as is_held:
                        if is_held:
                            self._apply_all(members)
                            later += [step for step in members if step.later]
                        else:
                            later += members
                except OSError as error:
                    for step in members:
                        step.outcome = step.outcome or error
        self._discard(steps)
        changed = [step for step in steps if step.prepared is not None and step.prepared.landed]
        self._flush_folders([step for step in changed if step.prepared is not None and step.prepared.durable])
        changed += [step for step in steps if step.prepared is None and isinstance(step.outcome, WriteReply)]
        changed += [step for step in marks if isinstance(step.outcome, WriteReply)]
        if changed:
            self._signal_changes(step.change.key for step in changed)
        return later

    def _flush_while_locked(self, shards: dict[int, list[_Step]]) -> None:
        """Apply all changes of the shards that have a durable append, and remove these shards from `shards`.

        Shards whose lock is free are processed together and flushed concurrently. The other shards follow one at a
        time, so that waiting for one lock delays no free shard.
        """
        if not self._object_files.flushes:
            return
        mine = [shard for shard, members in shards.items() if any(map(self._must_flush, members))]
        if not mine:
            return
        taken = {shard: shards.pop(shard) for shard in mine}
        try:
            with ExitStack() as stack:
                free = [shard for shard in mine if stack.enter_context(self._locks.held_if_free(shard))]
                members = list(itertools.chain.from_iterable(taken.pop(shard) for shard in free))
                self._apply_all(members)
                self._land(members)
        except OSError as error:
            for step in itertools.chain.from_iterable(taken.values()):
                step.outcome = step.outcome or error
            return
        for shard, members in taken.items():
            self._apply_locked(shard, members)

    def _must_flush(self, step: _Step) -> bool:
        return isinstance(step.change, Write) and step.change.durable and self._object_files.is_appended(step.change)

    def _land(self, steps: list[_Step]) -> None:
        steps = [step for step in steps if step.appended is not None and step.outcome is None]
        self._concurrently(self._land_one, steps)

    def _land_one(self, step: _Step) -> None:
        appended = step.appended
        assert appended is not None
        try:
            os.fsync(appended.file)
            step.outcome = self._object_files.land(appended)
        except OSError as error:
            self._object_files.take_back(appended)
            step.outcome = error
        finally:
            os.close(appended.file)

    def _apply_locked(self, shard: int, members: list[_Step]) -> None:
        try:
            with self._locks.held(shard):
                self._apply_all(members)
                self._land(members)
        except (StoreError, OSError) as error:
            for step in members:
                step.outcome = step.outcome or error

    def _apply_all(self, steps: list[_Step]) -> None:
        """Make these changes. The caller holds the locks of their shards.

        If a commit batch swaps one object several times, the first swap succeeds and the others are refused, although
        the first is not visible yet.
        """
        taken: set[str] = set()
        for step in steps:
            if step.change.key in taken:
                if isinstance(step.change, Write) and isinstance(step.change.expect, str):
                    step.outcome = Refused()
                    continue
                self._land([one for one in steps if one.change.key == step.change.key])
                taken.discard(step.change.key)
            step.outcome = _tried(self._apply, step)
            if step.appended is not None:
                taken.add(step.change.key)

    def _prepare(self, steps: list[_Step]) -> None:
        """Write the temporary files of writes that do not append. Those that must be flushed are written
        concurrently.
        """
        writes = [
            step for step in steps if isinstance(step.change, Write) and not self._object_files.is_appended(step.change)
        ]
        slow = [
            step for step in writes if isinstance(step.change, Write) and self._object_files.must_flush(step.change)
        ]
        if len(slow) > 1:
            self._concurrently(self._prepare_one, slow)
        for step in writes:
            if step.prepared is None and step.outcome is None:
                self._prepare_one(step)

    def _prepare_one(self, step: _Step, *, next_file: bool = False) -> None:
        assert isinstance(step.change, Write)
        try:
            made = self._object_files.prepare(step.change, next_file=next_file)
        except OSError as error:
            step.outcome = error
            return
        if isinstance(made, Prepared):
            step.prepared = made
        else:
            step.outcome = made

    def _apply_marker(self, step: _Step) -> Answer | None:
        if isinstance(step.change, Write):
            return self._object_files.mark(step.change.key)
        self._object_files.unmark(step.change.key)
        return None

    def _apply(self, step: _Step) -> Outcome:
        match step.change:
            case Drop(key, tag):
                return self._object_files.drop(key, tag)
            case Inspect(key):
                self._object_files.inspect(key)
            case Write() if step.prepared is None:
                return self._append(step)
            case Write():
                return self._object_files.place(step.prepared)
        return None

    def _append(self, step: _Step) -> Outcome:
        assert isinstance(step.change, Write)
        answer = self._object_files.append(step.change)
        if isinstance(answer, Appended):
            step.appended = answer
            return None
        if answer is None and self._object_files.flushes and not step.waits:
            step.later = True  # a new file must be flushed, which is not done here
            return None
        if answer is None:  # the file has reached its maximum length
            self._prepare_one(step, next_file=True)
            return self._object_files.place(step.prepared) if step.prepared is not None else step.outcome
        return answer

    def _discard(self, steps: list[_Step]) -> None:
        for step in steps:
            if step.prepared is not None and not step.prepared.landed:
                self._object_files.discard(step.prepared)

    def _flush_folders(self, steps: list[_Step]) -> None:
        """Flush the folders of these writes. If that fails, the error is the outcome of the writes: they are not
        durable.
        """
        folders: dict[str, list[_Step]] = {}
        for step in steps:
            assert step.prepared is not None
            for folder in step.prepared.folders:
                folders.setdefault(folder, []).append(step)
        self._concurrently(self._flush_folder, list(folders.items()))

    def _flush_folder(self, folder: tuple[str, list[_Step]]) -> None:
        path, members = folder
        try:
            self._object_files.flush(path)
        except OSError as error:
            for step in members:
                step.outcome = error

    def _concurrently(self, act: Callable[[T], None], items: Sequence[T]) -> None:
        """Call `act` for each item in the flusher threads. Each thread gets a share of the items, because handing over
        one item takes about as long as writing it.
        """
        if len(items) <= 1:
            for item in items:
                act(item)
            return

        def act_on_share(first: int) -> None:
            for item in items[first::FLUSHERS]:
                act(item)

        for _ in self._flushers.map(act_on_share, range(min(FLUSHERS, len(items)))):
            pass


def _bytes(changes: Sequence[Change]) -> int:
    return sum(len(change.body) for change in changes if isinstance(change, Write))


def _tried(apply: Callable[[_Step], Outcome], step: _Step) -> Outcome:
    try:
        return apply(step)
    except OSError as error:
        return error


def _deliver(answers: list[tuple[asyncio.Future[list[Outcome]], list[Outcome]]]) -> None:
    for future, outcomes in answers:
        if not future.done():
            future.set_result(outcomes)
