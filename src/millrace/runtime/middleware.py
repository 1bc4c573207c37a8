"""Middleware: layers around each attempt, the first registered outermost (L-10).

A layer runs in the attempt's own task on the worker's loop, so context variables that it sets are seen by the layers
inside it and by the handler, on the loop or in a thread. What it returns or raises stands for the attempt. It cannot
touch the lease: the timeout, an abort and the settle are outside of all layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from millrace.domain.errors import InvalidInput
from millrace.runtime.host import CallNext, Middleware
from millrace.runtime.process.remote import Encoded
from millrace.runtime.run import Run
from millrace.runtime.ways import Way

__all__ = ["CallNext", "Middleware", "around", "read_layers"]


def read_layers(where: str, layers: Iterable[Any]) -> tuple[Middleware, ...]:
    """Layers as somebody wrote them down, checked."""
    if callable(layers) or not isinstance(layers, Iterable):
        raise InvalidInput(f"{where} takes a list of middleware, not {layers!r}")
    found = tuple(layers)
    for layer in found:
        if not _is_async(layer):
            raise InvalidInput(f"{where}: middleware must be `async def layer(ctx, call_next)`, {layer!r} is not")
    return found


def _is_async(layer: object) -> bool:
    return inspect.iscoroutinefunction(layer) or inspect.iscoroutinefunction(getattr(layer, "__call__", None))  # noqa: B004


def around(core: Way, layers: Sequence[Middleware]) -> Way:
    """The way through all layers to `core`; the first of them is the outermost."""
    if not layers:
        return core

    async def through(run: Run) -> object:
        return await _Step(run, core, layers, 0)()

    return through


class _Step:
    """What a layer is given as `call_next`."""

    __slots__ = ("_core", "_index", "_layers", "_run", "_taken")

    def __init__(self, run: Run, core: Way, layers: Sequence[Middleware], index: int) -> None:
        self._run = run
        self._core = core
        self._layers = layers
        self._index = index
        self._taken = False

    async def __call__(self) -> Any:
        if self._taken:
            raise RuntimeError(
                "call_next() was called twice in one attempt, and an attempt happens once. "
                "Raise Retry(…) to have another one."
            )
        self._taken = True
        run, index = self._run, self._index
        if index < len(self._layers):
            return await self._layers[index](run.own_context(), _Step(run, self._core, self._layers, index + 1))
        value = await self._core(run)
        return run.task.load_result(value.data, run.job.spec.serde) if isinstance(value, Encoded) else value
