"""Batches: many jobs handed to one call of a handler, each with its own lease, attempt, outcome and history.

Jobs gather until there are `size` of them or the first has waited `linger` seconds; one whose process or worker has
died before runs alone, so that it takes no others along. A batch takes one slot, however many jobs are in it. A job
that is cancelled, lost or past its timeout leaves the batch alone; the handler itself is stopped once every job in it
has been told to end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from millrace.runtime.answers import answers
from millrace.runtime.hold import Abort
from millrace.runtime.host import Runnable
from millrace.runtime.run import Run
from millrace.runtime.threads import Threads
from millrace.runtime.verdict import Aborted
from millrace.runtime.ways import arguments, raisable, start_in_thread

if TYPE_CHECKING:
    from millrace.runtime.context import Context
    from millrace.runtime.process.child import Child
    from millrace.runtime.process.children import Children


class Batched(Runnable, Protocol):
    """A task whose handler takes many jobs at once."""

    @property
    def size(self) -> int: ...
    @property
    def linger(self) -> float: ...
    @property
    def takes_contexts(self) -> bool: ...
    def item_of(self, job: str, arguments: dict[str, Any]) -> object: ...
    def invoke(self, contexts: list[Context] | None, items: list[Any]) -> Any: ...


class Place(Protocol):
    """What a batch needs of the slots it runs in."""

    threads: Threads
    zombies: int

    def begin(self, run: Run) -> None: ...
    def share(self, by: int) -> None: ...
    def adopt(self, task: asyncio.Task[Any]) -> None: ...


class Gatherer:
    """The way of one batch task in one worker."""

    def __init__(self, task: Batched, place: Place, children: Children | None) -> None:
        self.task = task
        self._place = place
        self._children = children if task.options.process else None
        self._open: _Batch | None = None
        self._held = False
        self._due: _Batch | None = None

    @property
    def missing(self) -> int:
        """How many more jobs the batch that gathers now could take; 0 when none gathers."""
        return 0 if self._open is None else self.task.size - len(self._open.members)

    async def __call__(self, run: Run) -> object:
        item = self.task.item_of(run.job.id, arguments(run))
        run.deadline = run.extend_until = math.inf  # its time begins with the batch
        loop = asyncio.get_running_loop()
        batch = None if run.job.stalls else self._open
        if batch is None:
            batch = _Batch(self.task, self._place, self._children, loop)
        member = batch.join(run, item)
        if run.job.stalls:
            batch.start()  # alone: it may be the one that killed the others' process
        elif len(batch.members) == 1:
            self._open = batch
            loop.call_later(self.task.linger, self._lingered, batch)
        if len(batch.members) >= self.task.size:
            self._start(batch)
        try:
            return await member.end
        finally:
            batch.leave(member)

    @contextmanager
    def held(self) -> Iterator[None]:
        """More jobs are being claimed for the batch that gathers: it does not start without them."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self._due is not None:
                due, self._due = self._due, None
                self._start(due)

    def hurry(self) -> None:
        """Nothing more will come: start with what there is."""
        if self._open is not None:
            self._lingered(self._open)

    def _lingered(self, batch: _Batch) -> None:
        if self._held:
            self._due = batch
        else:
            self._start(batch)

    def _start(self, batch: _Batch) -> None:
        if self._open is batch:
            self._open = None
            batch.start()


class _Member:
    """One job of a batch, as its run sees where it is."""

    def __init__(self, batch: _Batch, run: Run, item: object) -> None:
        self.batch = batch
        self.run = run
        self.item = item
        self.end: asyncio.Future[object] = batch.loop.create_future()
        self.abandoned = False

    def stop(self, why: Abort) -> None:
        if not self.batch.begun:
            self.finish(Aborted(self.run.job.id, why))
        else:
            self.batch.stop_if_unwanted(why)

    def abandon(self) -> bool:
        if self.batch.kill_if_unwanted():
            return True
        self.abandoned = True
        self.batch.abandoned()
        return False

    def finish(self, value: object) -> None:
        if self.end.done():
            return
        if isinstance(value, BaseException):
            self.end.set_exception(raisable(value))
        else:
            self.end.set_result(value)


