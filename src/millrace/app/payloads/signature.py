"""Parameters and return type of a handler, read from its signature when the task is registered.

A signature that cannot work raises InvalidInput at registration, not when the first job runs.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect as types

from millrace.app.handler.depends import Dependency, dependency_in
from millrace.app.payloads.extra_types import is_storable, with_pydantic_unions
from millrace.domain.errors import InvalidInput

_KINDS = inspect.Parameter
_NEVER = (typing.NoReturn, typing.Never)


class Signature(msgspec.Struct, frozen=True):
    """The signature of a handler. `names` are the parameters in the payload, in order, without the context."""

    names: tuple[str, ...]
    kinds: dict[str, Any]  # annotation by name; Any where there is none
    optional: frozenset[str]  # parameters with a default; defaults are not stored in payloads
    positional: int  # how many of the names may be passed by position
    extra: Any  # annotation of **kwargs, or UNSET when the handler takes none
    context: str | None
    result: Any  # UNSET: its type cannot be stored, and the task does not keep results
    injected: dict[str, Dependency] = {}  # parameters marked with Depends; not part of the payload


def read_signature(
    task: str,
    handler: Callable[..., Any],
    *,
    message: bool = False,
    message_back: bool = False,
    keeps_result: bool = True,
) -> Signature:
    """Return a handler's signature. Raises InvalidInput if the signature cannot be used for a task.

    `message` is True if the payload has a serde for message classes; `message_back`, if the result has one.
    `keeps_result` is False if results are discarded, so that the handler may return anything.
    """
    parameters = _parameters(task, handler)
    hints = Hints(f"task {task!r}", handler)
    context = _context(task, parameters, hints)
    payload = parameters[1:] if context is not None else parameters
    kinds: dict[str, Any] = {}
    injected: dict[str, Dependency] = {}
    extra: Any = msgspec.UNSET
    for parameter in payload:
        _refuse_nameless(task, parameter)
        mark = dependency_in(parameter.default, hints.annotation(parameter.name))
        if mark is not None:
            injected[parameter.name] = mark
            continue
        kind = with_pydantic_unions(hints.kind(parameter.name))
        if not message:
            refuse_foreign(f"task {task!r}, parameter {parameter.name!r}", kind)
        if parameter.kind is _KINDS.VAR_KEYWORD:
            extra = kind
        else:
            kinds[parameter.name] = kind
    result = with_pydantic_unions(hints.kind("return"))
    result = Any if result in _NEVER else result
    if not message_back:
        result = _result(task, result, keeps_result)
    return Signature(
        names=tuple(kinds),
        kinds=kinds,
        optional=frozenset(one.name for one in payload if one.default is not _KINDS.empty) - injected.keys(),
        positional=sum(one.kind is _KINDS.POSITIONAL_OR_KEYWORD and one.name in kinds for one in payload),
        extra=extra,
        context=context,
        result=result,
        injected=injected,
    )


def _result(task: str, kind: Any, keeps_result: bool) -> Any:
    try:
        refuse_foreign(f"task {task!r}, result", kind)
    except InvalidInput as error:
        if keeps_result:
            raise InvalidInput(f"{error} If nobody reads the result, set keep_result=0.") from None
        return msgspec.UNSET
    return kind


def _parameters(task: str, handler: Callable[..., Any]) -> list[inspect.Parameter]:
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidInput(f"task {task!r}: a handler must return its result; it cannot be a generator")
    try:
        return list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        raise InvalidInput(f"task {task!r}: {handler!r} has no signature to read; wrap it in a function") from None


def _refuse_nameless(task: str, parameter: inspect.Parameter) -> None:
    if parameter.kind is _KINDS.VAR_POSITIONAL:
        raise InvalidInput(
            f"task {task!r}: a payload has parameters by name, so *{parameter.name} cannot be one. "
            f"Take a list instead: {parameter.name}: list[…]."
        )
    if parameter.kind is _KINDS.POSITIONAL_ONLY:
        raise InvalidInput(
            f"task {task!r}: parameter {parameter.name!r} is positional-only, but a payload has parameters by name. "
            "Remove the '/' from the signature."
        )


def _context(task: str, parameters: list[inspect.Parameter], hints: Hints) -> str | None:
    found = [index for index, one in enumerate(parameters) if hints.is_context(one.name)]
    if not found:
        return None
    first = parameters[0]
    if found != [0] or first.kind is not _KINDS.POSITIONAL_OR_KEYWORD:
        raise InvalidInput(
            f"task {task!r}: the Context must be the first parameter and the only one of its kind, "
            f"as in def {task}(ctx: Context, …)"
        )
    return first.name


class Hints:
    """The annotations of one function; `where` names it in errors.

    Each is resolved separately, so that one that cannot be resolved does no harm.
    """

    def __init__(self, where: str, handler: Callable[..., Any]) -> None:
        self._where = where
        function = inspect.unwrap(handler)
        while isinstance(function, functools.partial):
            function = inspect.unwrap(function.func)
        if not hasattr(function, "__annotations__"):  # an object with __call__
            function = getattr(function, "__call__", function)  # noqa: B004
        self._raw: dict[str, Any] = dict(getattr(function, "__annotations__", {}))
        self._globals: dict[str, Any] = getattr(function, "__globals__", {})

    def kind(self, name: str) -> Any:
        if name not in self._raw:
            return Any
        try:
            return self._resolve(name)
        except NameError as error:
            where = "result" if name == "return" else f"parameter {name!r}"
            raise InvalidInput(
                f"{self._where}, {where}: its annotation {self._raw[name]!r} cannot be resolved ({error}). "
                "Import or define the type at the top of the module, not under TYPE_CHECKING."
            ) from None

    def annotation(self, name: str, *, needed: bool = False) -> Any:
        """Return an annotation if it can be resolved; otherwise None, or, if it is needed, raise InvalidInput.

        Whether a parameter is marked with Depends can be seen only in an annotation that can be resolved.
        """
        raw = self._raw.get(name)
        if needed or not isinstance(raw, str) or "Annotated" in raw:
            return self.kind(name)
        try:
            return self.kind(name)
        except InvalidInput:
            return None

    def is_context(self, name: str) -> bool:
        """Return whether a parameter is annotated with Context.

        A program may import Context under TYPE_CHECKING only. Such an annotation cannot be resolved, so its text is
        compared.
        """
        raw = self._raw.get(name)
        if isinstance(raw, str):
            try:
                raw = self._resolve(name)
            except NameError:
                return raw.strip("'\" ").rpartition(".")[2] == "Context"
        return getattr(raw, "__name__", "") == "Context" and getattr(raw, "__module__", "").startswith("millrace.")

    def _resolve(self, name: str) -> Any:
        holder = type("holder", (), {"__annotations__": {name: self._raw[name]}})
        return typing.get_type_hints(holder, globalns=self._globals, include_extras=True)[name]


def refuse_foreign(where: str, kind: Any) -> None:
    """Raise InvalidInput if a type, or a type inside it, cannot be encoded by any serde."""
    try:
        found = _walk(types.type_info(kind), set())
    except (TypeError, NameError) as error:
        raise InvalidInput(f"{where}: {error}") from None
    if found.foreign is not None:
        raise InvalidInput(
            f"{where}: {found.foreign!r} cannot be stored in a job. Use built-in types, dataclasses, msgspec Structs, "
            "TypedDicts, attrs classes, pydantic models, enums, datetime, UUID, Decimal or Path; or pass a reference, "
            "such as an id or a path."
        )


class Contents(msgspec.Struct):
    """What values of a type can contain. This determines which checks a payload of this type needs."""

    floats: bool = False
    open: bool = False  # Any or a recursive type: no limit on nesting
    objects: bool = False  # instances, which must be converted to be checked inside
    foreign: Any = None


def contents(kind: Any) -> Contents:
    return _walk(types.type_info(kind), set())


def _walk(info: types.Type, seen: set[Any]) -> Contents:
    found = Contents()
    match info:
        case types.AnyType() | types.RawType():
            found.floats = found.open = True
        case types.FloatType():
            found.floats = True
        case types.CustomType():
            found.objects = found.floats = True
            found.foreign = None if is_storable(info.cls) else info.cls
        case types.EnumType() | types.StructType() | types.DataclassType() | types.NamedTupleType():
            found.objects = True
    for part in _parts(info):
        inner = getattr(part, "cls", None)
        if inner is not None and inner in seen:
            found.open = True
            continue
        deeper = _walk(part, seen | {inner} if inner is not None else seen)
        found.floats |= deeper.floats
        found.open |= deeper.open
        found.objects |= deeper.objects
        found.foreign = found.foreign or deeper.foreign
    return found


def _parts(info: types.Type) -> list[types.Type]:
    """Return the types directly inside a type, such as the item type of a list or the field types of a struct."""
    found: list[types.Type] = []
    for name in ("types", "item_types"):
        found += getattr(info, name, ())
    for name in ("type", "item_type", "key_type", "value_type"):
        if isinstance(part := getattr(info, name, None), types.Type):
            found.append(part)
    for field in getattr(info, "fields", ()):
        found.append(field.type)
    return found
