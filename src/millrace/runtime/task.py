"""Tasks: a Python function under a stable name, and the typed ways to have it done.

A `Task[P, R]` takes the function's parameters (without the context) wherever it enqueues, and gives its result
where it waits for one. What `app.task` returns can also still be called as the function itself.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast

import msgspec

from millrace.domain.check import specs_like
from millrace.domain.errors import InvalidInput, ResultExpired
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued
from millrace.runtime import waiting
from millrace.runtime.chunks import put_all
from millrace.runtime.ids import new_ids, new_token
from millrace.runtime.joining import join
from millrace.runtime.options import Options, TaskOptions, read_job_options
from millrace.runtime.payload import Payload
from millrace.runtime.result import Result
from millrace.runtime.signature import read_signature
from millrace.store.protocol import Ending

if TYPE_CHECKING:
    from millrace.runtime.app import App
    from millrace.runtime.host import Middleware
    from millrace.runtime.sync import SyncTask
    from millrace.store.protocol import Within

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
D = TypeVar("D")

CHUNK = 2_000


class Task(Generic[P, R]):
    """Made by `@app.task`. Immutable: `options(…)` gives another one, bound to other options."""

    def __init__(self, app: App, name: str, handler: Callable[..., Any], options: TaskOptions, template: Spec) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), handler, updated=())
        self.name = name
        self.handler = handler
        self.is_async = _is_async(handler)
        self._app = app
        self._signature = read_signature(name, handler)
        self.context_parameter = self._signature.context
        self.layers: tuple[Middleware, ...] = ()  # its own middleware
        self.inherits = True  # and that of the app and the worker
        self._options = options
        self._template = template
        self._named = False  # has an id of the caller's
        self.connection: object = None  # of the caller's, whose transaction its enqueues are part of
        self._payloads: dict[str, Payload] = {}
        self._results: dict[str, Result] = {}
        self._payload = self._payload_with(options.serde)
        self._result_with(options.serde)

    @property
    def options(self) -> Options[Self]:
        """What the task is set to. Call it to set something else for some jobs: `task.options(delay="1m")`."""
        fields = {name: getattr(self._options, name) for name in TaskOptions.__struct_fields__}
        return Options(task=self, **fields)

    @property
    def named(self) -> bool:
        """Does it enqueue under an id of the caller's?"""
        return self._named

    def bound(self, changes: Mapping[str, Any]) -> Self:
        """The same task under other options; the way in for callers is `options(…)`."""
        twin = copy.copy(self)
        if "within" in changes:
            changes = dict(changes)
            twin.connection = changes.pop("within")
        twin._options, twin._template = read_job_options(self.name, changes, self._options, self._template)
        twin._named = self._named or "id" in changes
        return twin

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Put one job in. Once this returns, the job is kept, at the durability that the store states.

        A duplicate is an answer, never an exception (R-03): look at `status`.
        """
        spec = self.spec(*args, **kwargs)  # what is wrong with it shows before any I/O
        put_in = await self._put_in()
        [answer] = await put_in([spec])
        return answer

    async def _put_in(self) -> Callable[[list[Spec]], Awaitable[list[Enqueued]]]:
        """The store's enqueue; or that of the caller's transaction, which must not wait for the store to open."""
        joined = await self._app.connected() if self.connection is None else self.join(self.connection)
        tracing = self._app.tracing
        return joined.enqueue if tracing is None else tracing.around(joined.enqueue)

    def join(self, connection: object) -> Within:
        """Steps in the transaction that is open on `connection`."""
        return join(self._app.store, connection)

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same for programs without an event loop: `task.sync.enqueue(…)`, `task.sync.call(…)`."""
        return self._app.sync.task(self)

    async def enqueue_many(
        self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, chunk: int = CHUNK
    ) -> list[Enqueued]:
        """Put many jobs in; each item holds one job's parameters, as a dict by name or a tuple by position.

        All or nothing for each `chunk` of items (2,000 unless told otherwise), one after the other: when an item is
        refused, the chunks before its own are in already, and a note on the error says how many jobs that is.
        """
        answers: list[Enqueued] = []
        with saying_how_many(answers):
            chunks = self.chunks(items, chunk)
            first = next(chunks, None)  # what is wrong with it shows before any I/O
            if first is not None:
                put_in = await self._put_in()
                store = self._app.store if self.connection is None else None
                await put_all(chain([first], chunks), put_in, store, chunk, answers)
        return answers

    def chunks(self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]], chunk: int) -> Iterator[list[Spec]]:
        """The specs of many jobs, so many at a time; an item at fault shows when its chunk's turn comes."""
        if self._named:
            raise InvalidInput(f"one id cannot name many jobs of task {self.name!r}: leave it out, or enqueue singly")
        if chunk < 1:
            raise InvalidInput(f"chunk must be at least 1, not {chunk!r}")
        rest, done = iter(items), 0
        while part := list(islice(rest, chunk)):
            yield self._specs(part, done)
            done += len(part)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue and wait for the result: 30 s, or `options(wait=…)`; None waits for ever (R-04).

        Raises WaitTimeout (the job goes on), JobFailed, JobCancelled or ResultExpired. A duplicate waits for the job
        that is there, and answers at once with a result that is kept.
        """
        spec = self.spec(*args, **kwargs)
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
                wait_for = waiting.answered if answer.status == "queued" else waiting.finished
                return self._result_of(await wait_for(store, watch, *self._awaited(answer)), spec)
        async with store.watch(answer.id) as watch:  # a key was hit: another job stands for this one
            return self._result_of(await waiting.finished(store, watch, *self._awaited(answer)), spec)

    def refuse_within(self) -> None:
        if self.connection is not None:
            raise InvalidInput(
                "call would wait for a job that nobody sees before you commit. Enqueue it within the transaction, "
                "commit, then wait: await app.jobs.result(job, wait=30)"
            )

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> Spec:
        """What `enqueue` would hand to the store, for `app.enqueue([…])` and for jobs carried by another's end."""
        payload = self._payload.pack(self._payload.bind(args, kwargs))
        if self._named:
            return msgspec.structs.replace(self._template, payload=payload, token=new_token())
        [job_id] = new_ids(self._app.store.ids, 1)
        return msgspec.structs.replace(self._template, id=job_id, payload=payload, token=job_id)

    def load(self, payload: bytes, serde: str) -> dict[str, Any]:
        """The handler's arguments by name, checked against its annotations. Raises PayloadInvalid."""
        return self._payload_with(serde).unpack(payload)

    def dump_result(self, value: Any, serde: str | None = None) -> bytes:
        """The result as bytes. Raises PayloadInvalid."""
        return self._result_with(serde or self._options.serde).dump(value)

    def load_result(self, data: bytes | None, serde: str | None = None) -> R:
        """The result as the return annotation says; no bytes are a job that was settled without one: None."""
        if data is None:
            return cast("R", None)
        return cast("R", self._result_with(serde or self._options.serde).load(data))

    def __repr__(self) -> str:
        return f"<Task {self.name!r} on queue {self._options.queue!r}>"

    def _specs(self, items: list[Mapping[str, Any] | tuple[Any, ...]], first: int) -> list[Spec]:
        payloads = self._payload.pack_many([self._by_name(item) for item in items], first)
        return specs_like(self._template, new_ids(self._app.store.ids, len(items)), payloads)

    def _by_name(self, item: Mapping[str, Any] | tuple[Any, ...]) -> dict[str, Any]:
        if type(item) is dict:
            return item
        if isinstance(item, tuple):
            return self._payload.bind(item, {})
        if isinstance(item, Mapping):
            return dict(item)
        raise InvalidInput(f"task {self.name!r}: an item is a dict by name or a tuple by position, not {item!r}")

    def _awaited(self, answer: Enqueued) -> tuple[str, int, float | None]:
        wait = self._options.wait
        return answer.id, answer.generation, None if wait is None else wait / 1000

    def _result_of(self, done: Job | Ending, asked: Spec) -> R:
        if isinstance(done, Ending):
            return self.load_result(done.result, asked.serde)
        return self.load_result(waiting.result_of(done), done.spec.serde)

    def _payload_with(self, serde: str) -> Payload:
        found = self._payloads.get(serde)
        if found is None:
            found = self._payloads[serde] = Payload(self.name, self._signature, self._app.serdes.get(serde))
        return found

    def _result_with(self, serde: str) -> Result:
        found = self._results.get(serde)
        if found is None:
            found = self._results[serde] = Result(self.name, self._signature.result, self._app.serdes.get(serde))
        return found


class FunctionTask(Task[P, R], Generic[P, R, Q, D]):
    """A task that can still be called as the function it was made from: nothing is enqueued then."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> D:
        return cast("D", self.handler(*args, **kwargs))


@contextmanager
def saying_how_many(answers: Sequence[Enqueued]) -> Iterator[None]:
    """An error between two chunks, of the store or of the items' own source, says how many jobs are in already."""
    try:
        yield
    except Exception as error:
        if answers:
            error.add_note(f"{len(answers):,} jobs of this call were enqueued before the chunk that failed.")
        raise


def default_name(handler: Callable[..., Any]) -> str:
    """The function's own name, without its module, so that moving it to another file does not orphan its jobs."""
    name: str = getattr(handler, "__qualname__", "")
    name = name.rpartition("<locals>.")[2]
    if not name or "<" in name:
        raise InvalidInput(f"{handler!r} has no name that a job could carry; give one: app.task(name=…)")
    return name


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
