"""Builds flows: `app.gather(a.spec(1), b.spec(2)).then(c)`, `app.chain(a.spec(1), b, c)`.

A step gets the result of the step before as its first argument; the result of a `gather` is the list of the results of
its parts. Nothing is stored before `enqueue`, which enqueues all jobs in one call. A flow can be enqueued many times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from millrace.app.duration import Duration, milliseconds
from millrace.app.flows.handle import FlowHandle, SyncFlowHandle
from millrace.app.flows.members import as_members
from millrace.app.flows.repeat import check_flow_id, refuse_other_flow, repeated
from millrace.app.ids import new_ids
from millrace.app.payloads.inputs import keeping_inputs, parents_in
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.task import Task

Q = ParamSpec("Q")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
X = TypeVar("X")

WAIT = 30  # seconds that `call` waits by default
KEPT_FOR_CHILDREN = 1  # ms; a result that a child needs is kept until the child has ended, however short this is
_NOTHING: Any = object()  # the value before the first step


class Following(Protocol[T_contra, R_co]):
    """A task whose first parameter takes the result of the step before."""

    def spec(self, value: T_contra, /) -> Spec[R_co]: ...


class _Plan:
    """The specs of a flow that is being enqueued, in the order in which they are added."""

    def __init__(self) -> None:
        self.specs: dict[str, Spec] = {}

    def add(self, spec: Spec) -> Spec:
        if spec.token != spec.id:
            raise InvalidInput(
                f"job {spec.id!r} of task {spec.task!r} has an id of its own, but a flow gives its jobs their ids. "
                "Remove id=…, and pass the id of the flow: flow.enqueue(id=…)"
            )
        if spec.key is not None:
            raise InvalidInput(
                f"a part of a flow, of task {spec.task!r}, has key={spec.key!r}, but another job with this key could "
                "take its place. Remove key=…. To enqueue a flow once, pass an id to the flow: flow.enqueue(id=…)"
            )
        if spec.id in self.specs:
            raise InvalidInput(
                f"the same spec of task {spec.task!r} is twice in one flow. Make a spec for each part: "
                f"{spec.task}.spec(…)"
            )
        self.specs[spec.id] = spec
        return spec


class _Step:
    """A task as a step, with further arguments."""

    is_open = True  # it needs the result of a step before

    def __init__(self, task: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        self._task = task
        self._args = args
        self._kwargs = dict(kwargs or {})

    def build(self, plan: _Plan, value: Any) -> Any:
        if value is _NOTHING:
            raise InvalidInput(
                f"task {self._task.name!r} is the first step, so it needs its arguments: pass {self._task.name}.spec(…)"
            )
        make: Callable[..., Spec] = self._task.spec
        return plan.add(_keeping(make(value, *self._args, **self._kwargs)))


class _Job:
    """A spec as a step. It runs after the step before, but does not get its result."""

    is_open = False

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def build(self, plan: _Plan, value: Any) -> Any:
        spec = self._spec
        if value is not _NOTHING:
            parents = [parent.id for parent in parents_in(value)]
            spec = msgspec.structs.replace(spec, after=tuple(dict.fromkeys((*spec.after, *parents))))
        return plan.add(_keeping(spec))


class Chain:
    """Steps that run one after the other."""

    def __init__(self, steps: Iterable[Any]) -> None:
        self._steps: list[Any] = []
        for step in map(_as_step, steps):  # a chain in a chain adds its steps, so that long chains do not recurse
            self._steps += step._steps if isinstance(step, Chain) else [step]
        if not self._steps:
            raise InvalidInput("a chain needs at least one step, such as task.spec(…)")
        self.is_open: bool = self._steps[0].is_open

    def build(self, plan: _Plan, value: Any) -> Any:
        for step in self._steps:
            value = step.build(plan, value)
        return value


class Gather:
    """Parts that run in any order."""

    def __init__(self, parts: Iterable[Any], kind: type[list[Any]] | type[tuple[Any, ...]] = list) -> None:
        self._kind = kind  # of the result
        self._parts = [_as_step(part) for part in parts]
        if not self._parts:
            raise InvalidInput("a gather needs at least one part, such as task.spec(…)")
        self.is_open = any(part.is_open for part in self._parts)

    def build(self, plan: _Plan, value: Any) -> Any:
        return self._kind([part.build(plan, value) for part in self._parts])


def _as_step(part: Any) -> Any:
    if isinstance(part, Spec):
        return _Job(part)
    if isinstance(part, Flow | OpenFlow):
        return part._steps
    if isinstance(part, _Step):
        return part
    if callable(getattr(part, "spec", None)):
        return _Step(part)
    raise InvalidInput(f"a flow is made of specs (task.spec(…)), tasks and flows, not of {part!r}")


def _keeping(spec: Spec) -> Spec:
    return msgspec.structs.replace(spec, keep_result=KEPT_FOR_CHILDREN) if spec.keep_result == 0 else spec


class OpenFlow(Generic[T_contra, R_co]):
    """Steps that wait for the result of a step before: a part of a chain, such as `app.gather(small, large)`."""

    def __init__(self, app: App, steps: Any) -> None:
        self._app = app
        self._steps = steps

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("enqueue", "call", "specs", "sync", "then"):
                raise InvalidInput(
                    f"the first step of this flow is a task without its arguments, so there is no {name}. "
                    "Begin with task.spec(…), or pass this as a step: app.chain(first.spec(…), …)"
                )
            raise AttributeError(name)


class Flow(Generic[R_co]):
    """Jobs that run in order and pass their results on, made by `app.gather` and `app.chain`. R_co is the result."""

    def __init__(self, app: App, steps: Any) -> None:
        self._app = app
        self._steps = steps

    @overload
    def then(self, task: Following[R_co, S], /) -> Flow[S]: ...
    @overload
    def then(self: Flow[tuple[X, ...]], task: Following[list[X], S], /) -> Flow[S]: ...
    @overload
    def then(self, task: Task[Concatenate[R_co, Q], S], /, *args: Q.args, **kwargs: Q.kwargs) -> Flow[S]: ...
    def then(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return this flow with one more step: a task that gets the result of this flow as its first argument.

        Further arguments of the task follow: `app.gather(…).then(album, title="Summer")`.
        """
        return Flow(self._app, Chain([self, _Step(task, args, kwargs) if args or kwargs else task]))

    async def enqueue(self, *, id: str | None = None, within: object = None) -> FlowHandle[R_co]:
        """Enqueue all jobs in one step, all or nothing, and return the handle of the flow.

        With `id`, a flow is enqueued once. If a flow with this id exists, nothing is stored: its jobs that failed are
        replayed, as by `FlowHandle.replay`, and its handle is returned. Raises InvalidInput if that flow has another
        number of jobs, or if other jobs have such ids. `within` is your own database connection, as for `app.enqueue`.
        Then the store is not read before, so that parts whose records have been removed run again.
        """
        specs = self.specs(id)
        if id is not None and within is None and (answer := await repeated(self._app, id, specs)) is not None:
            return FlowHandle(self._app, id, answer)
        handles = await self._app.enqueue(specs, within=within)
        if id is not None and within is None:
            await refuse_other_flow(self._app, id, [handle.enqueued for handle in handles])
        return FlowHandle(self._app, handles[-1].id, handles[-1].enqueued)

    async def call(self, *, wait: Duration | None = WAIT) -> R_co:
        """Enqueue the flow, wait until its last job has finished, and return its result.

        Raises the same exceptions as `FlowHandle.result`. `wait=None` means no limit.
        """
        flow = await self.enqueue()
        return await flow.await_result(None if wait is None else milliseconds("wait", wait) / 1000)

    @property
    def sync(self) -> SyncFlow[R_co]:
        """The same flow with blocking methods, for programs without an event loop."""
        return SyncFlow(self)

    def specs(self, id: str | None = None) -> list[Spec]:
        """Return the specs that `enqueue` stores, the last job last. `id` is the id of the flow."""
        if id is not None:
            check_flow_id(id)
        plan = _Plan()
        value = self._steps.build(plan, _NOTHING)
        specs = keeping_inputs(list(plan.specs.values()))
        number = {spec.id: position for position, spec in enumerate(specs, 1)}
        tails = None if isinstance(value, Spec) else _numbers(value, number)
        flow = new_ids(self._app.store.ids, 1)[0] if id is None else id
        return as_members(specs, flow, tails, named=id is not None)


