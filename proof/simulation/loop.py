"""An event loop in which time is a number and every process is a label.

Nothing here waits: when no callback is ready, the time jumps to the next timer. Whatever a node does runs in a
context that carries its name, so the loop can stop a node the way a machine does, in the middle of anything:
a crashed node's callbacks are dropped (no `finally` runs), a paused node's are kept until it goes on.

The order of callbacks within one instant is drawn from a seed. Tasks and futures are numbered, so that a set of
them is walked in the same order in every process.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import warnings
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn, TypeVar

NODE: ContextVar[str | None] = ContextVar("node", default=None)
T = TypeVar("T")

_SAME_INSTANT = 1e-9


class Stuck(AssertionError):
    """Nothing can happen any more, or too much does: the simulation would never end."""


class VirtualLoop(asyncio.BaseEventLoop):
    """`chance` shuffles what is ready at one instant; without it callbacks run in the order they were made."""

    def __init__(self, chance: random.Random | None = None, *, most_steps: int = 2_000_000) -> None:
        super().__init__()
        self._at = 0.0
        self._chance = chance
        self._steps_left = most_steps
        self._soon: list[tuple[asyncio.Handle, str | None]] = []
        self._later: list[tuple[float, int, asyncio.TimerHandle, str | None]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._crashed: set[str] = set()
        self._paused: dict[str, list[asyncio.Handle]] = {}
        self._tasks: list[_Task[Any]] = []
        self.set_task_factory(_numbered_task)

    # ── time and callbacks ────────────────────────────────────────────────────────────────────

    def time(self) -> float:
        return self._at

    def call_soon(  # type: ignore[override]  # typeshed's generic form of the same signature
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append((handle, _node_of(context)))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # as above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._later, (when, next(self._order), timer, _node_of(context)))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(number=next(self._numbers), loop=self)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        raise AssertionError(f"{func!r} would run in a thread, which no seed can order: simulate async code only")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when its time comes."""

    def _run_once(self) -> None:
        """One instant: what is ready now. The heart of `run_forever`, which calls it in a loop."""
        if not self._soon and not self._stopping:  # type: ignore[attr-defined]  # run_forever's own flag
            self._jump()
        while self._later and self._later[0][0] <= self._at + _SAME_INSTANT:
            _, _, timer, node = heapq.heappop(self._later)
            if not timer.cancelled():
                self._soon.append((timer, node))
        ready, self._soon = self._soon, []
        if self._chance is not None:
            self._chance.shuffle(ready)
        self._steps_left -= len(ready)
        if self._steps_left < 0:
            raise Stuck(f"too many callbacks; the time is {self._at:.3f} s: something spins without sleeping")
        for handle, node in ready:
            if handle.cancelled() or node in self._crashed:
                continue
            if node in self._paused:
                self._paused[node].append(handle)
            else:
                handle._run()  # what a loop is for

    def _jump(self) -> None:
        while self._later and (self._later[0][2].cancelled() or self._later[0][3] in self._crashed):
            heapq.heappop(self._later)
        if not self._later:
            raise Stuck(f"no callback and no timer is left at {self._at:.3f} s: everything waits for ever")
        self._at = max(self._at, self._later[0][0])

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────

    def start(self, node: str, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as the main task of a node; all that it starts belongs to the node too."""
        context = copy_context()
        context.run(NODE.set, node)
        return self.create_task(main, name=node, context=context)

    def crash(self, node: str) -> None:
        """From now on the node does nothing: what it was about to do is not done, and nothing is cleaned up."""
        self._crashed.add(node)
        self._paused.pop(node, None)

    def pause(self, node: str) -> None:
        """The node stands still, as under SIGSTOP; its timers go off when it goes on."""
        if node not in self._crashed:
            self._paused.setdefault(node, [])

    def resume(self, node: str) -> None:
        self._soon.extend((handle, node) for handle in self._paused.pop(node, ()))

    def is_up(self, node: str) -> bool:
        return node not in self._crashed and node not in self._paused

    def sweep_up(self) -> None:
        """Close what crashed nodes left behind, outside of simulated time, so that no warning tells of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a `finally` may make a coroutine that nobody will run
            for task in self._tasks:
                if not task.done():
                    task.close_quietly()
            self._tasks.clear()

    def register(self, task: _Task[Any]) -> int:
        """Keep a crashed node's tasks alive until the end: collecting one would run its `finally`."""
        if len(self._tasks) > 1_000:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
        self._tasks.append(task)
        return next(self._numbers)


class _Future(asyncio.Future[Any]):
    """A set of futures is walked by hash; by default that is an address, which no seed decides."""

    def __init__(self, *, number: int, loop: VirtualLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Task(asyncio.Task[T]):
    def __init__(self, coro: Any, *, loop: VirtualLoop, **more: Any) -> None:
        self._number = loop.register(self)
        super().__init__(coro, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def close_quietly(self) -> None:
        self._log_destroy_pending = False
        coroutine = self.get_coro()
        try:
            if coroutine is not None:
                coroutine.close()
        except BaseException:  # its `finally` wanted to wait: nobody is left to wait for
            return


def _numbered_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **more: Any
) -> asyncio.Task[T]:
    assert isinstance(loop, VirtualLoop)
    return _Task(coro, loop=loop, **more)


def _node_of(context: Context | None) -> str | None:
    return NODE.get() if context is None else context.get(NODE)
