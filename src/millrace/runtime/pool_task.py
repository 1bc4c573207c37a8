"""The handler of a pool, and what producers do with it: a task whose jobs stand in lanes.

It is an ordinary task on the pool's queue. What it adds: each job is given its partition key, answers say where it
stands, and a producer may wait for room in a full lane.
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

from millrace.domain.errors import DeadLettersFull, InvalidInput, PayloadInvalid, QueueFull
from millrace.domain.hints import meant
from millrace.domain.job import Spec
from millrace.domain.line import instance_id, lane_of
from millrace.domain.request import Enqueued
from millrace.runtime.duration import Duration, optional_milliseconds
from millrace.runtime.options import JobKeywords, Options, TaskOptions
from millrace.runtime.task import FunctionTask, saying_how_many

if TYPE_CHECKING:
    from millrace.runtime.pool import Pool
    from millrace.runtime.pool_sync import SyncPoolTask

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
D = TypeVar("D")
A = TypeVar("A")
T = TypeVar("T", bound="PoolTask[Any, Any, Any, Any]")
PartitionKey = str | int | UUID | None

MOST_AT_ONCE = 10_000  # jobs that one all-or-nothing enqueue_many takes
FIRST_LOOK, SLOWEST_LOOK = 0.01, 0.5


class Placed(Enqueued, frozen=True, gc=False, omit_defaults=True):
    """The answer to an enqueue into a pool: also its lane, its position there (0 runs next), and the lane's depth.

    A duplicate is an answer too, about a job that stands where it stands: it has no position.
    """

    pool: str = ""

    @property
    def instance(self) -> str | None:
        return None if self.lane is None else instance_id(self.pool, self.lane)


class PoolJobKeywords(JobKeywords, total=False):
    """What `handle.options(…)` takes in a pool."""

    partition: PartitionKey  # jobs of one key run in order; None: whichever lane's turn it is
    wait_for_room: Duration | None  # how long an enqueue into a full lane waits; None: for ever


class PoolOptions(Options[T], frozen=True, kw_only=True, eq=False):
    """The options of a pool's handler to look at; called, the same handler with others for what it enqueues."""

    def __call__(self, **changes: Unpack[PoolJobKeywords]) -> T:
        return self.task.bound(changes)


