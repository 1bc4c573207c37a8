"""Tasks: Python functions under stable names, with typed methods to enqueue their jobs.

The enqueue methods of a `Task[P, R]` take the function's parameters (without the context), and `call` returns the
function's result type. Calling the object that `app.task` returns calls the function itself.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

import msgspec

from millrace.app import result_wait
from millrace.app.connection import join
from millrace.app.enqueue_chunks import put_all
from millrace.app.handler.surroundings import is_async, within
from millrace.app.ids import new_ids, new_token
from millrace.app.job_handle import JobHandle
from millrace.app.job_status import JobStatus, parents_of
from millrace.app.options import NO_DEFAULTS, Options, TaskOptions, read_job_options
from millrace.app.payloads.inputs import split, with_inputs
from millrace.app.payloads.message import Message
from millrace.app.payloads.payload import Payload, Result, bind
from millrace.app.payloads.serde import TypedSerde
from millrace.app.payloads.signature import read_signature
from millrace.domain.errors import InvalidInput, PayloadInvalid, ResultExpired
from millrace.domain.instant import as_milliseconds
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued
from millrace.domain.rules.check import Checked, check_payload, check_spec, specs_like
from millrace.domain.rules.precedence import NAMES, is_explicit
from millrace.store.protocol import Ending

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.handler.context import Context
    from millrace.app.handler.injection import Injection
    from millrace.app.host import Middleware
    from millrace.app.sync.app import SyncTask
    from millrace.store.protocol import Within

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
D = TypeVar("D")

CHUNK = 2_000
Item = Mapping[str, Any] | tuple[Any, ...] | Spec


class Task(Generic[P, R]):
    """A registered task, made by `@app.task`. A task object is immutable: `options(…)` returns another one."""

    def __init__(
        self,
        app: App,
        name: str,
        handler: Callable[..., Any],
        options: TaskOptions,
        template: Spec,
        *,
        layers: tuple[Middleware, ...] = (),
        inherits: bool = True,
    ) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), handler, updated=())
        self.name = name
        self.handler = handler if app.surroundings is None else within(app.surroundings, handler)
        self.is_async = is_async(handler)
        self._app = app
        self._signature = read_signature(
            name,
            handler,
            message=isinstance(app.serdes.get(template.payload_serde), TypedSerde),
            message_back=isinstance(app.serdes.get(template.result_serde), TypedSerde),
            keeps_result=template.keep_result != 0,
        )
        self.context_parameter = self._signature.context
        self.injection: Injection | None = None
        if self._signature.injected:
            from millrace.app.handler.injection import Injection

            self.injection = Injection(
                name,
                self._signature.injected,
                is_async=self.is_async,
                overrides=app.dependency_overrides,
                surroundings=app.surroundings or nullcontext,
            )
        self.layers = layers  # the task's own middleware
        self.inherits = inherits  # whether the middleware of the app and the worker applies too
        self._options = options
        self._template = template
        self._is_valid = False  # whether a spec made from the template was validated
        self._named = False  # whether the caller has set an id
        self.at: datetime | None = None  # when its jobs are due, if the caller has set it
        self._reruns: bool | None = None  # `rerun_expired`, if the caller has set it
        self.connection: object = None  # the caller's connection, whose transaction its enqueues join
        self._payloads: dict[str, Payload | Message] = {}
        self._results: dict[str, Result] = {}
        self._payload = self._make_payload(template.serde)
        self._make_result(template.serde)

    @property
    def options(self) -> Options[Self]:
        """The options of the task. Call it to set other options for some jobs: `task.options(delay="1m")`."""
        fields = {name: getattr(self._options, name) for name in TaskOptions.__struct_fields__}
        return Options(task=self, **fields)

    @property
    def explicit_options(self) -> dict[str, Any]:
        """The options with defaults, such as `timeout`, that the task itself sets: their values by name."""
        return {name: getattr(self._template, name) for name in NAMES if is_explicit(self._template, name)}

    @property
    def lifespan_factory(self) -> Callable[[], AbstractAsyncContextManager[Any]] | None:
        """The lifespan of the task's app, as a worker enters it; None if the app has none."""
        return self._app.lifespan_factory

    @property
    def injected_parameters(self) -> frozenset[str]:
        """The names of the parameters that are marked with Depends, which producers do not pass."""
        return frozenset(self._signature.injected)

    @property
    def named(self) -> bool:
        """Whether the caller has set the job's id with `options(id=…)`."""
        return self._named

    def bound(self, changes: Mapping[str, Any]) -> Self:
        """Return the same task with other options. Users call `options(…)` instead."""
        twin = copy.copy(self)
        if "within" in changes:
            changes = dict(changes)
            twin.connection = changes.pop("within")
        defaults = self._app.defaults_of(changes["queue"]) if "queue" in changes else NO_DEFAULTS
        twin._options, twin._template = read_job_options(self.name, changes, self._options, self._template, defaults)
        if self._signature.result is msgspec.UNSET and twin._template.keep_result != 0:
            raise InvalidInput(f"options of task {self.name!r}: its result cannot be stored, so keep_result must be 0")
        twin._is_valid = False
        twin._named = self._named or "id" in changes
        if "at" in changes or "delay" in changes:
            twin.at = changes.get("at")
        twin._reruns = changes.get("rerun_expired", self._reruns)
        return twin

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue one job and return its handle. Once this returns, the job is stored.

        A duplicate raises no exception: see `is_duplicate` of the handle.
        """
        if self.at is not None:
            return await (await self.due()).enqueue(*args, **kwargs)
        specs = self.checked_specs(*args, **kwargs)  # raises for invalid arguments before any I/O
        put_in = await self._put_in()
        [answer] = await put_in(specs)
        return JobHandle(self._app, answer.id, answer, self)

    async def due(self) -> Self:
        """Return the task with the delay until its `at`, by the store's clock; the task itself if it has no `at`.

        The clocks of the caller and of the store may disagree, so a delay is stored, as for `options(delay=…)`.
        """
        if self.at is None:
            return self
        store = await self._app.connected()
        delay = as_milliseconds(self.at) - await store.now()
        return self.bound({"delay": timedelta(milliseconds=max(0, delay))})

    async def _put_in(self) -> Callable[[list[Spec]], Awaitable[list[Enqueued]]]:
        """Return the function that enqueues specs, either in the store or in the caller's transaction.

        The store is opened unless the caller's transaction is used.
        """
        joined = await self._app.connected() if self.connection is None else self.join(self.connection)
        tracing = self._app.tracing
        return joined.enqueue if tracing is None else tracing.around(joined.enqueue)

    def join(self, connection: object) -> Within:
        """Return the store operations that run inside the open transaction of `connection`.

        Raises InvalidInput if the store cannot take part in a caller's transaction.
        """
        return join(self._app.store, connection)

    @property
    def sync(self) -> SyncTask[P, R]:
        """The blocking API, for programs without an event loop: `task.sync.enqueue(…)`, `task.sync.call(…)`."""
        return self._app.sync.task(self)

    async def enqueue_many(self, items: Iterable[Item], *, chunk: int = CHUNK) -> list[JobHandle[R]]:
        """Enqueue many jobs and return one handle per item.

        An item has the parameters of one job, as a dict by name or a tuple by position. For a job with options of its
        own, it is a spec of this task: `task.options(id="a").spec(…)`. The items are enqueued in chunks of `chunk`
        (default 2,000) jobs, each chunk all or nothing. If an item is refused, the chunks before it are already
        enqueued. A note on the exception has the number of their jobs.
        """
        if self.at is not None:
            return await (await self.due()).enqueue_many(items, chunk=chunk)
        answers: list[Enqueued] = []
        with noting_enqueued(answers):
            chunks = self.chunks(items, chunk)
            first = next(chunks, None)  # raises for invalid items before any I/O
            if first is not None:
                put_in = await self._put_in()
                direct = self.connection is None and self._app.tracing is None
                store = self._app.store if direct else None
                await put_all(chain([first], chunks), put_in, store, chunk, answers)
        app = self._app
        return [JobHandle(app, answer.id, answer, self) for answer in answers]

    def chunks(self, items: Iterable[Item], chunk: int) -> Iterator[list[Spec]]:
        """Yield the specs of many jobs in lists of up to `chunk`. An invalid item raises when its chunk is built."""
        if self._named:
            raise InvalidInput(
                f"many jobs of task {self.name!r} cannot share one id; pass items that are specs with their own ids: "
                "task.options(id=…).spec(…)"
            )
        if chunk < 1:
            raise InvalidInput(f"chunk must be at least 1, not {chunk!r}")
        rest, done = iter(items), 0
        while part := list(islice(rest, chunk)):
            yield self._specs(part, done)
            done += len(part)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue one job, wait until it has finished, and return its result.

        The wait is limited to 30 s. `options(wait=…)` sets another limit; None means no limit.

        Raises WaitTimeout (the job continues), JobFailed, JobCancelled or ResultExpired. For a duplicate, wait for the
        existing job, or return its stored result. A completed job whose result has expired runs again; with
        `options(rerun_expired=False)`, ResultExpired is raised instead.
        """
        if self.at is not None:
            return await (await self.due()).call(*args, **kwargs)
        spec = self._spec(*args, **kwargs)
        if self._named and self._reruns is None:
            spec = msgspec.structs.replace(spec, rerun_expired=True)
        self.refuse_within()
        store = await self._app.connected()
        tracing = self._app.tracing
        put_in = store.enqueue if tracing is None else tracing.around(store.enqueue)
        async with store.watch(spec.id) as watch:
            [answer] = await put_in([spec])
            if answer.status == "completed":
                return self.load_result(answer.result)
            if answer.result_expired or not answer.generation:
                raise ResultExpired(answer.id)
            if answer.id == spec.id:
                wait_for = result_wait.answered if answer.status == "queued" else result_wait.finished
                return self._result_of(await wait_for(store, watch, *self._awaited(answer)), spec)
        async with store.watch(answer.id) as watch:  # another job holds the key: wait for that one
            return self._result_of(await result_wait.finished(store, watch, *self._awaited(answer)), spec)

    def refuse_within(self) -> None:
        """Raise InvalidInput if the task has `within`: a call cannot wait for a job of an open transaction."""
        if self.connection is not None:
            raise InvalidInput(
                "call would wait for a job that no worker sees before you commit. Enqueue it within the transaction, "
                "commit, then wait: await job.result(wait=30)"
            )

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> Spec[R]:
        """Return the spec that `enqueue` would store, for `app.enqueue([…])` and `ctx.carry(…)`.

        An argument can be the output of another job: `album.spec(photo.output)` runs after `photo`, and gets its
        result. Raises PayloadInvalid if the arguments do not fit the handler.
        """
        if self.connection is not None:
            raise InvalidInput(
                f"task {self.name!r}: a spec cannot have `within`: it would be enqueued outside of your transaction. "
                "Pass within=… to the enqueue: app.enqueue([…], within=…) or flow.enqueue(within=…)"
            )
        return self._spec(*args, **kwargs)

    def _spec(self, *args: P.args, **kwargs: P.kwargs) -> Spec[R]:
        if self.at is not None:
            raise InvalidInput(
                f"task {self.name!r}: a spec cannot have `at`: the store's clock measures the delay at the enqueue. "
                "Pass delay=…, or await task.options(at=…).enqueue(…)"
            )
        values, inputs = bind(self.name, self._signature, args, kwargs), None
        try:
            payload = self._payload.pack(values)
        except PayloadInvalid as error:
            payload, inputs = self._pack_without_inputs(values, error)
        if self._named:
            spec = msgspec.structs.replace(self._template, payload=payload, token=new_token())
        else:
            [job_id] = new_ids(self._app.store.ids, 1)
            spec = msgspec.structs.replace(self._template, id=job_id, payload=payload, token=job_id)
        return spec if inputs is None else with_inputs(spec, inputs)

    def _pack_without_inputs(self, values: dict[str, Any], error: PayloadInvalid) -> tuple[bytes, dict[str, Any]]:
        """Return the payload without the arguments that stand for results of other jobs, and these arguments by name.

        Raises `error`, with which the whole payload was refused, if there is no such argument.
        """
        known, inputs = split(values)
        signature = self._signature
        unknown = signature.extra is msgspec.UNSET and inputs.keys() - signature.kinds.keys()
        serde = self._app.serdes.get(self._template.payload_serde)
        if not inputs or unknown or isinstance(serde, TypedSerde):
            raise error
        key = f"{serde.name} without {sorted(inputs)}"  # making one is slow
        if key in self._payloads:
            return self._payloads[key].pack(known), inputs
        kinds = {name: kind for name, kind in signature.kinds.items() if name not in inputs}
        rest = msgspec.structs.replace(
            signature, names=tuple(kinds), kinds=kinds, optional=signature.optional - inputs.keys()
        )
        self._payloads[key] = Payload(self.name, rest, serde)
        return self._payloads[key].pack(known), inputs

    def checked_specs(self, *args: P.args, **kwargs: P.kwargs) -> Checked:
        """Return a list with the spec that `enqueue` stores, validated.

        Ids are generated, and all other fields but the payload are those of the template. So the first spec is
        validated as a whole, and of the following specs only the payload. A pool derives the group from the arguments:
        such a spec is validated as a whole.
        """
        spec = self._spec(*args, **kwargs)
        if self._is_valid and spec.group == self._template.group and spec.after is self._template.after:
            check_payload(spec)
        else:
            check_spec(spec)
            self._is_valid = True
        return Checked([spec])

    def load(self, payload: bytes, serde: str) -> dict[str, Any]:
        """Decode a payload and return the handler's arguments by name, validated. Raises PayloadInvalid.

        `serde` is the serde of the job's spec: one name, or "json/msgpack" if payload and result have different serdes.
        """
        return (self._payloads.get(serde) or self._make_payload(serde)).unpack(payload)

    def dump_result(self, value: Any, serde: str | None = None) -> bytes:
        """Return the encoded result.

        `serde` is the serde of the job's spec; None means the task's. Raises ResultInvalid.
        """
        serde = serde or self._template.serde
        return (self._results.get(serde) or self._make_result(serde)).dump(value)

    def load_result(self, data: bytes | None, serde: str | None = None) -> R:
        """Return the decoded result, converted to the return annotation. Raises PayloadInvalid.

        Returns None if `data` is None, which means that the job was settled without a result.
        """
        if data is None:
            return cast("R", None)
        serde = serde or self._template.serde
        return cast("R", (self._results.get(serde) or self._make_result(serde)).load(data))

    async def parents_of(self, job: Job) -> list[JobStatus]:
        """Return the status of each job that this one ran after. Handlers call `ctx.parents` instead."""
        return await parents_of(self._app, job)

    def parents_of_sync(self, job: Job) -> list[JobStatus]:
        """Return the status of each job that this one ran after, from a thread without an event loop."""
        return self._app.sync.run(parents_of(self._app, job))

    def retries(self, error: BaseException) -> bool:
        """Return whether the options `retry_on` and `dont_retry_on` allow another attempt after this exception."""
        options = self._options
        if isinstance(error, options.dont_retry_on):
            return False
        return options.retry_on is None or isinstance(error, options.retry_on)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} on queue {self._options.queue!r}>"

    def _specs(self, items: list[Item], first: int) -> list[Spec]:
        try:
            values = [self._by_name(item) for item in items]
        except _HasOptions:
            return [self._spec_of(item, number) for number, item in enumerate(items, first)]
        payloads = self._payload.pack_many(values, first)
        return specs_like(self._template, new_ids(self._app.store.ids, len(items)), payloads)

    def _by_name(self, item: Item) -> dict[str, Any]:
        if type(item) is dict:
            return item
        if isinstance(item, tuple):
            return bind(self.name, self._signature, item, {})
        if isinstance(item, Mapping):
            return dict(item)
        if isinstance(item, Spec):
            raise _HasOptions
        raise InvalidInput(
            f"task {self.name!r}: an item is a dict by name, a tuple by position or a spec of the task, not {item!r}"
        )

    def _spec_of(self, item: Item, number: int) -> Spec:
        """Return the spec of one item of a call in which some items are specs. `number` is that of the item."""
        if isinstance(item, Spec):
            if item.task != self.name:
                raise InvalidInput(f"item {number} is a spec of task {item.task!r}, not of {self.name!r}")
            return item
        make: Callable[..., Spec] = self._spec
        try:
            return make(**self._by_name(item))
        except PayloadInvalid as error:
            raise PayloadInvalid(f"item {number}: {error}") from error.__cause__

    def _awaited(self, answer: Enqueued) -> tuple[str, int, float | None]:
        wait = self._options.wait
        return answer.id, answer.generation, None if wait is None else wait / 1000

    def _result_of(self, done: Job | Ending, asked: Spec) -> R:
        if isinstance(done, Ending):
            return self.load_result(done.result, asked.serde)
        return self.load_result(result_wait.result_of(done), done.spec.serde)

    def _make_payload(self, serde: str) -> Payload | Message:
        known = self._app.serdes.get(serde.partition("/")[0])
        kind = Message if isinstance(known, TypedSerde) else Payload
        made = self._payloads[serde] = kind(self.name, self._signature, known)  # type: ignore[arg-type]
        return made

    def _make_result(self, serde: str) -> Result:
        known = self._app.serdes.get(serde.rpartition("/")[2])
        made = self._results[serde] = Result(self.name, self._signature.result, known)
        return made