class SyncFlow(Generic[R_co]):
    """The blocking methods of a flow, returned by `flow.sync`."""

    def __init__(self, flow: Flow[R_co]) -> None:
        self._flow = flow

    def enqueue(self, *, id: str | None = None, within: object = None) -> SyncFlowHandle[R_co]:
        """Enqueue all jobs in one step, all or nothing, and return the handle of the flow, like `Flow.enqueue`."""
        app, specs = self._flow._app, self._flow.specs(id)
        answer = None if id is None or within is not None else app.sync.run(repeated(app, id, specs))
        if answer is None:
            answers = app.sync.store_specs(specs, within)
            if id is not None and within is None:
                app.sync.run(refuse_other_flow(app, id, answers))
            answer = answers[-1]
        return SyncFlowHandle(app, answer.id, answer)

    def call(self, *, wait: Duration | None = WAIT) -> R_co:
        """Enqueue the flow, wait until its last job has finished, and return its result, like `Flow.call`."""
        return self._flow._app.sync.run(self._flow.call(wait=wait))


def _numbers(value: Any, number: Mapping[str, int]) -> Any:
    """Return the numbers of the jobs whose results are the result of a flow, as `tails_of` returns them."""
    if isinstance(value, Spec):
        return number[value.id]
    items = [_numbers(item, number) for item in value]
    return {"tuple": items} if isinstance(value, tuple) else items
