"""Pools: a handler whose jobs stand in N ordered lanes, and control over them (WorkerPool).

A pool is a queue with lanes and one task. Its settings live in the store, shared by all processes; they are written
there when a process first uses the pool, so that what the code says and what the store does cannot drift apart
unnoticed. The number of lanes is guarded: partition keys would move to other lanes, so it changes only when nothing
waits or runs (BW-15).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

import msgspec

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput, LanesInUse, StoreError
from millrace.domain.settings import QueueSettings
from millrace.runtime.bus import LocalEvent
from millrace.runtime.pool_hooks import DeadJobHook, EmptiedHook, dead_job_handler, emptied_handler
from millrace.runtime.pool_status import PoolStatus, pool_status
from millrace.runtime.pool_task import PartitionKey, PoolTask, as_pool_task
from millrace.runtime.queue import Progress, Queue
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.runtime.app import App
    from millrace.runtime.context import Context

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=DeadJobHook)
E = TypeVar("E", bound=EmptiedHook)
# The last would do; the others let a strict checker see the parameters of a lambda as Any and not as unknown.
PartitionBy = (
    Callable[[Any], PartitionKey]
    | Callable[[Any, Any], PartitionKey]
    | Callable[[Any, Any, Any], PartitionKey]
    | Callable[..., PartitionKey]
)

MOST_LANES = 4_096
DEFAULT_DEPTH = 10_000  # jobs that wait in one lane (W-23)
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between tries of a worker that starts while its store is away

log = logging.getLogger("millrace.pool")


class Pool:
    """Made by `app.pool(name, lanes=…)`. It decorates the handler, which then enqueues; and it controls the lanes."""

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
                f"pool {name!r}: partition_by takes a job's arguments and answers its key; give a function"
            )
        if "queue" in options:
            raise InvalidInput(f"pool {name!r} is its own queue; leave out queue={options['queue']!r}")
        self.name = name
        self.lanes = lanes
        self.partition_by = partition_by
        self._max_depth = max_depth
        self._app = app
        self._options = options
        self._task: PoolTask[..., Any, ..., Any] | None = None
        self._queue = Queue(name, app.connected)
        self._declared: tuple[Store, str | None] | None = None  # the store that was told, and of which on_empty
        self._kept: tuple[Store, int | None] | None = None  # the store, and its lanes, that a warning told of
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
        """Make a function the pool's handler; it is the task of that name. A pool has one."""
        if self._task is not None:
            raise InvalidInput(f"pool {self.name!r} has a handler already: {self._task.handler!r}")
        made = self._app._register(function, name=self.name, kind=PoolTask, queue=self.name, **self._options)
        self._task = as_pool_task(made, self)
        return self._task

    __call__ = handler

    @property
    def task(self) -> PoolTask[..., Any, ..., Any]:
        if self._task is None:
            raise InvalidInput(f"pool {self.name!r} has no handler yet: decorate one with @pool.handler")
        return self._task

    def on_dead_letter(self, function: H, /) -> H:
        """Have a function told of each job that died: a job of its own, kept and retried like any (W-28, BW-11).

        It takes a DeadJob, or a Context and a DeadJob, and may be `async def` or `def`.
        """
        self._hook(self.dead_letter_task, dead_job_handler(self, function))
        return function

    def on_empty(self, function: E, /) -> E:
        """Have a function told each time the last job of a lane has ended: by a job of its own (W-29, BW-08).

        It takes an Emptied, or a Context and an Emptied, and may be `async def` or `def`.
        """
        self._hook(self.empty_task, emptied_handler(function))
        return function

    def _hook(self, task: str, handler: Callable[..., Any]) -> None:
        if task in self._app.tasks:
            kind = task.removeprefix(f"{self.name}.")
            raise InvalidInput(f"pool {self.name!r} has a function for {kind} already; let that one call yours too")
        self._app._register(handler, name=task, queue=self.name)

    @property
    def dead_letter_task(self) -> str:
        return f"{self.name}.on_dead_letter"

    @property
    def empty_task(self) -> str:
        return f"{self.name}.on_empty"

    @property
    def tells_of_deaths(self) -> bool:
        return self.dead_letter_task in self._app.tasks

    def read(self, payload: bytes, serde: str) -> dict[str, Any]:
        """The handler's arguments from what is stored. Raises PayloadInvalid."""
        return self.task.load(payload, serde)

    # ── what the store knows of it ────────────────────────────────────────────────────────────

    @property
    def is_declared(self) -> bool:
        return self._declared == (self._app.store, self._on_empty)

    async def declare(self, within: object = None) -> None:
        """Write the pool's settings to the store, once per process: its lanes, its depth, whom it tells when empty.

        Raises LanesInUse when the store has it with another number of lanes and jobs live there. What the code does
        not say is left as an operator has set it. It cannot be done `within` a transaction that may hold the store.
        """
        if self.is_declared:
            return
        if within is not None and getattr(within, "in_transaction", True):
            raise InvalidInput(
                f"pool {self.name!r} is not written to the store yet, and cannot be while your transaction is open. "
                "Open the app before it begins: `async with app:`; without a loop: app.sync.run(pool.declare())."
            )
        store, on_empty = self._app.store, self._on_empty
        settings = await self._queue.settings()
        if changes := self._changes(settings):
            here = await self._app.connected()
            try:
                await here.control("queue", self.name, changes)
            except LanesInUse as error:
                error.add_note(
                    f"The code says lanes={self.lanes}. Keep lanes={error.lanes} until the pool is empty, or drain it: "
                    f"await app.pool_named({self.name!r}).drain()"
                )
                raise
        self._declared = (store, on_empty)

    async def prepare(self, *, patient: bool = False) -> None:
        """Declare it, for who must work with the pool as it is: a worker which refused its jobs could never empty it.

        A worker is `patient`: a store that fails for a moment does not keep it from starting.
        """
        for pause in (*PAUSES, None) if patient else (None,):
            try:
                return await self.declare()
            except LanesInUse as error:
                return self._warn_of_lanes(error)
            except StoreError as error:
                if pause is None:
                    raise
                log.warning("pool %s could not be written down, and will be again: %s", self.name, error)
                await asyncio.sleep(pause)

    def _warn_of_lanes(self, error: LanesInUse) -> None:
        kept = (self._app.store, error.lanes)
        if kept != self._kept:
            self._kept = kept
            text = "pool %s keeps its %s lanes until its %d live jobs have ended; the code says %d"
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
        """Nothing of the pool or lane is claimed once this has returned. What runs goes on; enqueues are taken."""
        await self._check_lane(lane)
        await self._queue.pause(lane)
        return await self.status()

    async def resume(self, lane: int | None = None) -> PoolStatus:
        """Due times were kept: a job in backoff still waits for its time (BW-07)."""
        await self._check_lane(lane)
        await self._queue.resume(lane)
        return await self.status()

    async def status(self) -> PoolStatus:
        """Paused, processing or idle, what waits and what is done: of the pool, and of each lane."""
        await self.prepare()
        store = await self._app.connected()
        settings, lanes = await asyncio.gather(self._queue.settings(), store.lanes(self.name))
        return pool_status(self.name, settings.paused, lanes)

    async def drain(self, lane: int | None = None, *, progress: Progress | None = None) -> int:
        """Cancel every waiting job, of one lane or of all, and answer how many.

        What runs goes on; settings, pause and counters stay, and so do jobs that tell of deaths and empty lanes.
        """
        await self._check_lane(lane)
        return await self._queue.drain(progress, lane=lane)

    @property
    def queue(self) -> Queue:
        """The queue underneath, for its other settings: limits, retention, dead letters."""
        return self._queue

    async def _check_lane(self, lane: int | None) -> None:
        await self.prepare()
        if lane is None:
            return
        there = (await self._queue.settings()).lanes or 0
        if not (_is_int(lane) and 0 <= lane < there):
            has = f"its lanes are 0 to {there - 1}" if there else "as long as its live jobs have not ended, it has none"
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
    """True is no number of lanes."""
    return isinstance(value, int) and not isinstance(value, bool)