class FunctionTask(Task[P, R], Generic[P, R, Q, D]):
    """A task that can be called like its function. Such a call runs the function and enqueues nothing."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> D:
        return cast("D", self.handler(*args, **kwargs))


class TaskDecorator(Protocol):
    """The decorator that `app.task(…)` returns when it is called with options."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> FunctionTask[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> FunctionTask[P, R, Concatenate[Context, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> FunctionTask[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTask[P, R, P, R]: ...


class _HasOptions(Exception):
    """Raised for an item that is a spec: the specs of these items are made one by one."""


@contextmanager
def noting_enqueued(answers: Sequence[object]) -> Iterator[None]:
    """Add the number of jobs that are already enqueued as a note to an exception raised inside the `with` block."""
    try:
        yield
    except Exception as error:
        if answers:
            error.add_note(f"{len(answers):,} jobs of this call were enqueued before the chunk that failed.")
        raise


def default_name(handler: Callable[..., Any]) -> str:
    """Return the function's name without its module, so that a function that moves to another file keeps its task name.

    Raises InvalidInput for a function without a name, such as a lambda.
    """
    name: str = getattr(handler, "__qualname__", "")
    name = name.rpartition("<locals>.")[2]
    if not name or "<" in name:
        raise InvalidInput(f"{handler!r} has no name to store in a job; pass one: app.task(name=…)")
    return name
