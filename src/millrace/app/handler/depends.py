"""`Depends`: marks a parameter of a handler whose value a function makes, the provider, instead of the producer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from millrace.domain.errors import InvalidInput

T = TypeVar("T")
ProviderScope = Literal["job", "worker"]


@dataclass(frozen=True)
class Dependency:
    """What `Depends` returns. It is found as the default of a parameter, or inside of its `Annotated[…]`."""

    provider: Callable[..., Any]
    scope: ProviderScope


@overload
def Depends(provider: Callable[..., AsyncIterator[T]], *, scope: ProviderScope = "job") -> T: ...
@overload
def Depends(provider: Callable[..., Iterator[T]], *, scope: ProviderScope = "job") -> T: ...
@overload
def Depends(provider: Callable[..., Coroutine[Any, Any, T]], *, scope: ProviderScope = "job") -> T: ...
@overload
def Depends(provider: Callable[..., T], *, scope: ProviderScope = "job") -> T: ...
def Depends(provider: Callable[..., Any], *, scope: ProviderScope = "job") -> Any:  # the usual name
    """Mark a parameter whose value `provider` makes: `db: Session = Depends(session)`, or
    `db: Annotated[Session, Depends(session)]`.

    The parameter is not part of the payload. A provider is a function, a coroutine function or a generator function
    with one `yield`, whose rest runs after the attempt. It may have a Context and further parameters marked with
    Depends. Its value is made once per attempt, or with scope="worker" once per worker.
    """
    if not callable(provider):
        raise InvalidInput(f"Depends takes a function that makes the value, not {provider!r}")
    if scope not in ("job", "worker"):
        raise InvalidInput(f'the scope of a provider is "job" or "worker", not {scope!r}')
    return Dependency(provider, scope)


def dependency_in(default: object, annotation: object) -> Dependency | None:
    """Return the mark of a parameter with this default and this annotation; None if it has none."""
    if isinstance(default, Dependency):
        return default
    marks = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Dependency)]
    return marks[-1] if marks else None
