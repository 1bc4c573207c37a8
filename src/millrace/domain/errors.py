"""The errors of the API. All inherit from `QueueError`; each message says what happened and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.domain.extras import install

if TYPE_CHECKING:
    from millrace.domain.outcome import Failure


class QueueError(Exception):
    """Base class of all errors that Millrace raises."""


class InvalidInput(QueueError, ValueError):
    """An argument is invalid: a bad name, a negative delay, an unknown option."""


class PayloadInvalid(QueueError, ValueError):
    """The payload does not match the task's parameters, cannot be encoded, or is too large.

    When a pool raises it, `pool` and `instance` are set, and `lane` if the job has a partition key.
    """

    pool: str | None = None
    lane: int | None = None
    instance: str | None = None


class ResultInvalid(PayloadInvalid):
    """The handler's return value cannot be encoded or is too large.

    The job is buried without a retry: the handler has already run, and another run would repeat its effects.
    """


class UnknownTask(QueueError, LookupError):
    """No task of this name is registered on the app."""


class UnknownPool(QueueError, LookupError):
    """No pool of this name is registered on the app."""

    def __init__(self, pool: str, hint: str) -> None:
        self.pool = pool
        super().__init__(f"no pool {pool!r} is registered on this app. {hint}")


class LanesInUse(InvalidInput):
    """The number of lanes cannot change while jobs wait or run: partition keys would move to other lanes."""

    def __init__(self, queue: str, lanes: int | None, wanted: int | None, live: int) -> None:
        self.queue, self.lanes, self.wanted, self.live = queue, lanes, wanted, live
        super().__init__(
            f"queue {queue!r} has {lanes or 'no'} lanes and {live} live jobs. Drain the queue, or let the jobs "
            f"finish, before you change it to {wanted or 'no'} lanes. Otherwise jobs of one partition key could run in "
            "two lanes."
        )


class UnknownDependency(QueueError, LookupError):
    """`after` names a job that does not exist."""

    def __init__(self, job: str, parent: str) -> None:
        self.job, self.parent = job, parent
        super().__init__(
            f"job {job!r} depends on {parent!r}, which does not exist. "
            "Enqueue the parent first (or in the same call), or pass allow_missing=True to wait for it."
        )


class DependencyCycle(QueueError, ValueError):
    """The dependencies form a cycle, so none of the jobs could ever start."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        super().__init__(
            "these jobs depend on each other in a cycle, so none could ever start: "
            + " -> ".join(repr(step) for step in path)
            + ". Remove one of the dependencies."
        )


class DuplicateKey(QueueError):
    """Another job holds the key, and the enqueue has on_hit='raise'."""

    def __init__(self, queue: str, key: str, owner: str) -> None:
        self.queue, self.key, self.owner = queue, key, owner
        super().__init__(
            f"key {key!r} in queue {queue!r} is held by job {owner!r}. "
            "Wait until that job has finished, or enqueue with on_hit='keep' or 'replace'."
        )


class QueueFull(QueueError):
    """The queue or lane is at its max_depth, or the jobs of the call would exceed it. `depth` does not include them."""

    def __init__(self, queue: str, depth: int, max_depth: int, lane: int | None = None) -> None:
        self.queue, self.depth, self.max_depth, self.lane = queue, depth, max_depth, lane
        place = f"queue {queue!r}" if lane is None else f"lane {lane} of pool {queue!r}"
        room = max_depth - depth
        over = f" The batch has more than {room} {'job' if room == 1 else 'jobs'}." if room > 0 else ""
        super().__init__(
            f"{place} has {depth} waiting jobs, and its limit is {max_depth}.{over} Nothing was enqueued. "
            "Enqueue again when the queue has space, add workers, or increase max_depth."
        )


class DeadLettersFull(QueueFull):
    """The queue has reached dead_cap, and dead_overflow is 'reject'."""

    def __init__(self, queue: str, depth: int, max_depth: int) -> None:
        super().__init__(queue, depth, max_depth)
        self.args = (
            f"queue {queue!r} has {depth} dead jobs, its limit is {max_depth}, and dead_overflow is "
            "'reject'. Nothing was enqueued. First replay, archive or delete dead jobs of this "
            "queue: app.jobs.replay, app.jobs.archive or app.jobs.delete, or the commands of the same names.",
        )


class WaitTimeout(QueueError, TimeoutError):
    """The job has not finished within the given time. The job itself continues."""

    def __init__(self, job: str, waited: float) -> None:
        self.job, self.waited = job, waited
        super().__init__(
            f"job {job!r} has not finished within {waited:g} s. The job continues. "
            "Get its result later with app.jobs.result(id), or wait longer with options(wait=…)."
        )


