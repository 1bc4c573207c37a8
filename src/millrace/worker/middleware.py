"""Middleware: how the layers around a handler are called.

`Executor` determines once per task whether its runs pass through middleware.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from millrace.app.host import Middleware
from millrace.worker.process.remote import Encoded

if TYPE_CHECKING:
    from millrace.app.handler.injection import Injection
    from millrace.worker.run import Run

Strategy = Callable[["Run"], Awaitable[object]]


async def run_on_loop(run: Run, handler: Callable[..., Any] | None = None) -> object:
    """Await a handler and return its result. This is the strategy of `async def` handlers with middleware.

    `handler` replaces that of the task: it already has the values of injected parameters.
    """
    result: object = await (handler or run.task.handler)(**run.arguments())
    return result


def with_injection(injection: Injection, strategy: Callable[[Run, Callable[..., Any]], Awaitable[object]]) -> Strategy:
    """Return a strategy that makes the values of injected parameters, runs the handler, and cleans up."""

    async def run_injected(run: Run) -> object:
        async with injection.open(run.own_context(), run.scope) as values:
            return await strategy(run, values.injected_into(run.task.handler))

    return run_injected


def with_middleware(layers: Sequence[Middleware], strategy: Strategy) -> Strategy:
    """Return a strategy that calls `strategy` through all layers of middleware, the first layer outermost.

    All layers run in the asyncio task of the run. So the context variables that a layer sets are visible to the inner
    layers and to the handler, even in a thread. The outcome of the attempt is what the outermost layer returns or
    raises. The lease, the timeout, an abort and the settle are handled outside of all layers.
    """

    async def run_layers(run: Run) -> object:
        return await _CallNext(run, strategy, layers, 0)()

    return run_layers


class _CallNext:
    """The `call_next` argument of a layer. It calls the next layer; in the last layer, it calls the strategy."""

    __slots__ = ("_called", "_index", "_layers", "_run", "_strategy")

    def __init__(self, run: Run, strategy: Strategy, layers: Sequence[Middleware], index: int) -> None:
        self._run = run
        self._strategy = strategy
        self._layers = layers
        self._index = index
        self._called = False

    async def __call__(self) -> Any:
        if self._called:
            raise RuntimeError(
                "call_next() was called twice in one attempt, and an attempt happens once. "
                "Raise Retry(…) to have another one."
            )
        self._called = True
        run, index = self._run, self._index
        if index < len(self._layers):
            return await self._layers[index](run.own_context(), _CallNext(run, self._strategy, self._layers, index + 1))
        value = await self._strategy(run)
        return run.task.load_result(value.data, run.job.spec.serde) if isinstance(value, Encoded) else value
