"""Tasks: a Python function under a stable name, and the typed ways to have it done.

A `Task[P, R]` takes the function's parameters (without the context) wherever it enqueues, and gives its result
where it waits for one. What `app.task` returns can also still be called as the function itself.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast

import msgspec

from millrace.domain.errors import InvalidInput, QueueError, ResultExpired
from millrace.domain.job import Job, Spec
from millrace.domain.request import Enqueued
from millrace.runtime import waiting
from millrace.runtime.ids import new_ids, new_token
from millrace.runtime.options import Options, TaskOptions, read_job_options
from millrace.runtime.payload import Payload
from millrace.runtime.result import Result
from millrace.runtime.signature import read_signature

if TYPE_CHECKING:
    from millrace.runtime.app import App

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
D = TypeVar("D")

CHUNK = 1_000


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
        self._options = options
        self._template = template
        self._named = False  # has an id of the caller's
        self._payloads: dict[str, Payload] = {}
        self._results: dict[str, Result] = {}
        self._payload = self._payload_with(options.serde)
        self._result_with(options.serde)

    @property
    def options(self) -> Options[Self]:
        """What the task is set to. Call it to set something else for some jobs: `task.options(delay="1m")`."""
        fields = {name: getattr(self._options, name) for name in TaskOptions.__struct_fields__}
        return Options(task=self, **fields)

    def bound(self, changes: Mapping[str, Any]) -> Self:
        """The same task under other options; the way in for callers is `options(…)`."""
        twin = copy.copy(self)
        twin._options, twin._template = read_job_options(self.name, changes, self._options, self._template)
        twin._named = self._named or "id" in changes
        return twin

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Put one job in. Once this returns, the job is kept, at the durability that the store states.

        A duplicate is an answer, never an exception (R-03): look at `status`.
        """
        spec = self.spec(*args, **kwargs)  # what is wrong with it shows before any I/O
        store = await self._app.connected()
        [answer] = await store.enqueue([spec])
        return answer

    async def enqueue_many(
        self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, chunk: int = CHUNK
    ) -> list[Enqueued]:
        """Put many jobs in; each item holds one job's parameters, as a dict by name or a tuple by position.

        All or nothing for each `chunk` of items (1,000 unless told otherwise), one after the other: when an item is
        refused, the chunks before its own are in already, and a note on the error says how many jobs that is.
        """
        if self._named:
            raise InvalidInput(f"one id cannot name many jobs of task {self.name!r}: leave it out, or enqueue singly")
        if chunk < 1:
            raise InvalidInput(f"chunk must be at least 1, not {chunk!r}")
        answers: list[Enqueued] = []
        rest = iter(items)
        try:
            while part := list(islice(rest, chunk)):
                specs = self._specs(part, len(answers))
                store = await self._app.connected()
                answers += await store.enqueue(specs)
                await asyncio.sleep(0)  # a store in memory never waits; let others on the loop have their turn
        except QueueError as error:
            if answers:
                error.add_note(f"{len(answers):,} jobs of this call were enqueued before the chunk that failed.")
            raise
        return answers

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue and wait for the result: 30 s, or `options(wait=…)`; None waits for ever (R-04).

        Raises WaitTimeout (the job goes on), JobFailed, JobCancelled or ResultExpired. A duplicate waits for the job
        that is there, and answers at once with a result that is kept.
        """
        spec = self.spec(*args, **kwargs)
        store = await self._app.connected()
        async with store.watch(spec.id) as watch:
            [answer] = await store.enqueue([spec])
            if answer.status == "completed":
                return self.load_result(answer.result)
            if answer.result_expired or not answer.generation:
                raise ResultExpired(answer.id)
            if answer.id == spec.id:
                return self._result_of(await waiting.finished(store, watch, *self._awaited(answer)))
        async with store.watch(answer.id) as watch:  # a key was hit: another job stands for this one
            return self._result_of(await waiting.finished(store, watch, *self._awaited(answer)))

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
        ids = new_ids(self._app.store.ids, len(items))
        template, replace = self._template, msgspec.structs.replace
        return [
            replace(template, id=job_id, payload=payload, token=job_id)
            for job_id, payload in zip(ids, payloads, strict=True)
        ]

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

    def _result_of(self, job: Job) -> R:
        return self.load_result(waiting.result_of(job), job.spec.serde)

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


def default_name(handler: Callable[..., Any]) -> str:
    """The function's own name, without its module, so that moving it to another file does not orphan its jobs."""
    name: str = getattr(handler, "__qualname__", "")
    name = name.rpartition("<locals>.")[2]
    if not name or "<" in name:
        raise InvalidInput(f"{handler!r} has no name that a job could carry; give one: app.task(name=…)")
    return name


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
