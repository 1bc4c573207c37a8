"""The wire between a node and the one store: every call is a message.

A message may be late, lost on the way there (no effect), lost on the way back (an effect nobody hears of), or
delivered twice. Its effect happens at the store, not at the sender, so a request outlives the node that sent it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.base import BaseStore
from millrace.store.protocol import Store
from proof.simulation.loop import VirtualLoop

_NO_MESSAGE = frozenset({"wait", "wait_for_cancel", "watch", "scan"})  # hints and readers: who can tell a lost one?
Witness = Callable[[str, str, tuple[Any, ...], Any], None]


class Weather(msgspec.Struct):
    """How bad the wire is now: shares of calls, and seconds. All zero is a calm day."""

    delay: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    doubled: float = 0.0
    patience: float = 0.5  # until a caller gives up on an answer

    def calm(self) -> None:
        self.lost = self.unanswered = self.doubled = 0.0
        self.delay = min(self.delay, 0.01)


class Wire:
    """A store as one node sees it. Cut, it answers nothing but errors: what a node says after its end is not heard."""

    def __init__(
        self,
        store: Store,
        node: str,
        loop: VirtualLoop,
        weather: Weather,
        chance: random.Random,
        witness: Witness,
        happened: Counter[str],
    ) -> None:
        self.url, self.ids = store.url, store.ids
        self.concurrent_writes, self.small_claims = store.concurrent_writes, store.small_claims
        self._store = store
        self._node = node
        self._loop = loop
        self._weather = weather
        self._chance = chance
        self._witness = witness
        self._happened = happened
        self._is_cut = False
        self._nowhere = Context()  # effects belong to no node, so no crash takes them back

    def cut(self) -> None:
        self._is_cut = True

    def for_loop(self) -> Wire:
        return self

    enqueue_behind = BaseStore.enqueue_behind

    async def connect(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if self._is_cut:
            return self._refuse
        return method if name in _NO_MESSAGE else partial(self._send, name, method)

    async def _refuse(self, *args: Any, **more: Any) -> Any:
        raise StoreError(f"node {self._node} is no more, so the store does not hear it")

    async def _send(self, name: str, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **more: Any) -> Any:
        weather, chance = self._weather, self._chance
        answer: asyncio.Future[Any] = self._loop.create_future()
        fate = chance.random()
        there, back = (chance.expovariate(1 / weather.delay) if weather.delay else 0.0 for _ in range(2))
        if there > 0.1:
            self._note("late")
        call = partial(method, *args, **more)
        lost, unanswered = weather.lost, weather.lost + weather.unanswered
        if fate < lost:
            self._note("lost")
            self._later(weather.patience, self._give_up, answer, name)
        elif fate < unanswered:
            self._note("unanswered")
            self._later(there, self._deliver, name, args, call, None, 0.0)
            self._later(there + weather.patience, self._give_up, answer, name)
        else:
            self._later(there, self._deliver, name, args, call, answer, back)
            if fate < unanswered + weather.doubled:
                self._note("doubled")
                first_to_answer = answer if chance.random() < 0.3 else None
                self._later(there * 3 * chance.random(), self._deliver, name, args, call, first_to_answer, back)
        return await answer

    def _note(self, mishap: str) -> None:
        self._happened[mishap] += 1

    def _later(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        self._loop.call_later(delay, callback, *args, context=self._nowhere)

    def _deliver(
        self,
        name: str,
        args: tuple[Any, ...],
        call: Callable[[], Coroutine[Any, Any, Any]],
        answer: asyncio.Future[Any] | None,
        back: float,
    ) -> None:
        told = run_now(call())
        self._witness(self._node, name, args, told)
        if answer is not None:
            self._later(back, _answer, answer, told)

    def _give_up(self, answer: asyncio.Future[Any], name: str) -> None:
        _answer(answer, StoreError(f"no answer to {name} within {self._weather.patience} s; it may have happened"))


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The memory store never waits, so a call is one step; an error is an answer too."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    except Exception as error:
        return error
    coroutine.close()
    raise AssertionError(f"{coroutine} waited inside the store: it is not one atomic step")


def _answer(future: asyncio.Future[Any], told: Any) -> None:
    if future.done():
        return
    if isinstance(told, Exception):
        future.set_exception(told)
        future.exception()  # seen: its node may be gone, and nobody should be told so at the end
    else:
        future.set_result(told)
