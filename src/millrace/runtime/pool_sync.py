"""The handler of a pool for programs without an event loop: the same answers, which say where a job stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from millrace.runtime.pool_task import MOST_AT_ONCE, Placed, PoolTask
from millrace.runtime.sync import Sync, SyncTask

P = ParamSpec("P")
R = TypeVar("R")


class SyncPoolTask(SyncTask[P, R]):
    """Made by `handle.sync`. Within a transaction it stays on the caller's thread; else a loop waits for room."""

    def __init__(self, task: PoolTask[P, R, Any, Any], sync: Sync) -> None:
        super().__init__(task, sync)
        self._handle = task

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Placed:
        """Put one job in; the answer says where it stands (W-20)."""
        if self._handle.connection is None:
            return self._sync.run(self._handle.enqueue(*args, **kwargs))
        return self._handle.placed(super().enqueue(*args, **kwargs))

    def enqueue_many(  # type: ignore[override]  # a list of a narrower kind is what callers want here
        self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, chunk: int | None = None
    ) -> list[Placed]:
        """Put many jobs in, all or nothing: at most 10,000, or any number in steps of `chunk` (W-22)."""
        given: Sequence[Any] = list(items)
        if self._handle.connection is None:
            return self._sync.run(self._handle.enqueue_many(given, chunk=chunk))
        if chunk is None:
            self._handle.refuse_too_many(given)
        return [self._handle.placed(answer) for answer in super().enqueue_many(given, chunk=chunk or MOST_AT_ONCE)]