class _Batch:
    def __init__(self, task: Batched, place: Place, children: Children | None, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.members: list[_Member] = []
        self.begun = False
        self._task = task
        self._place = place
        self._children = children
        self._child: Child | None = None
        self._live = 0
        self._handle: asyncio.Task[Any] | None = None
        self._gave_up_thread = False

    def join(self, run: Run, item: object) -> _Member:
        member = _Member(self, run, item)
        self.members.append(member)
        run.inner = member
        self._place.share(int(self._live > 0))
        self._live += 1
        return member

    def leave(self, member: _Member) -> None:
        self._live -= 1
        self._place.share(-int(self._live > 0))
        if not self.begun and member in self.members:
            self.members.remove(member)
        if not member.abandoned:
            member.run.inner = None

    # ── its one call ──────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.begun = True
        self.members = [member for member in self.members if not member.end.done()]
        if not self.members:
            return
        if self._children is not None:
            runs = [member.run for member in self.members]
            self._handle = self.loop.create_task(self._children.call_many(runs, self._began_in))
            self._handle.add_done_callback(self._handled)
            return
        call = self._call()

        def unless_told() -> object:
            if self._unwanted():  # they had to wait for a thread, and nobody wants them any more
                raise Aborted(self._task.name, "every job of the batch was told to end before it began")
            return call()

        if self._task.is_async:
            self._begin()
            self._handle = self.loop.create_task(_awaited(cast("Callable[[], Awaitable[object]]", call)))
            self._handle.add_done_callback(self._handled)
        elif start_in_thread(self._place.threads, self.loop, unless_told, self._begin, self._ended):
            self._begin()

    def _began_in(self, child: Child) -> None:
        self._child = child

    def _begin(self) -> None:
        for member in self.members:
            self._place.begin(member.run)

    def _call(self) -> Callable[[], object]:
        items = [member.item for member in self.members]
        takes = self._task.takes_contexts
        contexts = [member.run.own_context() for member in self.members] if takes else None
        return lambda: self._task.invoke(contexts, items)

    def _handled(self, handle: asyncio.Task[Any]) -> None:
        if handle.cancelled():
            self._ended(None, asyncio.CancelledError())
        else:
            error = handle.exception()
            self._ended(None if error else handle.result(), error)

    def _ended(self, value: object, error: BaseException | None) -> None:
        """The handler is back: each job has its own end, and an error of the whole is that of each."""
        back = sum(member.abandoned for member in self.members)
        self._place.zombies -= back
        if self._gave_up_thread:
            self._place.threads.gave_up(-1)
        ids = [member.run.job.id for member in self.members]
        ends = [error] * len(ids) if error is not None else answers(self._task.name, ids, value)
        for member, end in zip(self.members, ends, strict=True):
            member.finish(end)

    # ── its end before its time ───────────────────────────────────────────────────────────────

    def stop_if_unwanted(self, why: Abort) -> None:
        if self._handle is None or not self._unwanted():
            return
        if self._child is not None:
            self._child.halt(why)
        else:
            self._handle.cancel(why.value)

    def kill_if_unwanted(self) -> bool:
        """Its process, if it has one and no job in it is wanted any more."""
        if self._child is None or not self._unwanted():
            return False
        self._child.kill()
        return True

    def _unwanted(self) -> bool:
        return all(member.run.why is not None for member in self.members)

    def abandoned(self) -> None:
        """One job goes on without the batch; when all did, its call is given up for lost."""
        if not all(one.abandoned for one in self.members):
            return
        if self._handle is not None:
            self._place.adopt(self._handle)
        elif not self._gave_up_thread:
            self._gave_up_thread = True
            self._place.threads.gave_up()


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        raise raisable(error) from error
