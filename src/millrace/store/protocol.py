"""The store protocol: six roles (producer, consumer, reader, operator, scheduling, transfer) and what their methods do.

Methods that take many items return one result per item, in order. Each call is one atomic step unless stated otherwise,
and can be repeated safely after a lost reply. Callers pass durations, never points in time: only the store's clock
counts, so the clocks of clients may differ. Every feature works on every store.

`store/base.py` has defaults for methods that can be built from others. Four protocols are optional: `Transactional`,
`Sweeping`, `Direct` and `Blocking`.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from millrace.domain.change import Change
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportPage
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.request import (
    EVERYTHING,
    Archived,
    Cancelled,
    Claim,
    Deleted,
    Enqueued,
    EventPage,
    EventSpan,
    Extension,
    JobSelection,
    LaneStatus,
    Maintained,
    Page,
    Partition,
    Query,
    QueueCounts,
    Receipt,
    Reclaim,
    Replayed,
    WorkerInfo,
    WorkerRecord,
)
from millrace.domain.schedule import DueSchedules, Move, Moved, Schedule
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.store.sweep_report import Monitoring, Swept

Target = Literal["queue", "task", "store"]


class Ending(NamedTuple):
    """The result of a completed job, as part of a notification. A waiting caller that gets the result need not read the
    job.
    """

    generation: int
    result: bytes | None


class Watch(Protocol):
    """A wait for the end of one job. A caller that creates the watch before it reads the job misses no end."""

    async def wait(self, timeout: float) -> Ending | None:
        """Return when the watched job may have ended, or after `timeout` seconds.

        An `Ending` means that the job has completed. After None, the caller reads the job to learn its state.
        """
        ...


class Producer(Protocol):
    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        """Enqueue all specs or none. When this method returns, the jobs are stored, with the durability of the store.

        Raise InvalidInput, PayloadInvalid, UnknownDependency, DependencyCycle, DuplicateKey or QueueFull if a spec is
        refused. A call that raises one of these errors enqueues nothing. A repeated call with the same specs and tokens
        returns the same results.
        """
        ...

    async def enqueue_behind(
        self, specs: Sequence[Spec], before: Future[list[Enqueued]] | None
    ) -> Future[list[Enqueued]]:
        """Like `enqueue`, for the next chunk of a large enqueue: its jobs are stored only if the chunk `before`
        succeeds.

        Return a future for the results as soon as the order of the jobs is fixed. From that moment, the caller can
        start the next chunk while this chunk is being written.
        """
        ...


class Consumer(Protocol):
    async def claim(self, request: Claim) -> list[Job]:
        """Claim due jobs in order, each with a new lease, within all limits. The cost does not grow with the queue.

        A claim first does a limited amount of upkeep, so it may return fewer jobs than are claimable. In that case, the
        next `wait` returns at once.
        """
        ...

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        """Write how runs ended, and enqueue the jobs of each change in the same step. For an item that is LOST, write
        nothing.

        The jobs of a change are accepted even if their queue is full or their key is held. If a job is invalid (a bad
        name, too large, a cycle), raise a QueueError and write nothing of the call.
        """
        ...

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        """Extend leases; the new duration counts from now. The worker stops a handler whose receipt is LOST or
        CANCELLING.
        """
        ...

    async def reclaim(self, request: Reclaim) -> list[Job]:
        """Reclaim jobs whose lease has expired (lease_until < now), and return them. The caller decides about each job
        and settles it.
        """
        ...

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        """Return when a claim may find a job, or after `timeout` seconds. This is only a hint: polling is correct too.

        The store registers the wait before it checks for jobs. So a job that is enqueued between a claim and this call
        ends the wait. A caller may cancel the call at any time; if the call has already received a hint, another waiter
        gets it.
        """
        ...

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        """Return True when a job that this worker runs may have been cancelled, or False after `timeout` seconds.

        This is only a hint: `extend` says which job was cancelled. If a store cannot notify other processes, a worker
        there learns of the cancel from its next `extend`.
        """
        ...


class Reader(Protocol):
    async def get(self, ids: Sequence[str]) -> list[Job | None]: ...

    async def find(self, query: Query) -> Page:
        """Return a page of jobs in order of seq. The page may be short or even empty: the number of scanned rows is
        limited.
        """
        ...

    async def count(self) -> list[QueueCounts]: ...
    async def position(self, job_id: str) -> int | None: ...
    async def lanes(self, queue: str) -> list[LaneStatus]: ...
    async def history(self, job_id: str) -> list[Event]:
        """Return all kept events of an id, over all its generations, oldest first."""
        ...

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        """Return a page of the event feed after `cursor`, and the cursor to continue from.

        None starts at the oldest event kept. "end" returns an empty page with the newest cursor. With a `limit` of 0,
        the page is empty and its cursor is the starting position.

        Raise CursorExpired if retention has deleted events after the cursor. Raise CursorUnknown if the event before
        the cursor is not in the feed, because the store has lost it or the cursor is from another store.
        """
        ...

    async def events_before(self, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
        """Return up to `limit` events before a cursor, newest first, and the cursor to continue from.

        With None, start at the newest event. Each event is returned with the cursor before it. The cursor to continue
        from is None at the oldest event kept. The page may be short or even empty, because the scan is limited. Events
        that are written during the call may be missing. Raise CursorUnknown as `events` does.
        """
        ...

    async def event_spans(
        self, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        """Return at most `n` consecutive spans of the feed after `after`: a cursor, or a time of the store's clock.

        None starts at the oldest event kept. The spans end at the newest durable event, at `until`, or after about
        `limit` events. There is at least one span, which may be empty. The end of the last span is the cursor to
        continue from. If `after` is a time and the clock has been set back, a few events may be missing. Raise
        CursorExpired and CursorUnknown as `events` does.
        """
        ...

    def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[Sequence[Event]]:
        """Iterate over the events of a span, in order, as lists of events, without reading earlier events.

        A store may return instances of a subclass that it reads faster. Such an event does not compare equal to an
        `Event` with the same fields. Raise CursorExpired and CursorUnknown as `events` does, also between two lists, so
        that no event is skipped silently.
        """
        ...

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Watch]: ...

    async def partitions(self, n: int) -> list[Partition]:
        """Return at most `n` partitions that together cover all current jobs."""
        ...

    def scan(
        self, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        """Iterate over the jobs of a partition, or over a selection of them, in lists of at most `batch` jobs.

        A job that matches the selection during the whole scan is returned once.
        """
        ...


class Operator(Protocol):
    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]: ...

    async def replay(self, ids: Sequence[str], children: bool = True) -> list[Replayed]:
        """Move finished jobs back to waiting.

        With `children`, also replay jobs that were buried because one of these jobs died or was cancelled
        (`dependency_failed`), the children of those jobs, and so on.
        """
        ...

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]: ...
    async def delete(self, ids: Sequence[str]) -> list[Deleted]:
        """Delete finished jobs now, as retention would do later. Their last event is `pruned`. Jobs that have not
        finished stay.
        """
        ...

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        """Change durable settings of a queue, a task or the store. Return the settings after the change."""
        ...

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        """Cancel up to `limit` waiting jobs of one lane or of the whole queue, except hook jobs.

        Return the number of cancelled jobs; call again until it is 0.
        """
        ...

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        """Delete up to `limit` jobs of the queue in any state, even running jobs. Return the number of deleted jobs."""
        ...

    async def maintain(self, limit: int = 1_000) -> Maintained:
        """Do one limited round of upkeep, and return what was done.

        Upkeep is expiry, retention, automatic retries, caps, and trimming of events.
        """
        ...

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        """Write the record of a worker. From now on, the worker counts as alive for `ttl` milliseconds. If `ttl` is 0,
        delete the record.
        """
        ...

    async def workers(self) -> list[WorkerRecord]: ...


class Scheduling(Protocol):
    async def schedules(self, after: str = "", limit: int | None = None) -> list[Schedule]:
        """Return the schedules whose name is greater than `after`, sorted by name: up to `limit`, by default all."""
        ...

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        """Return what a scheduler looks at: the schedules with these names, and up to `limit` schedules whose `due_at`
        has come, without the first `skip` of them.

        The cost does not grow with the number of schedules that are not due.
        """
        ...

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        """Apply each move: write its schedule and enqueue its jobs in one step, if the schedule's revision has not
        changed.

        Each move is applied completely or not at all. Moves of different schedules are independent of each other, so a
        store may apply them in any order. The mark of a schedule never moves back, and never past the store's clock. A
        call that is repeated after a lost reply gets the answer `stale`.
        """
        ...


class Transfer(Protocol):
    """What `millrace move` needs of a store. The store is closed meanwhile (`StoreSettings.closed`)."""

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        """Return a page of everything that the store keeps, except workers.

        With None, start with the settings. A page is short only if it is the last of its kind.
        """
        ...

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        """Add exported records, and return how many of them are new. Records that the store has already stay as they
        are, so a call can be repeated. Raise StoreError if the store is not closed as the target of this move.

        The call is one atomic step per record at least. This is the only change that a closed store accepts.
        """
        ...


class Within(Protocol):
    """Enqueues and settles inside the caller's own transaction. They take effect when the transaction commits.

    A refused step leaves the transaction unchanged. Methods with the suffix `_now` block and need no event loop.
    """

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]: ...
    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]: ...
    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]: ...
    def settle_now(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]: ...


@runtime_checkable
class Transactional(Protocol):
    """A store that can join the caller's own transaction."""

    def within(self, connection: object) -> Within:
        """Return an object whose steps run in the transaction of `connection`.

        Raise InvalidInput if `connection` is not to this store's database. The first step may raise it instead of this
        method.
        """
        ...


