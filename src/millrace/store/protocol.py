"""The store protocol: five roles, each method with its guarantee.

Batch first: many items in, one answer per item, in order. Each call is one atomic step unless it says otherwise,
and asking again after a lost reply is safe. Durations cross it, never instants, so clocks may disagree; the
store's own clock decides. Every feature works on every store.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from millrace.domain.change import Change
from millrace.domain.event import Event
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.request import (
    Archived,
    Cancelled,
    Claim,
    Enqueued,
    EventPage,
    EventSpan,
    Extension,
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
from millrace.domain.schedule import Move, Moved, Schedule
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.store.swept import Monitoring, SweepShare, Swept

Target = Literal["queue", "task", "store"]


class Ending(NamedTuple):
    """A job was completed so, by the word of whoever wrote that down: there is nothing more to read."""

    generation: int
    result: bytes | None


class Watch(Protocol):
    """Set up before the question is asked, so that an answer in between is not missed."""

    async def wait(self, timeout: float) -> Ending | None:
        """Return when the watched job may have finished, or after `timeout` seconds. None is a hint, never a proof."""
        ...


class Producer(Protocol):
    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        """All or nothing. An answer means that the jobs are kept, at the durability the store states.

        Raises InvalidInput, PayloadInvalid, UnknownDependency, DependencyCycle, DuplicateKey, QueueFull; then
        nothing was enqueued. The same spec with the same token gets the same answer again.
        """
        ...


class Consumer(Protocol):
    async def claim(self, request: Claim) -> list[Job]:
        """Due jobs in order, each under a new lease, within every limit. Costs the same for any queue length.

        It may come back short although more is claimable, because the upkeep it does on the way is bounded; `wait`
        then returns at once.
        """
        ...

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        """End runs. LOST changes nothing. The jobs a change carries are enqueued in the same step.

        A full queue or a taken key does not stop carried jobs. One that can never be right (a bad name, too large, a
        cycle) raises its QueueError, and then nothing of the batch was written.
        """
        ...

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        """Lengthen leases, counted from now. LOST and CANCELLING both mean: abort the handler, if it still runs."""
        ...

    async def reclaim(self, request: Reclaim) -> list[Job]:
        """Take over expired leases (lease_until < now). The taker decides and settles like any holder."""
        ...

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        """Return when a claim may find something, or after `timeout` seconds. A hint: polling alone is correct.

        It registers before it checks, so a job enqueued between a claim and this call is not slept over. Cancelling
        it is safe at any moment and loses no other waiter's hint.
        """
        ...


class Reader(Protocol):
    async def get(self, ids: Sequence[str]) -> list[Job | None]: ...

    async def find(self, query: Query) -> Page:
        """Jobs by seq. A page may be short, even empty, when its scan budget was met: go on from its cursor."""
        ...

    async def count(self) -> list[QueueCounts]: ...
    async def position(self, job_id: str) -> int | None: ...
    async def lanes(self, queue: str) -> list[LaneStatus]: ...
    async def history(self, job_id: str) -> list[Event]:
        """Events of all remembered generations of an id, oldest first."""
        ...

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        """The feed of all events, after `cursor` (None: from the oldest kept; "end": an empty page that only says
        where to go on). CursorExpired when overtaken."""
        ...

    async def event_spans(
        self, after: str | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        """At most n spans, one after the other, which together hold exactly the events after `after` (None: from the
        oldest kept) up to what is durable now, or up to `until`; no more than about `limit` of them. At least one,
        which may be empty: the last one's end is a cursor to go on from, and stays the same while nothing happens.
        CursorExpired when overtaken."""
        ...

    def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        """The events of a span, in order. What lies before it costs nothing. CursorExpired when overtaken, also in the
        middle; nothing is left out silently."""
        ...

    async def cursor_before(self, at: int) -> str:
        """A cursor from which on the events since an instant of the store's clock come. Where clocks have been set
        back, a few of them may lie before it."""
        ...

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Watch]: ...

    async def partitions(self, n: int) -> list[Partition]:
        """At most n shares that together hold every job there is now."""
        ...

    def scan(self, partition: Partition, batch: int = 1_000) -> AsyncIterator[list[Job]]: ...


class Operator(Protocol):
    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]: ...

    async def replay(self, ids: Sequence[str]) -> list[Replayed]: ...
    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]: ...
    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        """Change durable settings of a queue, a task or the store, and answer what they are now."""
        ...

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        """Cancel up to `limit` waiting jobs, of one lane or of all; the number says whether to ask again.

        Hooks stay: they are word of what happened, not work of the queue.
        """
        ...

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        """Remove up to `limit` jobs in any state, running ones too. There is no way back."""
        ...

    async def maintain(self, limit: int = 1_000) -> Maintained:
        """One bounded round of what time brings about: expiry, retention, auto-retry, caps, trimming."""
        ...

    async def beat(self, info: WorkerInfo, ttl: int) -> None: ...
    async def leave(self, worker_id: str) -> None: ...
    async def workers(self) -> list[WorkerRecord]: ...


class Scheduling(Protocol):
    async def schedules(self) -> list[Schedule]:
        """Every schedule that was declared and not removed, by name."""
        ...

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        """Write each schedule whose revision is still the one seen, and enqueue what it carries in the same step.

        Each move happens entirely or not at all; its jobs are kept as `enqueue` keeps them. The mark of a schedule
        never moves back, nor past the store's clock. Asked again after a lost reply, the answer is `stale`.
        """
        ...


class Within(Protocol):
    """Steps in a transaction of the caller's: they happen when it commits, and never were when it is rolled back.

    A step that is refused leaves the transaction as it was. What ends in `_now` needs no event loop; it blocks.
    """

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]: ...
    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]: ...
    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]: ...
    def settle_now(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]: ...


@runtime_checkable
class Transactional(Protocol):
    """A store whose jobs can be part of the caller's own transaction."""

    def within(self, connection: object) -> Within:
        """InvalidInput, here or at the first step, when it is not a connection to this store's data."""
        ...


