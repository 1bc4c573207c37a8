"""The state of a store in one process: the writer and reader threads, the wake-ups, and the waiters.

A sleeper is an idle worker that waits for jobs. A watcher waits for the end of a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from millrace.domain.errors import StoreError
from millrace.domain.ledger import Ledger
from millrace.domain.tables import Place
from millrace.store.clock import Clock
from millrace.store.forks import register_for_forks
from millrace.store.sqlite.commit_watch import CommitWatch, JoinedStep
from millrace.store.sqlite.connection import Io, OpenedFile
from millrace.store.sqlite.file import check
from millrace.store.sqlite.self_deadlock import bounded, bounded_now, joined_by_caller, may_wait_for_itself
from millrace.store.sqlite.threads import BlockingCall, Call, DirectCall, Reader, set_error, set_futures
from millrace.store.sqlite.wake import Wake, mask_for
from millrace.store.sqlite.writer import Writer
from millrace.store.waiters import Sleeper, Sleepers, Waiters

T = TypeVar("T")

FEW = 8  # steps that an event loop runs on its own thread; more of them, and the writer's thread runs them
AT_ONCE_FOR = 0.001  # seconds of an iteration of an event loop in which one task's small steps run at once
FORK_PATIENCE = 5.0  # seconds for running calls to finish; then the fork proceeds, and the child cannot use the store


class _LoopTurn:
    """The small steps of one iteration of an event loop.

    The first task that passes a small step in an iteration has its steps run at once, for `AT_ONCE_FOR` seconds. All
    other steps wait for the end of the iteration, so that they share a commit, and so that other tasks have their turn.
    No step runs at once if several had to wait for the last iteration: then steps of different tasks come together.
    """

    __slots__ = ("_task", "_until", "calls")

    def __init__(self, at_once: bool) -> None:
        self.calls: list[Call[Any]] = []
        self._task = asyncio.current_task() if at_once else None
        self._until = time.monotonic() + AT_ONCE_FOR if at_once else 0.0

    def may_run_at_once(self) -> bool:
        return (
            not self.calls
            and self._task is not None
            and time.monotonic() < self._until
            and asyncio.current_task() is self._task
        )

    def take(self) -> list[Call[Any]]:
        calls, self.calls = self.calls, []
        return calls


class ProcessState:
    def __init__(self, path: str, io: Io, clock: Clock, durability: str, salt: str | None, *, shared: bool) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.suspended = False  # no connection is open, so a fork inherits none
        self.clock = clock
        self.ready = False  # whether the tables exist, created or found by this process
        self._opening = False
        self.watchers = Waiters()
        self.watching: Counter[str] = Counter()
        self.path = path
        self.io = io
        self._durability = durability
        self._sleepers = Sleepers()
        self._wake: Wake | None = None
        self._seen: int | None = None  # the claimable version of the file when a claim last looked
        self._salt = os.urandom(6).hex() if salt is None else salt
        self._claims = itertools.count(1)
        self.last_claim = 0  # jobs that the last claim has returned
        self._loop_turns: dict[asyncio.AbstractEventLoop, _LoopTurn] = {}
        self._seems_alone = True  # in the last turn of a loop, at most one small step had to wait
        opened = OpenedFile(path)
        self._writer = Writer(
            path,
            io,
            clock,
            opened,
            durability=durability,
            shared=shared,
            watched=self.watching,
            reply_to=self.reply_to,
            ready=self._note_ready,
            announce=self._announce,
            enter=self._open_wake,
            leave=self._close_wake,
        )
        self._reader = Reader(path, io, clock, opened)
        self._commit_watch = CommitWatch(path, io, self._announce)
        register_for_forks(self)

    async def write(self, run: Callable[[Ledger, int], T], *, durable: bool = True, small: bool = False) -> T:
        """Run one step of the ledger in a transaction, and return its result.

        If `durable` is False, the step survives a crash of the process, but a crash of the machine may undo it. A
        `small` step may run on the thread of the event loop; any other step runs on the writer's thread.
        """
        if joined_by_caller.get() is not None and (joined := may_wait_for_itself(self)):  # see `self_deadlock.py`
            return await bounded(joined, self._writer, run)
        loop = asyncio.get_running_loop()
        turn = self._loop_turns.get(loop)
        if small:
            if turn is None:
                turn = self._loop_turns[loop] = _LoopTurn(self._seems_alone)
                loop.call_soon(self._end_loop_turn, loop)
            if turn.may_run_at_once():
                direct = DirectCall(run, durable)
                if self._writer.run_here([direct], on_loop=True):
                    return direct.outcome()
            call = Call(run, durable)
            turn.calls.append(call)
        else:
            call = Call(run, durable)
            self._writer.submit(*([] if turn is None else turn.take()), call)
        return await call.future

    def _end_loop_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the small steps of this event loop that wait, one iteration after the first small step.

        By then, every task that was ready has passed its step, so that many tasks share one commit.
        """
        calls = self._loop_turns.pop(loop).take()
        self._seems_alone = len(calls) <= 1
        calls = [call for call in calls if not call.future.cancelled()]
        try:
            if 0 < len(calls) <= FEW and self._writer.run_here(calls, on_loop=True):
                set_futures(calls)
            elif calls:
                self._writer.submit(*calls)
        except BaseException as error:
            set_error(calls, error)
            set_futures(calls)
            if not isinstance(error, StoreError):
                raise

    def write_on_thread(self) -> None:
        """Pass the small steps of the running event loop to the writer's thread, before the store is closed."""
        turn = self._loop_turns.get(asyncio.get_running_loop())
        if turn is not None:
            self._writer.submit(*turn.take())

    def write_now(self, run: Callable[[Ledger, int], T]) -> T:
        """Like `write`, for a thread without an event loop: block until the step is committed, and return its result.

        If the step need not wait for others, it runs on this thread.
        """
        if joined := may_wait_for_itself(self):
            return bounded_now(joined, self._writer, run)
        direct = DirectCall(run)
        if self._writer.run_here([direct], on_loop=False):
            return direct.outcome()
        call = BlockingCall(run)
        self._writer.submit(call)
        call.ended()
        return call.outcome()

    async def read(self, run: Callable[[Ledger, int], T], *, small: bool = False) -> T:
        """Run one step that only reads, and return its result. A `small` step may run on the event loop's thread."""
        if not self.ready:
            await self.open()
        call = Call(run)
        if small and self._reader.run_here([call], on_loop=True):
            set_futures([call])
            await asyncio.sleep(0)
        else:
            self._reader.submit(call)
        return await call.future

    async def read_durable(self, run: Callable[[Ledger, int], T]) -> T:
        """Like `read`, but flush the log to disk before returning. After the flush, a crash of the machine cannot undo
        what was read.
        """
        if self._durability != "full":
            return await self.read(run)

        def run_and_sync(ledger: Ledger, now: int) -> T:
            answer = run(ledger, now)
            self.io.sync(self.path + "-wal")
            return answer

        return await self.read(run_and_sync)

    async def open(self) -> None:
        """Wait until the writer's thread has created the file and its tables. Do nothing if the store is open."""
        if self.ready and not self.closed:
            return  # nothing to wait for: the caller may hold the lock that the writer would wait for
        call = Call(_nothing)
        self._writer.submit(call)
        await call.future

    def open_now(self) -> None:
        call = BlockingCall(_nothing)
        self._writer.submit(call)
        call.ended()
        call.outcome()

    async def check(self) -> list[str]:
        return await self.read(lambda _ledger, _now: check(self._reader.connection, self.io, self.path, thorough=True))

    def claim_id(self) -> str:
        return f"{self._salt}-{next(self._claims):x}"

    def close(self) -> None:
        self.closed = True
        self._commit_watch.suspend()
        self._reader.close()
        self._writer.close()
        self._close_wake()

    def abandon(self) -> None:
        """In a forked child, mark this state as closed, without closing the handles that belong to the parent.

        Raise StoreError if a connection was open during the fork, because closing SQLite's handles would release locks
        of the parent.
        """
        if self.ready and not self.suspended:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            raise StoreError(
                f"{self.path}: this process was forked while its parent had the database open: in the middle of a "
                "call, or by code that does not run Python's fork handlers. SQLite's locks cannot be inherited. "
                "Close the app before the fork, or start processes by spawn instead."
            )
        self.closed = True

    # ── forks ─────────────────────────────────────────────────────────────────────────────────

    def before_fork(self) -> None:
        """Close all connections before a fork.

        SQLite keeps one table of locks per process. The child inherits that table, but not the locks in it. So a
        connection that the child opens would rely on locks that the child does not hold.
        """
        if self.pid != os.getpid():
            return
        self._commit_watch.suspend()
        self.suspended = self._reader.suspend(FORK_PATIENCE) and self._writer.suspend(FORK_PATIENCE)
        if self.suspended:
            self._close_wake()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child or self.closed:  # a child opens connections of its own at first use
            return
        self.suspended = False
        self._writer.resume()
        self._reader.resume()
        self._commit_watch.resume()

    # ── steps in transactions of callers ──────────────────────────────────────────────────────

    def joined(self, awaited: JoinedStep) -> None:
        """Watch for the commit of the caller's transaction. After the commit, wake the sleepers and watchers for its
        jobs.
        """
        if not self.ready and not self._opening:
            self._opening = True
            self._writer.submit(BlockingCall(_nothing, waits=False))  # it needs the caller's lock
        if any(awaited.news):
            self._commit_watch.expect(awaited)

    # ── on the writer's thread ────────────────────────────────────────────────────────────────

    def _open_wake(self) -> bool:
        self._wake = Wake(self.path, self.io, self._woken, self._ended)
        if self._sleepers:
            self._publish()  # tasks that waited during a fork of this process are listed again
        return self._wake.alone

    def _close_wake(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.close()

    def _note_ready(self) -> None:
        self.ready = True

    def reply_to(self) -> str | None:
        slot = None if self._wake is None else self._wake.slot()
        return None if slot is None else str(slot)

    def _announce(self, opened: Mapping[Place, int], ended: Sequence[str], replies: Sequence[tuple[str, str]]) -> None:
        """Wake sleepers for claimable jobs, and watchers of ended jobs: first in this process, then in others."""
        if opened:
            if self._wake is not None:
                self._wake.note_claimable()
            left = self._sleepers.wake(opened)
            if left and self._wake is not None:
                self._wake.wake(left)
        if ended and self.watching:
            self.watchers.wake(ended)
        if replies and self._wake is not None:
            for slot, job_id in replies:
                self._wake.notify_ended(int(slot), job_id)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    def begin_claim(self) -> str:
        """Return a new claim id, and remember the current `claimable_version` for `has_just_looked`.

        A claim calls this in its transaction, before it reads the index of open jobs.
        """
        self._seen = None if self._wake is None else self._wake.claimable_version()
        return self.claim_id()

    def has_just_looked(self) -> bool:
        """Return True if no job seems to have become claimable since the last claim of this process.

        This is only a hint, so the caller must check again later.
        """
        wake = self._wake
        with contextlib.suppress(ValueError):  # closed meanwhile
            return wake is not None and wake.claimable_version() == self._seen
        return False

    async def fall_asleep(self, queues: Sequence[str], tasks: frozenset[str] | None) -> Sleeper:
        if not self.ready:
            await self.open()
        sleeper = self._sleepers.register(queues, tasks)
        self._publish()
        return sleeper

    def looked(self, sleeper: Sleeper, held_by: frozenset[Place]) -> None:
        """Record the limits (`held_by`) that block due jobs for this sleeper. Publish them to other processes if they
        have changed.
        """
        if sleeper.held_by != held_by:
            self._sleepers.looked(sleeper, held_by)
            self._publish()

    def wake_up(self, sleeper: Sleeper) -> None:
        self._sleepers.forget(sleeper)
        self._publish()

    def pass_on(self, sleeper: Sleeper) -> None:
        left = self._sleepers.pass_on(sleeper)
        if left and self._wake is not None:
            self._wake.wake(left)

    def _publish(self) -> None:
        wake = self._wake
        if wake is None or self.closed:
            return
        sleepers = self._sleepers.all()
        mask = 0
        for sleeper in sleepers:
            mask |= mask_for(sleeper.queues, sleeper.tasks, sleeper.held_by)
        with contextlib.suppress(ValueError):  # closed meanwhile: the next one publishes again
            wake.publish(len(sleepers), mask)

    def _woken(self, place: Place, jobs: int, tried: int) -> None:
        """Handle a hint from another process: wake sleepers here, and pass the hint on for jobs that found no sleeper.

        `tried` is a bit set of the process slots (see `wake.py`) that have received the hint.
        """
        left = self._sleepers.wake({place: jobs})
        self._publish()
        if left and self._wake is not None:
            self._wake.wake(left, tried)

    def _ended(self, job_id: str) -> None:
        self.watchers.wake([job_id])


def _nothing(_ledger: Ledger, _now: int) -> None:
    """Do nothing. A call with this step only makes the writer open the file."""