@runtime_checkable
class Sweeping(Protocol):
    """A store without a server. Its workers repair what a crash has left incomplete."""

    @property
    def monitoring(self) -> Monitoring: ...

    async def sweep(self, limit: int | None = None, *, full: bool = False) -> Swept:
        """Check and repair a limited part of the store. Call this again while the result has `more`.

        With `full`, check everything.
        """
        ...


@runtime_checkable
class Direct(Protocol):
    """A store with blocking methods for threads without an event loop. Connect the store before calling them."""

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]: ...
    def close_now(self) -> None: ...


@runtime_checkable
class Blocking(Protocol):
    """A store that can enqueue most jobs without an event loop, over connections of the calling threads."""

    def enqueue_blocking(self, specs: Sequence[Spec]) -> list[Enqueued] | None:
        """Enqueue jobs and return the answers; None if only `enqueue` can do it, which is safe to call then.

        Connect the store before calling this.
        """
        ...

    def close_blocking(self) -> None: ...


@runtime_checkable
class Store(Producer, Consumer, Reader, Operator, Scheduling, Transfer, Protocol):
    """The complete store protocol: all six roles in one object.

    `ids` says which generated job ids suit the store best: "sorted" ids begin with the time, "random" ids do not.

    `concurrent_writes` says whether two enqueues may be written at the same time. If False, new jobs appear in the feed
    in the order of their seqs. If True, only jobs of the same line (a group or a lane) do, and a rollback leaves gaps
    in the seqs.

    `small_claims` says whether a worker should claim at most half of its slots at once. This is faster if the store can
    prepare the next claim while the worker runs the first jobs.

    `closes_after` is how many seconds after it was closed a store may still be changed by other processes.
    """

    url: str  # without a password
    ids: Literal["sorted", "random"]
    concurrent_writes: bool
    small_claims: bool
    closes_after: float

    async def connect(self) -> None: ...
    async def close(self) -> None: ...
    def for_loop(self) -> Store:
        """Return a handle of this store for another event loop. A store that works on all loops returns itself."""
        ...

    def for_reading(self) -> Store:
        """Return a handle of this store, not connected yet, that writes nothing of any kind.

        It needs no permission to write: opening it creates nothing, and reading leaves no trace. Methods that write
        raise ReadOnlyStore; `control` without changes returns the settings. Events that cannot be shown without writing
        are shown later, but never skipped.
        """
        ...

    async def now(self) -> int:
        """Return the current time of the store's clock, in milliseconds since the epoch."""
        ...