@runtime_checkable
class Raw(Protocol):
    """A store that hands out events in its own form too: cheaper for whoever only takes their fields, in bulk."""

    def scan_raw_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[Sequence[Event]]:
        """As `scan_events`, but the events are of a class of the store's own: they do not equal an `Event`."""
        ...


@runtime_checkable
class Sweeping(Protocol):
    """A store without a server, where somebody has to put right what a crash left half done."""

    @property
    def monitoring(self) -> Monitoring: ...

    async def sweep(self, limit: int | None = None, *, full: bool = False) -> Swept:
        """A bounded piece of a round; ask again while there is `more`. With `full`, a whole round at once."""
        ...


@runtime_checkable
class SweepingInShares(Sweeping, Protocol):
    """A round of it can be gone by several at once: each share by anybody, then the rest by one of them."""

    async def now(self) -> int:
        """The store's clock."""
        ...

    def shares(self, n: int) -> list[SweepShare]:
        """At most `n` of them, which together are everything that can be shared out."""
        ...

    async def sweep_share(self, share: SweepShare) -> Swept:
        """All that is in it, whatever was looked at before. Asking again is safe."""
        ...

    async def sweep_rest(self, began: int) -> Swept:
        """What is in no share, once all shares of a round that began at that instant have been swept."""
        ...


@runtime_checkable
class Abreast(Protocol):
    """A store that can be at the next chunk of jobs while the one before is being written."""

    async def enqueue_behind(
        self, specs: Sequence[Spec], before: Future[list[Enqueued]] | None
    ) -> Future[list[Enqueued]]:
        """As `enqueue`, and kept only if `before` was.

        Returns once the jobs have their place in the order, so that the next ones may be begun behind them.
        """
        ...


@runtime_checkable
class Direct(Protocol):
    """A store that also answers threads without an event loop; they block meanwhile. It must be connected."""

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]: ...
    def close_now(self) -> None: ...


@runtime_checkable
class Apart(Protocol):
    """A store that works in another process and is quick at it: this one has time to run handlers meanwhile, so that it
    pays to ask more often for less."""

    works_apart: Literal[True]


@runtime_checkable
class Store(Producer, Consumer, Reader, Operator, Scheduling, Protocol):
    """A store.

    `ids` says which generated job ids suit it: sorted by time, or random from the first character.

    `steps_overlap` says whether two enqueues may be under way at the same time. Where they take turns, the feed tells
    of jobs in the order of their seqs. Where they overlap, it does so within a line (a group, a lane), where order is
    promised; elsewhere who drew a seq first may be told of second, and what a rollback undid leaves out its seqs.
    """

    url: str  # without a password
    ids: Literal["sorted", "random"]
    steps_overlap: bool

    async def connect(self) -> None: ...
    async def close(self) -> None: ...
    def beside(self) -> Store:
        """The same store for use from another thread's event loop; itself, where it is at home in all of them."""
        ...

    async def now(self) -> int:
        """The store's clock, in milliseconds."""
        ...
