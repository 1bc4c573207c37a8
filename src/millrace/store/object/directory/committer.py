"""Changes to a directory, many at a time.

A durable write must be flushed before it is answered, and a disk does many flushes at once in the time of one. So what
waits while a batch is under way becomes the next batch: files are written and flushed side by side, each shard's lock
is taken once, and each folder is flushed once. A lock is held to compare and rename; where a swap goes behind what is
there, also while it is flushed, because its place in the file is taken.

What need not be flushed takes microseconds, less than the way to another thread and back. It is done at once where it
was asked for, unless it would have to wait for somebody.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import TypeAlias

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.directory.locks import Locks, shard_of
from millrace.store.object.directory.shelf import Appended, Drop, Inspect, Prepared, Shelf
from millrace.store.object.driver import Answer, Done, Refused, Write

Change: TypeAlias = Write | Drop | Inspect
Outcome: TypeAlias = Answer | BaseException | None  # None where there is nothing to answer
FEW = 64  # changes that are carried out where they were asked for …
SMALL = 256 << 10  # … if they are no more bytes than that


class _Call(msgspec.Struct):
    changes: Sequence[Change]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Outcome]]


class _Step(msgspec.Struct):
    """One change inside a batch."""

    change: Change
    prepared: Prepared | None = None
    appended: Appended | None = None
    outcome: Outcome = None
    waits: bool = True  # False: in the event loop, where nothing may be flushed
    later: bool = False


class Committer:
    """One thread that carries out changes. `ring` is told the keys that were written, after each batch."""

    def __init__(self, shelf: Shelf, flushers: Executor, ring: Callable[[Iterable[str]], None], name: str) -> None:
        self._shelf = shelf
        self._flushers = flushers
        self._ring = ring
        self._locks = Locks(f"{shelf.home.own}/locks")
        self._waiting: list[_Call] = []
        self._signal = threading.Condition()
        self._turn = threading.Lock()  # one batch at a time: the locks of files are for one thread
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        call = _Call(changes, loop, loop.create_future())
        with self._signal:
            if self._closing:
                raise StoreError(f"{self._shelf.home.root} was closed")
            self._waiting.append(call)
            self._signal.notify()
        return await call.future

    async def commit_here(self, changes: Sequence[Change]) -> list[Outcome]:
        """For changes that need not be flushed."""
        await asyncio.sleep(0)  # whoever asks again and again must not keep the loop to itself
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
        """Carry out what waits, then end."""
        with self._signal:
            self._closing = True
            self._signal.notify()
        self._thread.join()
        with self._turn:  # somebody may be at it in an event loop
            self._locks.close()

    def abandon(self) -> None:
        self._locks.close()

    def _run(self) -> None:
        while True:
            with self._signal:
                while not self._waiting and not self._closing:
                    self._signal.wait()
                calls, self._waiting = self._waiting, []
            if not calls:
                return
            steps = [[_Step(change) for change in call.changes] for call in calls]
            try:
                with self._turn:
                    self._carry_out(list(itertools.chain.from_iterable(steps)))
            except BaseException as error:  # whatever it was, nobody may wait for ever
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
                continue  # that loop was closed; its callers are gone with it

    def _carry_out(self, every: list[_Step], *, waits: bool = True) -> list[_Step]:
        """Unless it `waits`, those whose lock somebody else has are left; they are the answer."""
        steps = [step for step in every if not self._shelf.is_marker(step.change)]
        marks = [step for step in every if self._shelf.is_marker(step.change)] if len(steps) < len(every) else []
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
        changed += [step for step in steps if step.prepared is None and isinstance(step.outcome, Done)]
        changed += [step for step in marks if isinstance(step.outcome, Done)]
        if changed:
            self._ring(step.change.key for step in changed)
        return later

    def _flush_while_locked(self, shards: dict[int, list[_Step]]) -> None:
        """Durable swaps that go behind what is there, with whatever else is of their shards, which is taken out: those
        whose locks are free side by side, then the others one at a time, so that who waits holds up nobody."""
        if not self._shelf.flushes:
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
            try:
                with self._locks.held(shard):
                    self._apply_all(members)
                    self._land(members)
            except (StoreError, OSError) as error:
                for step in members:
                    step.outcome = step.outcome or error

    def _must_flush(self, step: _Step) -> bool:
        return isinstance(step.change, Write) and step.change.durable and self._shelf.is_appended(step.change)

    def _land(self, steps: list[_Step]) -> None:
        steps = [step for step in steps if step.appended is not None and step.outcome is None]
        many = self._flushers.map if len(steps) > 1 else map
        for _ in many(self._land_one, steps):
            pass

    def _land_one(self, step: _Step) -> None:
        appended = step.appended
        assert appended is not None
        try:
            os.fsync(appended.file)
            step.outcome = self._shelf.land(appended)
        except OSError as error:
            self._shelf.take_back(appended)
            step.outcome = error
        finally:
            os.close(appended.file)

    def _apply_locked(self, shard: int, members: list[_Step]) -> None:
        try:
            with self._locks.held(shard):
                self._apply_all(members)
        except (StoreError, OSError) as error:
            for step in members:
                step.outcome = step.outcome or error

    def _apply_all(self, steps: list[_Step]) -> None:
        """Under their locks. Of swaps of one object within a batch the first wins, though nobody sees it yet."""
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
        """Write the files; those that must be durable side by side."""
        writes = [step for step in steps if isinstance(step.change, Write) and not self._shelf.is_appended(step.change)]
        slow = [step for step in writes if isinstance(step.change, Write) and self._shelf.must_flush(step.change)]
        if len(slow) > 1:
            for _ in self._flushers.map(self._prepare_one, slow):
                pass
        for step in writes:
            if step.prepared is None and step.outcome is None:
                self._prepare_one(step)

    def _prepare_one(self, step: _Step, *, next_file: bool = False) -> None:
        assert isinstance(step.change, Write)
        try:
            made = self._shelf.prepare(step.change, next_file=next_file)
        except OSError as error:
            step.outcome = error
            return
        if isinstance(made, Prepared):
            step.prepared = made
        else:
            step.outcome = made

    def _apply_marker(self, step: _Step) -> Answer | None:
        if isinstance(step.change, Write):
            return self._shelf.mark(step.change.key)
        self._shelf.unmark(step.change.key)
        return None

    def _apply(self, step: _Step) -> Outcome:
        match step.change:
            case Drop(key, tag):
                return self._shelf.drop(key, tag)
            case Inspect(key):
                self._shelf.inspect(key)
            case Write() if step.prepared is None:
                return self._append(step)
            case Write():
                return self._shelf.place(step.prepared)
        return None

    def _append(self, step: _Step) -> Outcome:
        assert isinstance(step.change, Write)
        answer = self._shelf.append(step.change)
        if isinstance(answer, Appended):
            step.appended = answer
            return None
        if answer is None and self._shelf.flushes and not step.waits:
            step.later = True  # a new file is flushed, and not here
            return None
        if answer is None:  # that file is long enough
            self._prepare_one(step, next_file=True)
            return self._shelf.place(step.prepared) if step.prepared is not None else step.outcome
        return answer

    def _discard(self, steps: list[_Step]) -> None:
        for step in steps:
            if step.prepared is not None and not step.prepared.landed:
                self._shelf.discard(step.prepared)

    def _flush_folders(self, steps: list[_Step]) -> None:
        """A name that was not flushed is not durable, and must not be answered as if it were."""
        folders: dict[str, list[_Step]] = {}
        for step in steps:
            assert step.prepared is not None
            for folder in step.prepared.folders:
                folders.setdefault(folder, []).append(step)
        if len(folders) == 1:
            errors = [self._flush_folder(folder) for folder in folders]
        else:
            errors = list(self._flushers.map(self._flush_folder, folders))
        for members, error in zip(folders.values(), errors, strict=True):
            if error is not None:
                for step in members:
                    step.outcome = error

    def _flush_folder(self, folder: str) -> OSError | None:
        try:
            self._shelf.flush(folder)
        except OSError as error:
            return error
        return None


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
