"""Pools: a queue with N ordered lanes and one handler, and control over the lanes.

The settings of a pool are in the store, shared by all processes. Each process writes them when it first uses the pool,
so that code and store agree. The number of lanes can change only while no job waits or runs: a change moves partition
keys to other lanes, so jobs with the same key could run in the wrong order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

import msgspec

from millrace.app.local_events import LocalEvent
from millrace.app.pools.hooks import DeadJobHook, EmptiedHook, dead_job_handler, emptied_handler
from millrace.app.pools.status import PoolStatus, pool_status
from millrace.app.pools.task import PartitionKey, PoolTask
from millrace.app.queue import Progress, Queue
from millrace.domain.errors import InvalidInput, LanesInUse, StoreError
from millrace.domain.rules.check import check_name
from millrace.domain.settings import QueueSettings
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.handler.context import Context

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=DeadJobHook)
E = TypeVar("E", bound=EmptiedHook)
# The last alternative would be enough; with the others, strict type checkers infer the parameters of a lambda as Any.
PartitionBy = (
    Callable[[Any], PartitionKey]
    | Callable[[Any, Any], PartitionKey]
    | Callable[[Any, Any, Any], PartitionKey]
    | Callable[..., PartitionKey]
)

MOST_LANES = 4_096
DEFAULT_DEPTH = 10_000  # waiting jobs per lane
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between tries of a worker that starts while its store is unreachable

log = logging.getLogger("millrace.pool")


class Pool:
    """A pool, made by `app.pool(name, lanes=…)`. It decorates the pool's handler and controls its lanes."""

    def __init__(
        self,
        app: App,
        name: str,
        lanes: int,
        max_depth: int | msgspec.UnsetType | None,
        partition_by: PartitionBy | None,
        options: dict[str, Any],
    ) -> None:
        check_name("pool", name)
        if not (_is_int(lanes) and 1 <= lanes <= MOST_LANES):
            raise InvalidInput(f"pool {name!r}: lanes must be an integer from 1 to {MOST_LANES:,}, not {lanes!r}")
        if max_depth not in (None, msgspec.UNSET) and not (_is_int(max_depth) and max_depth >= 1):
            raise InvalidInput(f"pool {name!r}: max_depth must be at least 1, or None for no limit; not {max_depth!r}")
        if partition_by is not None and not callable(partition_by):
            raise InvalidInput(
                f"pool {name!r}: partition_by must be a function that takes a job's arguments and returns its key"
            )
        if "queue" in options:
            raise InvalidInput(f"pool {name!r} is its own queue; remove queue={options['queue']!r}")
        self.name = name
        self.lanes = lanes
        self.partition_by = partition_by
        self._max_depth = max_depth
        self._app = app
        self._options = options
        self._task: PoolTask[..., Any, ..., Any] | None = None
        self._queue = Queue(name, app.connected)
        self._declared: tuple[Store, str | None] | None = None  # (store, on_empty) that was written last
        self._kept: tuple[Store, int | None] | None = None  # (store, lanes) that was warned about last
        app.bus.on("failed", self._warn_of_death)

    # ── the handler and the hooks ─────────────────────────────────────────────────────────────

    @overload
    def handler(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> PoolTask[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def handler(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> PoolTask[P, R, Concatenate[Context, P], R]: ...
    @overload
    def handler(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> PoolTask[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> PoolTask[P, R, P, R]: ...
    def handler(self, function: Callable[..., Any], /) -> Any:
        """Register a function as the pool's handler, under the pool's name, and return the task.

        Raises InvalidInput if the pool already has a handler.
        """
        if self._task is not None:
            raise InvalidInput(f"pool {self.name!r} already has a handler: {self._task.handler!r}")
        kind: Any = partial(cast("Any", PoolTask), pool=self)
        made = self._app._register(function, name=self.name, kind=kind, queue=self.name, **self._options)
        self._task = cast("PoolTask[..., Any, ..., Any]", made)
        return made

    __call__ = handler

    @property
    def task(self) -> PoolTask[..., Any, ..., Any]:
        """The task of the pool's handler."""
        if self._task is None:
            raise InvalidInput(f"pool {self.name!r} has no handler yet: decorate one with @pool.handler")
        return self._task

    def on_dead_letter(self, function: H, /) -> H:
        """Register a function to call for each job that dies, and return the function.

        The function takes a DeadJob, or a Context and a DeadJob. It may be `async def` or `def`. Each call is a job of
        its own, and is retried like any job.
        """
        self._hook(self.dead_letter_task, dead_job_handler(self, function))
        return function

    def on_empty(self, function: E, /) -> E:
        """Register a function to call when the last waiting or running job of a lane finishes, and return the function.

        The function takes an Emptied, or a Context and an Emptied. It may be `async def` or `def`. Each call is a job
        of its own.
        """
        self._hook(self.empty_task, emptied_handler(function))
        return function

    def _hook(self, task: str, handler: Callable[..., Any]) -> None:
        if task in self._app.tasks:
            kind = task.removeprefix(f"{self.name}.")
            raise InvalidInput(f"pool {self.name!r} already has a function for {kind}; call yours from that one")
        self._app._register(handler, name=task, queue=self.name)

    @property
    def dead_letter_task(self) -> str:
        """The name of the task that runs the hook for dead jobs."""
        return f"{self.name}.on_dead_letter"

    @property
    def empty_task(self) -> str:
        """The name of the task that runs the hook for empty lanes."""
        return f"{self.name}.on_empty"

    @property
    def tells_of_deaths(self) -> bool:
        """Whether the pool has a hook for dead jobs."""
        return self.dead_letter_task in self._app.tasks

    def read(self, payload: bytes, serde: str) -> dict[str, Any]:
        """Decode a payload and return the handler's arguments. Raises PayloadInvalid."""
        return self.task.load(payload, serde)

    # ── the pool's settings in the store ──────────────────────────────────────────────────────

    @property
    def is_declared(self) -> bool:
        """Whether the settings in the code were written to the present store."""
        return self._declared == (self._app.store, self._on_empty)

    async def declare(self, within: object = None) -> None:
        """Write the pool's settings (lanes, `max_depth`, `on_empty`) to the store. Do nothing if this was done before.

        Settings that the code does not set are left as they are in the store. Raises LanesInUse if the store has a
        different number of lanes and live jobs. Raises InvalidInput if `within`, the caller's database connection, has
        an open transaction: the transaction may lock the store, so the settings cannot be written then.
        """
        if self.is_declared:
            return
        if within is not None and getattr(within, "in_transaction", True):
            raise InvalidInput(
                f"the settings of pool {self.name!r} are not in the store yet and cannot be written inside your "
                "transaction. Open the app before it: `async with app:`; without a loop: app.sync.run(pool.declare())."
            )
        store, on_empty = self._app.store, self._on_empty
        settings = await self._queue.settings()
        if changes := self._changes(settings):
            here = await self._app.connected()
            try:
                await here.control("queue", self.name, changes)
            except LanesInUse as error:
                error.add_note(
                    f"The code has lanes={self.lanes}. Keep lanes={error.lanes} until the pool is empty, or drain it: "
                    f"await app.pool_named({self.name!r}).drain()"
                )
                raise
        self._declared = (store, on_empty)

    async def prepare(self, *, patient: bool = False) -> None:
        """Write the pool's settings like `declare`. If the number of lanes cannot change yet, only log a warning.

        With `patient`, repeat the write a few times if the store fails. Raises StoreError if the store still fails.
        """
        for pause in (*PAUSES, None) if patient else (None,):
            try:
                return await self.declare()
            except LanesInUse as error:
                return self._warn_of_lanes(error)
            except StoreError as error:
                if pause is None:
                    raise
                log.warning("the settings of pool %s could not be written, trying again: %s", self.name, error)
                await asyncio.sleep(pause)

    def _warn_of_lanes(self, error: LanesInUse) -> None:
        kept = (self._app.store, error.lanes)
        if kept != self._kept:
            self._kept = kept
            text = "pool %s keeps its %s lanes until its %d live jobs have finished; the code has %d"
            log.warning(text, self.name, error.lanes or "no", error.live, self.lanes)

    @property
    def _on_empty(self) -> str | None:
        return self.empty_task if self.empty_task in self._app.tasks else None

    def _changes(self, stored: QueueSettings) -> dict[str, Any]:
        wanted: dict[str, Any] = {"lanes": self.lanes}
        if self._max_depth is not msgspec.UNSET:
            wanted["max_depth"] = self._max_depth
        elif stored.lanes is None and stored.max_depth is None:
            wanted["max_depth"] = DEFAULT_DEPTH
        if self._on_empty is not None:
            wanted["on_empty"] = self._on_empty
        changes = {name: value for name, value in wanted.items() if getattr(stored, name) != value}
        if "lanes" in changes:
            changes["paused_lanes"] = [lane for lane in stored.paused_lanes if lane < self.lanes]
        return changes

    # ── control ───────────────────────────────────────────────────────────────────────────────

    async def pause(self, lane: int | None = None) -> PoolStatus:
        """Stop claims from the pool, or from one lane, and return the new status.

        Running jobs continue, and jobs can still be enqueued.
        """
        await self._check_lane(lane)
        await self._queue.pause(lane)
        return await self.status()

    async def resume(self, lane: int | None = None) -> PoolStatus:
        """Allow claims again from the pool, or from one lane, and return the new status.

        Due times have not changed: a job in backoff still waits for its retry.
        """
        await self._check_lane(lane)
        await self._queue.resume(lane)
        return await self.status()

    async def status(self) -> PoolStatus:
        """Return the status of the pool and of each lane: paused, processing or idle, with the numbers of jobs."""
        await self.prepare()
        store = await self._app.connected()
        settings, lanes = await asyncio.gather(self._queue.settings(), store.lanes(self.name))
        return pool_status(self.name, settings.paused, lanes)

    async def drain(self, lane: int | None = None, *, progress: Progress | None = None) -> int:
        """Cancel every waiting job of one lane, or of all lanes, and return how many.

        Running jobs continue. Settings, pauses, counters and hook jobs are kept.
        """
        await self._check_lane(lane)
        return await self._queue.drain(progress, lane=lane)

    @property
    def queue(self) -> Queue:
        """The pool's queue, for other settings: limits, retention, dead letters."""
        return self._queue

    async def _check_lane(self, lane: int | None) -> None:
        await self.prepare()
        if lane is None:
            return
        there = (await self._queue.settings()).lanes or 0
        if not (_is_int(lane) and 0 <= lane < there):
            has = f"its lanes are 0 to {there - 1}" if there else "it has none until its live jobs have finished"
            raise InvalidInput(f"pool {self.name!r} has no lane {lane!r}: {has}")

    def _warn_of_death(self, event: LocalEvent) -> None:
        job = event.job
        if job.queue == self.name:
            log.warning(
                "pool %s: %s %s (seq %d, lane %s) is dead after %d attempts: %s",
                self.name,
                "hook" if job.spec.hook else "job",
                job.id,
                job.seq,
                job.lane,
                job.attempt,
                event.reason,
            )

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} with {self.lanes} lanes>"


def _is_int(value: object) -> bool:
    """Return whether a value is an int, but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
