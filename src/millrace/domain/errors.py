"""Every error of the API, under `QueueError`. Each says what happened and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.domain.outcome import Failure


class QueueError(Exception):
    """The root of all errors that Millrace raises on purpose."""


class InvalidInput(QueueError, ValueError):
    """A value that can never be right: a bad name, a negative delay, an unknown option."""


class PayloadInvalid(QueueError, ValueError):
    """The payload does not fit the task's parameters, or cannot be encoded, or is too large.

    Raised by a pool, it says which one, and which lane the job was meant for if a partition key tells (W-19).
    """

    pool: str | None = None
    lane: int | None = None
    instance: str | None = None


class UnknownTask(QueueError, LookupError):
    """A task name that this app has not registered."""


class UnknownPool(QueueError, LookupError):
    """A pool name that this app has not registered."""

    def __init__(self, pool: str, hint: str) -> None:
        self.pool = pool
        super().__init__(f"no pool {pool!r} is registered on this app. {hint}")


class LanesInUse(InvalidInput):
    """The number of lanes cannot change while jobs wait or run: partition keys would move to other lanes (BW-15)."""

    def __init__(self, queue: str, lanes: int | None, wanted: int | None, live: int) -> None:
        self.queue, self.lanes, self.wanted, self.live = queue, lanes, wanted, live
        super().__init__(
            f"queue {queue!r} has {lanes or 'no'} lanes and {live} live jobs. Drain it, or let them finish, before "
            f"changing it to {wanted or 'no'} lanes: the same partition key would move to another lane."
        )


class UnknownDependency(QueueError, LookupError):
    """`after` names a job that does not exist."""

    def __init__(self, job: str, parent: str) -> None:
        self.job, self.parent = job, parent
        super().__init__(
            f"job {job!r} is to run after {parent!r}, which does not exist. "
            "Enqueue the parent first (or in the same call), or pass allow_missing=True to wait for it."
        )


class DependencyCycle(QueueError, ValueError):
    """Jobs that would wait for each other for ever."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        super().__init__(
            "these jobs would wait for each other for ever: "
            + " -> ".join(repr(step) for step in path)
            + ". Remove one of the dependencies."
        )


class DuplicateKey(QueueError):
    """The key is held by another job and the enqueue said on_hit='raise'."""

    def __init__(self, queue: str, key: str, owner: str) -> None:
        self.queue, self.key, self.owner = queue, key, owner
        super().__init__(
            f"key {key!r} in queue {queue!r} is held by job {owner!r}. "
            "Wait for it, or enqueue with on_hit='keep', 'replace' or 'extend'."
        )


class QueueFull(QueueError):
    """The queue (or lane) is at its max_depth."""

    def __init__(self, queue: str, depth: int, max_depth: int, lane: int | None = None) -> None:
        self.queue, self.depth, self.max_depth, self.lane = queue, depth, max_depth, lane
        place = f"queue {queue!r}" if lane is None else f"lane {lane} of pool {queue!r}"
        super().__init__(
            f"{place} holds {depth} waiting jobs and takes at most {max_depth}. Nothing was enqueued. "
            "Enqueue again when there is room, add workers, or raise max_depth."
        )


class DeadLettersFull(QueueFull):
    """The queue keeps as many dead jobs as it may and was told to reject rather than evict (BE-09)."""

    def __init__(self, queue: str, depth: int, max_depth: int) -> None:
        super().__init__(queue, depth, max_depth)
        self.args = (
            f"queue {queue!r} holds {depth} dead jobs, its limit is {max_depth}, and dead_overflow is "
            "'reject'. Nothing was enqueued. Replay, archive or prune dead jobs first.",
        )


class WaitTimeout(QueueError, TimeoutError):
    """No result within the time given. The job goes on."""

    def __init__(self, job: str, waited: float) -> None:
        self.job, self.waited = job, waited
        super().__init__(
            f"job {job!r} has not finished within {waited:g} s. It goes on; "
            "ask again with app.jobs.result(id), or wait longer with options(wait=…)."
        )


class JobFailed(QueueError):
    """The awaited job is dead."""

    def __init__(self, job: str, reason: str | None, error: Failure | None) -> None:
        self.job, self.reason, self.error = job, reason, error
        text = f"{error.type}: {error.message}" if error else "no error was recorded"
        super().__init__(f"job {job!r} is dead ({reason or 'unknown'}): {text}")


class JobNotFound(QueueError, LookupError):
    """No job of that id: never enqueued, or pruned."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"there is no job {job!r}: it was never enqueued, or its record was pruned")


class JobCancelled(QueueError):
    """The awaited job was cancelled."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"job {job!r} was cancelled, so it has no result")


class ResultExpired(QueueError):
    """The job completed, but its result was kept no longer than keep_result."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(
            f"job {job!r} completed, but its result is no longer kept. "
            "Raise keep_result on the task, or enqueue the work again under a new id."
        )


class LeaseLost(QueueError):
    """The lease was taken over: whatever this holder did no longer counts."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"the lease on job {job!r} was taken over; this run can no longer change it")


class StoreError(QueueError):
    """The store could not do what was asked: unreachable, read-only, full, or not ours."""


class CursorExpired(QueueError):
    """Events after this cursor were trimmed by retention before they were read."""

    def __init__(self, cursor: str, lost: int, oldest: str) -> None:
        self.cursor, self.lost, self.oldest = cursor, lost, oldest
        super().__init__(
            f"{lost} events after cursor {cursor!r} were trimmed by retention before they were read. "
            f"Go on from cursor {oldest!r} and count them as lost, and read more often or keep events longer."
        )


class MissingExtra(QueueError, ImportError):
    """A feature whose library is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} need a library that is not installed. Run: pip install 'millrace[{extra}]'")


class MissingDriver(QueueError, ImportError):
    """The store exists, but the library it speaks through is not installed."""

    def __init__(self, scheme: str, extra: str) -> None:
        self.scheme = scheme
        super().__init__(f"{scheme}:// needs a driver that is not installed. Run: pip install 'millrace[{extra}]'")
