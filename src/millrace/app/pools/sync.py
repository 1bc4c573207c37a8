"""The blocking API of a pool's handler, for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from millrace.app.job_handle import SyncJobHandle
from millrace.app.pools.task import MOST_AT_ONCE, PoolTask
from millrace.app.sync.app import Sync, SyncTask
from millrace.app.task import Item

P = ParamSpec("P")
R = TypeVar("R")


class SyncPoolTask(SyncTask[P, R]):
    """The blocking API of a pool's handler, returned by `handle.sync`.

    An enqueue inside the caller's transaction runs on the calling thread, all other calls on the background loop.
    """

    def __init__(self, task: PoolTask[P, R, Any, Any], sync: Sync) -> None:
        super().__init__(task, sync)
        self._handle = task

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Enqueue one job and return its handle, with the job's lane and position."""
        if self._handle.connection is None:
            return self._sync.run(self._handle.enqueue(*args, **kwargs)).sync
        return super().enqueue(*args, **kwargs)

    def enqueue_many(self, items: Iterable[Item], *, chunk: int | None = None) -> list[SyncJobHandle[R]]:
        """Enqueue up to 10,000 jobs, all or nothing, and return one handle per item.

        With `chunk`, enqueue any number of jobs in chunks of that size, each all or nothing.
        """
        given: Sequence[Any] = list(items)
        if self._handle.connection is None:
            return [job.sync for job in self._sync.run(self._handle.enqueue_many(given, chunk=chunk))]
        if chunk is None:
            self._handle.refuse_too_many(given)
        return super().enqueue_many(given, chunk=chunk or MOST_AT_ONCE)