class JobFailed(QueueError):
    """The awaited job is dead."""

    def __init__(self, job: str, reason: str | None, error: Failure | None) -> None:
        self.job, self.reason, self.error = job, reason, error
        text = f"{error.type}: {error.message}" if error else "no error was recorded"
        super().__init__(f"job {job!r} is dead ({reason or 'unknown'}): {text}")


class JobNotFound(QueueError, LookupError):
    """No job has this id: it was never enqueued, or its record was pruned."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(
            f"there is no job {job!r}: it was never enqueued, or its record was pruned. "
            "Check the id, or increase keep_completed and keep_dead to keep records longer."
        )


class JobCancelled(QueueError):
    """The awaited job was cancelled."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"job {job!r} was cancelled, so it has no result")


class ResultExpired(QueueError):
    """The job completed, but keep_result has passed and its result is deleted."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(
            f"job {job!r} completed, but its result is no longer kept. "
            "Increase keep_result of the task, or enqueue the work again under a new id."
        )


class LeaseLost(QueueError):
    """The lease was reclaimed by another worker. This run can no longer settle the job."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(
            f"the lease on job {job!r} was taken over. This run can no longer change the job: roll back its writes, "
            "and stop."
        )


class LifespanFailed(QueueError):
    """The app's lifespan raised an exception, which is the cause of this error.

    `when` is "at start-up", before the worker has claimed a job, or "at shutdown", after its last job has ended.
    It is "while the worker was running" if a background task of the lifespan, or of a provider with scope="worker",
    has failed and ended it.
    """

    def __init__(self, when: str, why: str) -> None:
        self.when = when
        claims = " The worker has claimed no job." if when == "at start-up" else ""
        correct = "Correct the function below @app.lifespan."
        if when == "while the worker was running":
            correct = 'Correct the background tasks of @app.lifespan and of the providers with scope="worker".'
        super().__init__(f"the app's lifespan failed {when}: {why}.{claims} {correct}")


class StoreError(QueueError):
    """The store failed: it is unreachable, read-only or full, or it was not created by Millrace."""


class ReadOnlyStore(StoreError):
    """A method that writes was called on a store that was opened with `access=read`."""

    def __init__(self, url: str, method: str) -> None:
        self.method = method
        super().__init__(
            f"{method} writes to the store, which was opened with access=read: {url}. Nothing was written. To write, "
            "remove access=read from the URL, and use credentials that may write."
        )


class StoreNotFound(StoreError):
    """There is no store at this URL yet, and `access=read` creates none."""


class StoreClosed(StoreError):
    """The store is closed, because `millrace move` moves its jobs to another store, or moves jobs into it."""

    def __init__(self, stage: str, peer: str) -> None:
        self.stage, self.peer = stage, peer
        texts = {
            "frozen": f"the jobs of this store are being moved to {peer}. When `millrace move` has finished, use that "
            "URL. To keep this store instead, run `millrace move` with --abort.",
            "moved": f"the jobs of this store were moved to {peer}. Use that URL.",
        }
        arriving = f"jobs are being moved into this store from {peer}. It opens when `millrace move` has finished."
        super().__init__(f"{texts.get(stage, arriving)} Nothing was changed.")


class CursorExpired(QueueError):
    """Retention deleted events after this cursor before they were read."""

    def __init__(self, cursor: str, lost: int, oldest: str) -> None:
        self.cursor, self.lost, self.oldest = cursor, lost, oldest
        super().__init__(
            f"retention deleted {lost} events after cursor {cursor!r} before they were read. "
            f"Continue from cursor {oldest!r}. To miss no events, read more often or increase keep_events."
        )


class CursorUnknown(QueueError):
    """The store's feed does not have the event before this cursor: the store lost events, or it is another store."""

    def __init__(self, cursor: str, newest: int | None = None) -> None:
        self.cursor, self.newest = cursor, newest
        ends = "" if newest is None else f", which ends at number {newest}"
        super().__init__(
            f"the event before cursor {cursor!r} is not in this store's feed{ends}. "
            "The store was restored from a backup, it lost its latest events in a crash, or the cursor belongs to "
            "another store. Some of the events that you have read may no longer exist, and new events may have their "
            "numbers. Read again from the oldest event (cursor None) and skip known ones by (job, generation, n), or "
            'continue from cursor "end" without the events in between.'
        )


class MissingExtra(QueueError, ImportError):
    """The library that a feature needs is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"the library for {what} is not installed. Run: {install(extra)}")


class MissingDriver(QueueError, ImportError):
    """The driver library that a store needs is not installed."""

    def __init__(self, scheme: str, extra: str) -> None:
        self.scheme = scheme
        super().__init__(f"{scheme}:// needs a driver that is not installed. Run: {install(extra)}")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a sentence for an error message: the most similar known name, or else all of them."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(names) or 'none'}."
