"""Batch tasks: functions that take many jobs at once, while each job is enqueued, typed and settled on its own."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec
from millrace.runtime.answers import ITEM
from millrace.runtime.duration import Duration, milliseconds
from millrace.runtime.options import TaskOptions
from millrace.runtime.task import FunctionTask

if TYPE_CHECKING:
    from millrace.runtime.app import App
    from millrace.runtime.context import Context

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
D = TypeVar("D")
I = TypeVar("I")  # noqa: E741  # an item

_CONTEXT = re.compile(r"\bContext\b")
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LISTS = (list, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)


class BatchTask(FunctionTask[P, R, Q, D], Generic[P, R, Q, D]):
    """A job of it has one parameter, `item`; its handler takes a list of them. Called, it is still that function."""

    size = 1
    linger = 0.0

    def __init__(self, app: App, name: str, handler: Callable[..., Any], options: TaskOptions, template: Spec) -> None:
        parameters = _parameters(name, handler)
        self.takes_contexts = len(parameters) == 2
        super().__init__(app, name, self.one(name, handler, parameters), options, template)
        functools.update_wrapper(self, handler, updated=())
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler)
        self.context_parameter = None

    def one(self, name: str, handler: Callable[..., Any], parameters: list[str]) -> Callable[..., Any]:
        """A function of what one job brings, for its payload and its result to be read from."""
        return _one(handler, parameters[-1], name)

    def item_of(self, job: str, arguments: dict[str, Any]) -> object:
        """What one job brings to its batch."""
        return arguments[ITEM]

    def invoke(self, contexts: list[Context] | None, items: list[Any]) -> Any:
        """Call the handler once, for all of them."""
        return self.handler(items) if contexts is None else self.handler(contexts, items)


class BatchDecorator(Protocol):
    """What `app.batch_task(…)` returns when it is given options."""

    @overload
    def __call__(
        self, function: Callable[[list[Context], list[I]], Coroutine[Any, Any, D]], /
    ) -> BatchTask[[I], Any, [list[Context], list[I]], Coroutine[Any, Any, D]]: ...
    @overload
    def __call__(
        self, function: Callable[[list[Context], list[I]], D], /
    ) -> BatchTask[[I], Any, [list[Context], list[I]], D]: ...
    @overload
    def __call__(
        self, function: Callable[[list[I]], Coroutine[Any, Any, D]], /
    ) -> BatchTask[[I], Any, [list[I]], Coroutine[Any, Any, D]]: ...
    @overload
    def __call__(self, function: Callable[[list[I]], D], /) -> BatchTask[[I], Any, [list[I]], D]: ...


def make_batch_task(
    register: Callable[..., Any], function: Callable[..., Any], size: int, linger: Duration, options: Mapping[str, Any]
) -> BatchTask[..., Any, ..., Any]:
    if type(size) is not int or size < 1:
        raise InvalidInput(f"a batch holds at least 1 job: size must be a whole number from 1 up, not {size!r}")
    seconds = milliseconds("linger", linger) / 1000
    task: BatchTask[..., Any, ..., Any] = register(function, kind=BatchTask, **options)
    task.size, task.linger = size, seconds
    return task


# ── its signature ─────────────────────────────────────────────────────────────────────────────


def _parameters(task: str, handler: Callable[..., Any]) -> list[str]:
    """The name of the list of items, after that of the list of contexts if it takes one."""
    if not inspect.isfunction(handler):
        raise InvalidInput(f"task {task!r}: a batch handler must be a function, not {handler!r}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidInput(f"task {task!r}: a batch handler must return its answers; a generator cannot be one")
    parameters = inspect.signature(handler).parameters.values()
    names = [one.name for one in parameters if one.kind in _BY_POSITION]
    contexts = [_CONTEXT.search(str(handler.__annotations__.get(name, "Context"))) is not None for name in names]
    if len(names) not in (1, 2) or len(names) != len(parameters) or contexts == [False, True]:
        raise InvalidInput(
            f"task {task!r}: a batch handler takes a list of items, or a list of contexts and a list of items: "
            f"def {task}(items: list[Item]) or def {task}(contexts: list[Context], items: list[Item])"
        )
    return names


def _one(handler: Callable[..., Any], items: str, task: str) -> Callable[..., Any]:
    """A function of one item, for the payload and the result of one job to be read from."""

    def one(item: Any) -> Any:
        raise NotImplementedError  # only its signature is ever looked at

    one.__annotations__ = {ITEM: _item_type(task, items, _hint(handler, items)), "return": result_type(handler)}
    one.__name__ = one.__qualname__ = handler.__name__
    return one


def _hint(handler: Callable[..., Any], name: str) -> Any:
    """One annotation, resolved without the others: a Context may be hidden under TYPE_CHECKING."""
    raw = handler.__annotations__
    if name not in raw:
        return Any
    holder = type("holder", (), {"__annotations__": {name: raw[name]}})
    try:
        return typing.get_type_hints(holder, globalns=handler.__globals__, include_extras=True)[name]
    except Exception as error:
        raise InvalidInput(
            f"batch handler {handler.__name__!r}: the annotation {raw[name]!r} cannot be resolved ({error}). "
            "Import or define the type at the top of the module, not under TYPE_CHECKING."
        ) from None


def _item_type(task: str, name: str, hint: Any) -> Any:
    if hint is Any or hint in _LISTS:
        return Any
    if typing.get_origin(hint) not in _LISTS:
        raise InvalidInput(f"task {task!r}: parameter {name!r} must be a list of what one job brings, not {hint!r}")
    [item] = typing.get_args(hint)
    return item


def result_type(handler: Callable[..., Any]) -> Any:
    """What one job's result is: an element of what the handler answers, without the errors and verdicts."""
    hint = _hint(handler, "return")
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _LISTS and parts:
        return _without_errors(parts[0])
    if origin in _MAPPINGS and parts:
        return _without_errors(parts[1])
    return Any


def _without_errors(kind: Any) -> Any:
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return Any if _is_error(kind) else kind
    left = [part for part in typing.get_args(kind) if not _is_error(part)]
    return functools.reduce(lambda a, b: a | b, left) if left else Any


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
