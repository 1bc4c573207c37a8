"""`app.gather` and `app.chain`, with their types: how the result of each step becomes the argument of the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from millrace.app.flows.compose import Chain, Flow, Following, Gather, OpenFlow
from millrace.domain.job import Spec

if TYPE_CHECKING:
    from millrace.app.app import App

    Part = Spec["A"] | Flow["A"]  # a complete part of a flow
    OpenPart = Following["T", "A"] | OpenFlow["T", "A"]  # gets the result of a step before
    Step = Following["A", "B"] | OpenFlow["A", "B"] | Spec["B"] | Flow["B"]  # a step after another one

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")


class Composer:
    """The methods of an app that build flows."""

    @overload
    def gather(self, parts: Iterable[Part[A]], /) -> Flow[list[A]]: ...
    @overload
    def gather(self, parts: Iterable[OpenPart[T, A]], /) -> OpenFlow[T, list[A]]: ...
    @overload
    def gather(self, a: Part[A], b: Part[B], /) -> Flow[tuple[A, B]]: ...
    @overload
    def gather(self, a: Part[A], b: Part[B], c: Part[C], /) -> Flow[tuple[A, B, C]]: ...
    @overload
    def gather(self, a: Part[A], b: Part[B], c: Part[C], d: Part[D], /) -> Flow[tuple[A, B, C, D]]: ...
    @overload
    def gather(self, a: Part[A], b: Part[B], c: Part[C], d: Part[D], e: Part[E], /) -> Flow[tuple[A, B, C, D, E]]: ...
    @overload
    def gather(
        self, a: Part[A], b: Part[B], c: Part[C], d: Part[D], e: Part[E], f: Part[F], /
    ) -> Flow[tuple[A, B, C, D, E, F]]: ...
    @overload
    def gather(
        self, a: Part[A], b: Part[B], c: Part[C], d: Part[D], e: Part[E], f: Part[F], g: Part[G], /
    ) -> Flow[tuple[A, B, C, D, E, F, G]]: ...
    @overload
    def gather(
        self, a: Part[A], b: Part[B], c: Part[C], d: Part[D], e: Part[E], f: Part[F], g: Part[G], h: Part[H], /
    ) -> Flow[tuple[A, B, C, D, E, F, G, H]]: ...
    @overload
    def gather(self, a: OpenPart[T, A], b: OpenPart[T, B], /) -> OpenFlow[T, tuple[A, B]]: ...
    @overload
    def gather(self, a: OpenPart[T, A], b: OpenPart[T, B], c: OpenPart[T, C], /) -> OpenFlow[T, tuple[A, B, C]]: ...
    @overload
    def gather(
        self, a: OpenPart[T, A], b: OpenPart[T, B], c: OpenPart[T, C], d: OpenPart[T, D], /
    ) -> OpenFlow[T, tuple[A, B, C, D]]: ...
    def gather(self, *parts: Any) -> Any:
        """Return a flow whose parts run in any order: `app.gather(a.spec(1), b.spec(2)).then(c)`.

        A part is a spec or a flow. The result is a tuple of the results of the parts. For any number of parts, pass a
        list, and the result is a list: `app.gather([resize.spec(name) for name in names])`. As a step of a chain, the
        parts can be tasks: each gets the result of the step before.
        """
        is_list = len(parts) == 1 and isinstance(parts[0], Iterable)
        return self._flow(Gather(parts[0], list) if is_list else Gather(parts, tuple))

    @overload
    def chain(self, a: Part[A], /) -> Flow[A]: ...
    @overload
    def chain(self, a: Part[A], b: Step[A, B], /) -> Flow[B]: ...
    @overload
    def chain(self, a: Part[A], b: Step[A, B], c: Step[B, C], /) -> Flow[C]: ...
    @overload
    def chain(self, a: Part[A], b: Step[A, B], c: Step[B, C], d: Step[C, D], /) -> Flow[D]: ...
    @overload
    def chain(self, a: Part[A], b: Step[A, B], c: Step[B, C], d: Step[C, D], e: Step[D, E], /) -> Flow[E]: ...
    @overload
    def chain(
        self, a: Part[A], b: Step[A, B], c: Step[B, C], d: Step[C, D], e: Step[D, E], f: Step[E, F], /
    ) -> Flow[F]: ...
    @overload
    def chain(
        self, a: Part[A], b: Step[A, B], c: Step[B, C], d: Step[C, D], e: Step[D, E], f: Step[E, F], g: Step[F, G], /
    ) -> Flow[G]: ...
    @overload
    def chain(
        self,
        a: Part[A],
        b: Step[A, B],
        c: Step[B, C],
        d: Step[C, D],
        e: Step[D, E],
        f: Step[E, F],
        g: Step[F, G],
        h: Step[G, H],
        /,
    ) -> Flow[H]: ...
    @overload
    def chain(self, a: OpenPart[T, A], b: Step[A, B], /) -> OpenFlow[T, B]: ...
    @overload
    def chain(self, a: OpenPart[T, A], b: Step[A, B], c: Step[B, C], /) -> OpenFlow[T, C]: ...
    @overload
    def chain(self, a: OpenPart[T, A], b: Step[A, B], c: Step[B, C], d: Step[C, D], /) -> OpenFlow[T, D]: ...
    @overload
    def chain(self, steps: Iterable[Any], /) -> Flow[Any]: ...
    def chain(self, *steps: Any) -> Any:
        """Return a flow whose steps run one after the other: `app.chain(fetch.spec(url), parse, store)`.

        The first step is a spec or a flow. Each further one is a task, which gets the result of the step before as its
        first argument; a `gather` of tasks, each of which gets it; or a spec, which only waits for the step before.
        For any number of steps, pass a list.
        """
        is_list = len(steps) == 1 and isinstance(steps[0], Iterable)
        return self._flow(Chain(steps[0] if is_list else steps))

    def _flow(self, steps: Chain | Gather) -> Flow[Any] | OpenFlow[Any, Any]:
        app = cast("App", self)
        return OpenFlow(app, steps) if steps.is_open else Flow(app, steps)
