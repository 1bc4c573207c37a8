"""Injection: makes the values of parameters that are marked with `Depends`, and cleans up after the attempt.

Which providers are called, and in which order, is determined when the task is declared: a plan with one step per
provider, each after those whose values it takes. Providers run on the event loop. The exception are `def` providers of
a `def` handler: they run in its thread, around it, because their values may be bound to that thread. If a coroutine
provider takes the value of a `def` provider, that one runs on the event loop too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol

import msgspec

from millrace.app.handler.context import Context
from millrace.app.handler.depends import Dependency, dependency_in
from millrace.app.handler.in_thread import in_thread
from millrace.app.handler.surroundings import Surroundings
from millrace.app.payloads.signature import Hints
from millrace.domain.errors import InvalidInput

Provider = Callable[..., Any]
Handler = Callable[..., Any]
Kind = Literal["function", "coroutine", "generator", "async generator"]


class SharedValues(Protocol):
    """Keeps the values of providers with scope="worker": `WorkerScope` in the worker."""

    async def shared(self, name: Any, make: Callable[[AsyncExitStack], Awaitable[Any]]) -> Any: ...


class ProviderCall(msgspec.Struct, frozen=True):
    """The call of one provider. `values` has its parameters, with the numbers of the steps whose values they get."""

    provider: Provider
    call: Provider  # makes the value, or the context manager of a generator
    kind: Kind
    context: str | None
    values: dict[str, int]
    shared: bool
    in_thread: bool = False

    def arguments(self, context: Context, made: list[Any]) -> dict[str, Any]:
        found = {name: made[number] for name, number in self.values.items()}
        return found if self.context is None else {self.context: context, **found}


class InjectionPlan(msgspec.Struct, frozen=True):
    """The steps of one handler, and its injected parameters with the numbers of their steps."""

    steps: tuple[ProviderCall, ...]
    parameters: dict[str, int]

    @property
    def has_thread_steps(self) -> bool:
        return any(step.in_thread for step in self.steps)

    @property
    def has_loop_steps(self) -> bool:
        return any(not step.in_thread and not step.shared for step in self.steps)


class Injection:
    """The injected parameters of one task. `overrides` are the replacements of providers that the app has now.

    The `surroundings` of the app are entered before the first provider, and left after the last clean-up: those of a
    `def` handler in its thread, and once more on the event loop if providers run there.
    """

    def __init__(
        self,
        task: str,
        marks: Mapping[str, Dependency],
        *,
        is_async: bool,
        overrides: Mapping[Provider, Provider],
        surroundings: Surroundings,
    ) -> None:
        self._task, self._marks, self._is_async = task, marks, is_async
        self._overrides, self._surroundings = overrides, surroundings
        self._plan = self._planned({})

    def open(self, context: Context, scope: SharedValues) -> OpenValues:
        """Return a context manager for one attempt: `async with injection.open(…) as values`."""
        plan = self._planned(self._overrides) if self._overrides else self._plan
        return OpenValues(plan, context, scope, self._surroundings)

    def _planned(self, overrides: Mapping[Provider, Provider]) -> InjectionPlan:
        planner = _Planner(self._task, overrides)
        parameters = {name: planner.add(mark) for name, mark in self._marks.items()}
        steps = planner.steps
        if not self._is_async:
            steps = _with_thread_steps(steps)
        return InjectionPlan(tuple(steps), parameters)


class OpenValues:
    """The values of one attempt.

    An exception of the handler is raised in every provider. None can suppress it: the attempt has failed, and the
    providers that follow must not commit what it did.
    """

    def __init__(self, plan: InjectionPlan, context: Context, scope: SharedValues, surroundings: Surroundings) -> None:
        self._plan, self._context, self._scope, self._surroundings = plan, context, scope, surroundings
        self._made: list[Any] = [None] * len(plan.steps)
        self._opened: list[Any] = []  # context managers

    async def __aenter__(self) -> OpenValues:
        try:
            if self._plan.has_loop_steps:
                _entered(self._surroundings(), self._opened)
            for number, step in enumerate(self._plan.steps):
                if not step.in_thread:
                    self._made[number] = await self._make(step)
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = error
        while self._opened:
            manager = self._opened.pop()
            try:
                if hasattr(manager, "__aexit__"):
                    await manager.__aexit__(*_details(now))
                else:
                    manager.__exit__(*_details(now))
            except BaseException as raised:
                now = raised
        if now is not None and now is not error:
            raise now

    def injected_into(self, handler: Handler) -> Handler:
        """Return the handler without its injected parameters. For a `def` handler, it is called in its thread."""
        return partial(self._call_with_thread_steps if self._plan.has_thread_steps else self._call, handler)

    def _call(self, handler: Handler, **arguments: Any) -> Any:
        values = {name: self._made[number] for name, number in self._plan.parameters.items()}
        return handler(**arguments, **values)

    def _call_with_thread_steps(self, handler: Handler, **arguments: Any) -> Any:
        opened: list[Any] = []
        result, error = None, None
        try:
            _entered(self._surroundings(), opened)
            for number, step in enumerate(self._plan.steps):
                if step.in_thread:
                    value = step.call(**step.arguments(self._context, self._made))
                    self._made[number] = _entered(value, opened) if step.kind == "generator" else value
            result = self._call(handler, **arguments)
        except BaseException as raised:
            error = raised
        while opened:
            try:
                opened.pop().__exit__(*_details(error))
            except BaseException as raised:
                error = raised
        if error is not None:
            raise error
        return result

    async def _make(self, step: ProviderCall) -> Any:
        arguments = step.arguments(self._context, self._made)
        if step.shared:
            return await self._scope.shared(step.provider, partial(self._make_for_worker, step, arguments))
        if step.kind == "generator":
            return _entered(step.call(**arguments), self._opened)
        if step.kind == "async generator":
            manager = step.call(**arguments)
            made = await manager.__aenter__()
            self._opened.append(manager)
            return made
        value = step.call(**arguments)
        return await value if step.kind == "coroutine" else value

    async def _make_for_worker(self, step: ProviderCall, arguments: dict[str, Any], stack: AsyncExitStack) -> Any:
        with self._surroundings():
            return await _open_for_worker(step, arguments, stack)


def _entered(manager: Any, opened: list[Any]) -> Any:
    value = manager.__enter__()
    opened.append(manager)
    return value


def _details(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


async def _open_for_worker(step: ProviderCall, arguments: dict[str, Any], stack: AsyncExitStack) -> Any:
    """Make a value for a whole worker. A `def` provider runs in a thread: it may load a model, which takes long."""
    if step.kind == "async generator":
        return await stack.enter_async_context(step.call(**arguments))
    if step.kind == "coroutine":
        return await step.call(**arguments)
    made = await in_thread(step.call, **arguments)
    if step.kind == "function":
        return made
    value = await in_thread(made.__enter__)
    stack.push_async_callback(in_thread, made.__exit__, None, None, None)
    return value


# ── planning ──────────────────────────────────────────────────────────────────────────────────


class _Planner:
    def __init__(self, task: str, overrides: Mapping[Provider, Provider]) -> None:
        self.steps: list[ProviderCall] = []
        self._task = task
        self._overrides = overrides
        self._numbers: dict[Provider, int] = {}
        self._path: list[Provider] = []

    def add(self, mark: Dependency) -> int:
        """Add the steps of a provider and of those it depends on. Return the number of its own."""
        provider = self._overrides.get(mark.provider, mark.provider)
        shared = mark.scope == "worker"
        if provider in self._path:
            names = " -> ".join(_name(one) for one in (*self._path, provider))
            raise InvalidInput(f"task {self._task!r}: its providers depend on each other in a cycle: {names}")
        number = self._numbers.get(provider)
        if number is None:
            self._path.append(provider)
            step = self._step(provider, shared)
            self._path.pop()
            number = self._numbers[provider] = len(self.steps)
            self.steps.append(step)
        elif self.steps[number].shared != shared:
            raise InvalidInput(f"task {self._task!r}: provider {_name(provider)} has two scopes; use only one of them")
        return number

    def _step(self, provider: Provider, shared: bool) -> ProviderCall:
        where = f"task {self._task!r}, provider {_name(provider)}"
        hints = Hints(where, provider.__init__ if isinstance(provider, type) else provider)  # type: ignore[misc]
        context: str | None = None
        values: dict[str, int] = {}
        for one in _parameters(where, provider):
            if hints.is_context(one.name):
                context = one.name
                continue
            mark = dependency_in(one.default, hints.annotation(one.name, needed=one.default is one.empty))
            if mark is not None:
                values[one.name] = self.add(mark)
                if shared and mark.scope != "worker":
                    raise InvalidInput(
                        f'{where}: it has scope="worker", so it cannot use {_name(mark.provider)}, which is made for '
                        'each job. Use Depends(…, scope="worker") for that one too.'
                    )
            elif one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                raise InvalidInput(
                    f"{where}: nothing makes its parameter {one.name!r}. Mark it with Depends(…), or give it a default."
                )
        if shared and context is not None:
            raise InvalidInput(f'{where}: it has scope="worker", so it has no job and cannot take a Context')
        kind = _kind(provider)
        call = provider
        if kind == "generator":
            call = contextmanager(provider)
        elif kind == "async generator":
            call = asynccontextmanager(provider)
        return ProviderCall(provider, call, kind, context, values, shared)


def _parameters(where: str, provider: Provider) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(provider).parameters.values())
    except (TypeError, ValueError):
        raise InvalidInput(f"{where}: it has no signature to read; wrap it in a function") from None


def _kind(provider: Provider) -> Kind:
    function = provider
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, type):  # it makes an instance, whatever calling the instance would do
        return "function"
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004  # an object with an async __call__
        if inspect.isasyncgenfunction(one):
            return "async generator"
        if inspect.isgeneratorfunction(one):
            return "generator"
        if inspect.iscoroutinefunction(one):
            return "coroutine"
    return "function"


def _with_thread_steps(steps: list[ProviderCall]) -> list[ProviderCall]:
    """Mark the steps that run in the thread of a `def` handler: those of `def` providers that no other step needs on
    the event loop.
    """
    on_loop: set[int] = set()
    for number in reversed(range(len(steps))):
        step = steps[number]
        if number in on_loop or step.shared or step.kind in ("coroutine", "async generator"):
            on_loop |= {number, *step.values.values()}
    return [
        step if number in on_loop else msgspec.structs.replace(step, in_thread=True)
        for number, step in enumerate(steps)
    ]


def _name(provider: Provider) -> str:
    return getattr(provider, "__qualname__", repr(provider)).rpartition("<locals>.")[2]