class PoolTask(FunctionTask[P, R, Q, D], Generic[P, R, Q, D]):
    """Made by `@app.pool(…)`. Its `pool` pauses, resumes, drains and tells the status."""

    pool: Pool
    _shape: inspect.Signature  # the handler's, without its context
    _keyed = False  # the caller has said which partition, or that there is none
    _patience: float = 0.0  # seconds that an enqueue waits for room

    @property
    def options(self) -> PoolOptions[Self]:
        """What the handler is set to. Call it to set something else for some jobs: `handle.options(partition=…)`."""
        fields = {name: getattr(self._options, name) for name in TaskOptions.__struct_fields__}
        return PoolOptions(task=self, **fields)

    def bound(self, changes: Mapping[str, Any]) -> Self:
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
                f"options of pool {self.name!r}: no room can come inside your transaction, because nobody else writes "
                "before you commit. Leave out wait_for_room, and on QueueFull roll back and try the whole again."
            )
        return twin

    def _refuse(self, changes: Mapping[str, Any]) -> None:
        where = f"options of pool {self.name!r}"
        if "queue" in changes:
            raise InvalidInput(f"{where}: its jobs stand in its own lanes, so they cannot go to another queue")
        if "partition" in changes and "group" in changes:
            raise InvalidInput(f"{where}: partition and group are the same thing here; give one of them")
        known = PoolJobKeywords.__annotations__
        for name in changes:
            if name not in known:
                raise InvalidInput(f"{where}: there is no option {name!r}. {meant(name, known)}")

    # ── producing ─────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Placed:
        """Put one job in. Once this returns, the job is kept; the answer says where it stands (W-20).

        A full lane raises QueueFull, unless the caller waits: `handle.options(wait_for_room=30).enqueue(…)`.
        """
        if not self.pool.is_declared:
            self.spec(*args, **kwargs)  # what is wrong with it shows before any I/O
        await self.pool.declare(self.connection)
        plain = super().enqueue
        return self.placed(await self._with_room(lambda: plain(*args, **kwargs)))

    async def enqueue_many(  # type: ignore[override]  # a list of a narrower kind is what callers want here
        self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, chunk: int | None = None
    ) -> list[Placed]:
        """Put many jobs in, all or nothing, with consecutive seqs; one answer per item (W-22).

        At most 10,000 at once. With `chunk`, as many as there are: all or nothing for each chunk, one after the other.
        """
        await self.pool.declare(self.connection)
        plain = super().enqueue_many
        if chunk is not None and (chunk < 1 or not self._patience):
            return [self.placed(answer) for answer in await plain(items, chunk=chunk)]
        answers: list[Placed] = []
        rest = iter(items)
        with saying_how_many(answers):
            while part := list(islice(rest, MOST_AT_ONCE + 1 if chunk is None else chunk)):
                if chunk is None:
                    self.refuse_too_many(part)
                done = await self._with_room(partial(plain, part, chunk=len(part)), part)
                answers += map(self.placed, done)
        return answers

    @property
    def sync(self) -> SyncPoolTask[P, R]:
        """The same for programs without an event loop: `handle.sync.enqueue(…)`."""
        from millrace.runtime.pool_sync import SyncPoolTask

        return SyncPoolTask(self, self._app.sync)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue and wait for the result, which comes when the lane gets to it (R-04)."""
        await self.pool.declare(self.connection)
        plain = super().call
        return await self._with_room(lambda: plain(*args, **kwargs))

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> Spec:
        with self._saying_which():
            return self._routed(super().spec(*args, **kwargs))

    def _specs(self, items: list[Mapping[str, Any] | tuple[Any, ...]], first: int) -> list[Spec]:
        with self._saying_which():
            return [self._routed(spec) for spec in super()._specs(items, first)]

    def refuse_too_many(self, items: Sequence[Any]) -> None:
        if len(items) > MOST_AT_ONCE:
            raise InvalidInput(
                f"pool {self.name!r} takes at most {MOST_AT_ONCE:,} jobs as one step, and more were given. Nothing was "
                "enqueued. Pass chunk=1_000 to enqueue them in steps, each all or nothing."
            )

    # ── where a job goes ──────────────────────────────────────────────────────────────────────

    def _routed(self, spec: Spec) -> Spec:
        """The spec with its partition key, and with the task that is told if the job dies."""
        changes: dict[str, Any] = {}
        if self.pool.partition_by is not None and not self._keyed:
            changes["group"] = self._partition(spec)
        if spec.on_dead_letter is None and self.pool.tells_of_deaths:
            changes["on_dead_letter"] = self.pool.dead_letter_task
        return msgspec.structs.replace(spec, **changes) if changes else spec

    def _partition(self, spec: Spec) -> str | None:
        """What `partition_by` says of the arguments, which it gets as the handler will: decoded, with defaults."""
        partition_by = cast("Callable[..., object]", self.pool.partition_by)
        bound = self._shape.bind(**self.load(spec.payload, spec.serde))
        bound.apply_defaults()
        try:
            key = partition_by(*bound.args, **bound.kwargs)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise PayloadInvalid(f"pool {self.name!r}: partition_by failed for this job: {text}") from error
        return as_key(f"what partition_by of pool {self.name!r} answers", key)

    def placed(self, answer: Enqueued) -> Placed:
        """The answer of the store, with the name of the pool."""
        return Placed(**msgspec.structs.asdict(answer), pool=self.name)

    @contextmanager
    def _saying_which(self) -> Iterator[None]:
        """A refused payload says which pool refused it, and for which lane (W-19)."""
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
        """What `enqueue` answers, asking again while the lane is full and the caller has patience.

        The enqueue itself is the question, so nobody is promised room that another producer then takes. Nothing was
        written when it raised QueueFull, so asking again writes nothing twice.
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
            await asyncio.sleep(min(left, look * random.uniform(0.8, 1.2)))  # so that producers do not ask in step
            look = min(look * 1.5, SLOWEST_LOOK)

    def _never_fits(self, part: Sequence[Any], full: QueueFull) -> bool:
        """More jobs at once for one lane than it takes when it is empty."""
        if len(part) <= full.max_depth:
            return False
        lanes = Counter(
            None if spec.group is None else lane_of(spec.group, self.pool.lanes) for spec in self._specs([*part], 0)
        )
        anywhere = lanes.pop(None, 0)
        room = sum(max(0, full.max_depth - lanes[lane]) for lane in range(self.pool.lanes))
        return anywhere > room or max(lanes.values(), default=0) > full.max_depth


def as_key(what: str, key: object) -> str | None:
    """A partition key as the text that is hashed: the same in every process and release."""
    match key:
        case None | str():
            return key
        case bool():
            pass
        case int() | UUID():
            return str(key)
    raise InvalidInput(f"{what} must be text, an integer, a UUID, or None for no partition; not {key!r}")


def as_pool_task(made: FunctionTask[..., Any, ..., Any], pool: Pool) -> PoolTask[..., Any, ..., Any]:
    task = cast("PoolTask[..., Any, ..., Any]", made)
    task.pool = pool
    whole = inspect.signature(task.handler)
    arguments = [one for one in whole.parameters.values() if one.name != task.context_parameter]
    task._shape = whole.replace(parameters=arguments)
    return task
