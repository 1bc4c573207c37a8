"""Everybody hears of a job: few look at once, and somebody always does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping

import pytest

from millrace.domain.tables import Place
from millrace.store.postgres.hints import Hint, HintHandler
from proof.simulation.loop import VirtualLoop

DEADLINE = 60.0


class Crowd:
    """Processes with one sleeper each, which receive each other's announcements at once."""

    def __init__(self, size: int) -> None:
        self.looks: list[int] = []
        self.said = 0
        self.handlers = [
            HintHandler(self._waker(number), self._can_use(number), self._announce_taken) for number in range(size)
        ]

    def _can_use(self, number: int) -> Callable[[Iterable[Place]], int]:
        return lambda places: int(number not in self.looks)

    def _waker(self, number: int) -> Callable[[Mapping[Place, int]], Mapping[Place, int]]:
        def wake(jobs: Mapping[Place, int]) -> Mapping[Place, int]:
            [(place, count)] = jobs.items()
            if number in self.looks:
                return jobs
            self.looks.append(number)
            return {place: count - 1}

        return wake

    def _announce_taken(self, place: Place, jobs: int) -> None:
        self.said += 1
        asyncio.get_running_loop().call_soon(self._receive_taken, Hint(*place, jobs))

    def _receive_taken(self, hint: Hint) -> None:
        for handler in self.handlers:
            handler.receive_taken(hint)

    async def receive(self, hint: Hint) -> int:
        """How many looked in the end."""
        for handler in self.handlers:
            handler.receive(hint)
        async with asyncio.timeout(DEADLINE):
            while not self.looks or any(handler._timers for handler in self.handlers):
                await asyncio.sleep(0.005)
        return len(self.looks)


@pytest.mark.parametrize("jobs", [1, 5])
@pytest.mark.parametrize("seed", range(20))
def test_a_few_of_many_look_for_each_job(seed: int, jobs: int) -> None:
    """On a virtual clock: on a real one, a busy machine lets many timers expire before the first is announced."""
    random.seed(seed)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        looked = runner.run(Crowd(200).receive(Hint("q", "t", jobs, 200)))

    assert jobs <= looked <= jobs + 20


async def test_the_only_one_who_can_use_a_hint_looks_whatever_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.999)

    assert await Crowd(1).receive(Hint("q", "t", 1, 1_000)) == 1


async def test_all_of_a_few_look_at_once_and_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.999)
    crowd = Crowd(3)
    for handler in crowd.handlers:
        handler.receive(Hint("q", "t", 1, 3))

    assert (len(crowd.looks), crowd.said) == (3, 0)


async def test_who_hesitates_sleeps_on_once_others_go_for_all_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.999)
    [handler] = (crowd := Crowd(1)).handlers
    handler.receive(Hint("q", "t", 2, 50))
    handler.receive_taken(Hint("q", "t", 1))
    assert handler._timers
    handler.receive_taken(Hint("q", "t", 1))
    handler.receive_taken(Hint("q", "t", 1))

    assert (handler._timers, handler._open, crowd.looks) == ({}, {}, [])
    handler.receive(Hint("q", "t", 1, 50))
    handler.close()
    assert handler._timers == {}
