"""Batch tasks: tasks whose handler takes many jobs at a time. Each job is still enqueued and settled on its own."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from millrace.app.duration import Duration, milliseconds
from millrace.app.handler.batch_results import ITEM
from millrace.app.handler.surroundings import within
from millrace.app.options import TaskOptions
from millrace.app.task import FunctionTask
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Spec

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.handler.context import Context
    from millrace.app.host import Middleware

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
    """A task whose handler takes a list of items, one per job. Calling the task calls the function itself."""

    def __init__(
        self,
        app: App,
        name: str,
        handler: Callable[..., Any],
        options: TaskOptions,
        template: Spec,
        *,
        size: int,
        linger: float,
        layers: tuple[Middleware, ...] = (),
        inherits: bool = True,
    ) -> None:
        parameters = _parameters(name, handler)
        self.size = size
        self.linger = linger  # seconds
        self.takes_contexts = len(parameters) == 2
        one = self.one(name, handler, parameters)
        super().__init__(app, name, one, options, template, layers=layers, inherits=inherits)
        functools.update_wrapper(self, handler, updated=())
        self.handler = handler if app.surroundings is None else within(app.surroundings, handler)
        self.is_async = inspect.iscoroutinefunction(handler)
        self.context_parameter = None

    def one(self, name: str, handler: Callable[..., Any], parameters: list[str]) -> Callable[..., Any]:
        """Return a stub whose signature declares the payload and the result of one job. It is never called."""
        return _one(handler, parameters[-1], name)

    def item_of(self, job: str, arguments: dict[str, Any]) -> object:
        """Return the item that one job adds to its batch."""
        return arguments[ITEM]

    def invoke(self, contexts: list[Context] | None, items: list[Any]) -> Any:
        """Call the handler with all items and return its return value. Contexts are the first argument unless None."""
        return self.handler(items) if contexts is None else self.handler(contexts, items)


class BatchDecorator(Protocol):
    """The decorator that `app.batch_task(…)` returns when it is called with options."""

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
        raise InvalidInput(f"a batch has at least 1 job: size must be a whole number of at least 1, not {size!r}")
    seconds = milliseconds("linger", linger) / 1000
    kind: Any = functools.partial(cast("Any", BatchTask), size=size, linger=seconds)
    task: BatchTask[..., Any, ..., Any] = register(function, kind=kind, **options)
    return task


# ── its signature ─────────────────────────────────────────────────────────────────────────────


def _parameters(task: str, handler: Callable[..., Any]) -> list[str]:
    """Return the names of the handler's parameters: one for the items, or two for the contexts and the items.

    Raises InvalidInput if the handler has any other signature.
    """
    if not inspect.isfunction(handler):
        raise InvalidInput(f"task {task!r}: a batch handler must be a function, not {handler!r}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidInput(f"task {task!r}: a batch handler must return its results; it cannot be a generator")
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
    """Return a function that is never called. Its signature has one item as parameter and the type of one result."""

    def one(item: Any) -> Any:
        raise NotImplementedError  # only its signature is read

    one.__annotations__ = {ITEM: _item_type(task, items, _hint(handler, items)), "return": result_type(handler)}
    one.__name__ = one.__qualname__ = handler.__name__
    return one


def _hint(handler: Callable[..., Any], name: str) -> Any:
    """Return the resolved annotation of the parameter `name`, or Any if it has none.

    Only this annotation is resolved: that of another parameter may fail, because a program may import Context under
    TYPE_CHECKING only. Raises InvalidInput if the annotation cannot be resolved.
    """
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
        raise InvalidInput(f"task {task!r}: parameter {name!r} must be a list with one item per job, not {hint!r}")
    [item] = typing.get_args(hint)
    return item


def result_type(handler: Callable[..., Any]) -> Any:
    """Return the type of one job's result, read from the handler's return annotation.

    It is the element type of a list or the value type of a mapping, without exception types. For any other annotation,
    or none, it is Any.
    """
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
