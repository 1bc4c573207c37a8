"""The task of a pool, with which producers enqueue jobs.

It is an ordinary task on the pool's queue, with three additions. Each job gets its partition key. Its handle
has the lane and the position. A producer can wait until a full lane has room.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast
from uuid import UUID

import msgspec

from millrace.app.duration import Duration, optional_milliseconds
from millrace.app.job_handle import JobHandle
from millrace.app.options import JobKeywords, Options, TaskOptions
from millrace.app.payloads.inputs import has_inputs
from millrace.app.task import FunctionTask, Item, noting_enqueued
from millrace.domain.errors import DeadLettersFull, InvalidInput, PayloadInvalid, QueueFull, did_you_mean
from millrace.domain.job import Spec
from millrace.domain.rules.check import Checked
from millrace.domain.rules.lanes import instance_id, lane_of

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.host import Middleware
    from millrace.app.pools.pool import Pool
    from millrace.app.pools.sync import SyncPoolTask

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
D = TypeVar("D")
A = TypeVar("A")
T = TypeVar("T", bound="PoolTask[Any, Any, Any, Any]")
PartitionKey = str | int | UUID | None

MOST_AT_ONCE = 10_000  # limit of one all-or-nothing enqueue_many
FIRST_LOOK, SLOWEST_LOOK = 0.01, 0.5


class PoolJobKeywords(JobKeywords, total=False):
    """The keywords of `handle.options(…)`, where `handle` is the handler of a pool."""

    partition: PartitionKey  # jobs with the same key run in order; None: lanes are assigned in turn
    wait_for_room: Duration | None  # how long an enqueue into a full lane waits; None: without a limit


class PoolOptions(Options[T], frozen=True, kw_only=True, eq=False):
    """The options of a pool's handler, as attributes.

    Calling this object returns the same handler with other options.
    """

    def __call__(self, **changes: Unpack[PoolJobKeywords]) -> T:
        return self.task.bound(changes)


class PoolTask(FunctionTask[P, R, Q, D], Generic[P, R, Q, D]):
    """The handler of a pool, as `@app.pool(…)` returns it. Its attribute `pool` controls the lanes."""

    def __init__(
        self,
        app: App,
        name: str,
        handler: Callable[..., Any],
        options: TaskOptions,
        template: Spec,
        *,
        pool: Pool,
        layers: tuple[Middleware, ...] = (),
        inherits: bool = True,
    ) -> None:
        super().__init__(app, name, handler, options, template, layers=layers, inherits=inherits)
        self.pool = pool
        whole = inspect.signature(handler)
        others = {self.context_parameter, *self.injected_parameters}
        arguments = [one for one in whole.parameters.values() if one.name not in others]
        self._shape = whole.replace(parameters=arguments)  # the handler's signature with the payload's parameters only
        self._keyed = False  # whether the caller has set `partition`, possibly to None
        self._patience = 0.0  # seconds that an enqueue waits for room

    @property
    def options(self) -> PoolOptions[Self]:
        """The options of the handler. Call it to set other options for some jobs: `handle.options(partition=…)`."""
        fields = {name: getattr(self._options, name) for name in TaskOptions.__struct_fields__}
        return PoolOptions(task=self, **fields)

    def bound(self, changes: Mapping[str, Any]) -> Self:
        """Return the same task with other options. Users call `options(…)` instead."""
        changes = dict(changes)
        self._refuse(changes)
        if "partition" in changes:
            changes["group"] = as_key(f"partition of pool {self.name!r}", changes.pop("partition"))
        patience = changes.pop("wait_for_room", msgspec.UNSET)
        twin = super().bound(changes)
        twin._keyed = self._keyed or "group" in changes
        if patience is not msgspec.UNSET:
            waits = optional_milliseconds("wait_for_room", patience)
            twin._patience = math.inf if waits is None else waits / 1000
        if twin._patience and twin.connection is not None:
            raise InvalidInput(
                f"options of pool {self.name!r}: wait_for_room does not work inside your transaction, because no other "
                "write happens before you commit. Remove it, and on QueueFull roll back and try again."
            )
        return twin

    def _refuse(self, changes: Mapping[str, Any]) -> None:
        where = f"options of pool {self.name!r}"
        if "queue" in changes:
            raise InvalidInput(f"{where}: its jobs run in the pool's lanes; remove queue=…")
        if "partition" in changes and "group" in changes:
            raise InvalidInput(f"{where}: partition and group are the same in a pool; pass only one of them")
        known = PoolJobKeywords.__annotations__
        for name in changes:
            if name not in known:
                raise InvalidInput(f"{where}: there is no option {name!r}. {did_you_mean(name, known)}")

    # ── producing ─────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue one job. Once this returns, the job is stored. The handle has the job's lane and position.

        Raises QueueFull if the lane is full. With `handle.options(wait_for_room=30)`, waits up to 30 s for room first.
        """
        if self.at is not None:
            return await (await self.due()).enqueue(*args, **kwargs)
        if not self.pool.is_declared:
            self._spec(*args, **kwargs)  # raises for invalid arguments before any I/O
        await self.pool.declare(self.connection)
        plain = super().enqueue
        return await self._with_room(lambda: plain(*args, **kwargs))

    async def enqueue_many(self, items: Iterable[Item], *, chunk: int | None = None) -> list[JobHandle[R]]:
        """Enqueue up to 10,000 jobs, all or nothing, with consecutive seqs. Return one handle per item.

        With `chunk`, enqueue any number of jobs in chunks of that size, one after the other, each all or nothing.
        """
        if self.at is not None:
            return await (await self.due()).enqueue_many(items, chunk=chunk)
        await self.pool.declare(self.connection)
        plain = super().enqueue_many
        if chunk is not None and (chunk < 1 or not self._patience):
            return await plain(items, chunk=chunk)
        jobs: list[JobHandle[R]] = []
        rest = iter(items)
        with noting_enqueued(jobs):
            while part := list(islice(rest, MOST_AT_ONCE + 1 if chunk is None else chunk)):
                if chunk is None:
                    self.refuse_too_many(part)
                jobs += await self._with_room(partial(plain, part, chunk=len(part)), part)
        return jobs

    @property
    def sync(self) -> SyncPoolTask[P, R]:
        """The blocking API, for programs without an event loop: `handle.sync.enqueue(…)`."""
        from millrace.app.pools.sync import SyncPoolTask

        return SyncPoolTask(self, self._app.sync)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue one job, wait for its result and return it. Jobs that are before it in its lane run first."""
        if self.at is not None:
            return await (await self.due()).call(*args, **kwargs)
        await self.pool.declare(self.connection)
        plain = super().call
        return await self._with_room(lambda: plain(*args, **kwargs))

    def _spec(self, *args: P.args, **kwargs: P.kwargs) -> Spec[R]:
        """Return the spec that `enqueue` would store, with its partition."""
        with self._saying_which():
            return self._routed(super()._spec(*args, **kwargs))

    def _specs(self, items: list[Item], first: int) -> list[Spec]:
        with self._saying_which():
            specs = super()._specs(items, first)
            # A call with specs among its items has made each spec by `spec`, which has routed it.
            return [self._routed(spec) for spec in specs] if isinstance(specs, Checked) else specs

    def refuse_too_many(self, items: Sequence[Any]) -> None:
        """Raise InvalidInput if one step would enqueue too many jobs."""
        if len(items) > MOST_AT_ONCE:
            raise InvalidInput(
                f"pool {self.name!r} accepts at most {MOST_AT_ONCE:,} jobs in one step, and there are more. Nothing "
                "was enqueued. Pass chunk=1_000 to enqueue them in steps, each all or nothing."
            )

    # ── where a job goes ──────────────────────────────────────────────────────────────────────

    def _routed(self, spec: Spec) -> Spec:
        """Return the spec with its partition key and the pool's `on_dead_letter` task, if the pool has them."""
        changes: dict[str, Any] = {}
        if self.pool.partition_by is not None and not self._keyed:
            changes["group"] = self._partition(spec)
        if spec.on_dead_letter is None and self.pool.tells_of_deaths:
            changes["on_dead_letter"] = self.pool.dead_letter_task
        return msgspec.structs.replace(spec, **changes) if changes else spec

    def _partition(self, spec: Spec) -> str | None:
        """Return the partition key that `partition_by` returns. Raises PayloadInvalid if that function fails.

        Like the handler, `partition_by` gets the decoded arguments, including defaults.
        """
        if has_inputs(spec):
            raise PayloadInvalid(
                f"pool {self.name!r}: partition_by needs all arguments, and one of them is the result of another job. "
                "Pass the partition key: options(partition=…)"
            )
        partition_by = cast("Callable[..., object]", self.pool.partition_by)
        bound = self._shape.bind(**self.load(spec.payload, spec.serde))
        bound.apply_defaults()
        try:
            key = partition_by(*bound.args, **bound.kwargs)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise PayloadInvalid(f"pool {self.name!r}: partition_by failed for this job: {text}") from error
        return as_key(f"the key from partition_by of pool {self.name!r}", key)

    @contextmanager
    def _saying_which(self) -> Iterator[None]:
        """Add the pool, and the lane if it is known, to a PayloadInvalid that is raised inside the `with` block."""
        try:
            yield
        except PayloadInvalid as error:
            error.pool = self.name
            if self._template.group is not None:
                error.lane = lane_of(self._template.group, self.pool.lanes)
                error.instance = instance_id(self.name, error.lane)
            raise

    # ── room ──────────────────────────────────────────────────────────────────────────────────

    async def _with_room(self, enqueue: Callable[[], Awaitable[A]], part: Sequence[Any] = ()) -> A:
        """Call `enqueue` and return its answer. While the lane is full, call it again until `wait_for_room` has passed.

        Raises QueueFull after that time, or at once if waiting cannot help. An enqueue that raises QueueFull has
        written nothing, so it is safe to repeat.
        """
        clock = asyncio.get_running_loop().time
        begun, look = clock(), FIRST_LOOK
        while True:
            try:
                return await enqueue()
            except QueueFull as full:
                left = begun + self._patience - clock()
                if not self._patience or isinstance(full, DeadLettersFull) or self._never_fits(part, full):
                    raise
                if left <= 0:
                    full.add_note(f"Waited {self._patience:g} s for room.")
                    raise
            await asyncio.sleep(min(left, look * random.uniform(0.8, 1.2)))  # random, so that producers spread out
            look = min(look * 1.5, SLOWEST_LOOK)

    def _never_fits(self, part: Sequence[Any], full: QueueFull) -> bool:
        """Return whether the jobs of `part`, which are enqueued in one call, would not fit even if all lanes were
        empty.
        """
        if len(part) <= full.max_depth:
            return False
        lanes = Counter(
            None if spec.group is None else lane_of(spec.group, self.pool.lanes) for spec in self._specs([*part], 0)
        )
        anywhere = lanes.pop(None, 0)
        room = sum(max(0, full.max_depth - lanes[lane]) for lane in range(self.pool.lanes))
        return anywhere > room or max(lanes.values(), default=0) > full.max_depth


def as_key(what: str, key: object) -> str | None:
    """Return the partition key `key` as text, or None for no key. `what` describes the key in error messages.

    Raises InvalidInput if the key is not text, an integer or a UUID. Only these types have the same text, and so the
    same lane, in every process and release.
    """
    match key:
        case None | str():
            return key
        case bool():
            pass
        case int() | UUID():
            return str(key)
    raise InvalidInput(f"{what} must be text, an integer, a UUID, or None for no partition; not {key!r}")
