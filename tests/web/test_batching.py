"""Enqueues of many clients at once: each is answered for its own job, however they reach the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from millrace import App, JobHandle
from millrace.domain.errors import InvalidInput, QueueFull, StoreError
from millrace.domain.job import Spec, State
from millrace.domain.request import Enqueued
from millrace.testing.builders import a_spec
from millrace.web.batching import MOST, EnqueueBatcher
from tests.web.stage import Web


async def test_many_at_once_are_all_there_once_each_under_its_own_answer(web: Web):
    async def one(number: int) -> str:
        return await web.enqueue(payload={"n": number}, queue="ab"[number % 2])

    ids = await asyncio.gather(*(one(number) for number in range(40)))
    jobs = (await web.get("/api/jobs", limit=100))["jobs"]
    assert Counter(job["id"] for job in jobs) == Counter(ids)
    for number in (0, 1, 17, 39):
        job = await web.get(web.job(ids[number]))
        assert (job["payload"], job["queue"]) == ({"n": number}, "ab"[number % 2])


async def test_what_is_refused_for_one_is_not_refused_for_the_others(web: Web):
    await web.ask("PATCH", "/api/queues/narrow", {"max_depth": 3}, status=200)

    async def one(queue: str) -> int:
        return int((await web.ask("POST", "/api/jobs", {"task": "pack", "queue": queue})).status_code)

    answers = await asyncio.gather(*(one(queue) for queue in ["narrow", "wide"] * 6))
    assert Counter(answers[0::2]) == {201: 3, 429: 3}
    assert Counter(answers[1::2]) == {201: 6}
    jobs = (await web.get("/api/jobs"))["jobs"]
    assert Counter(job["queue"] for job in jobs) == {"narrow": 3, "wide": 6}


class Counting:
    """Stands for the app: calls are counted, and end when they are let."""

    tracing = None

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.go = asyncio.Event()
        self.wrong: dict[str, Exception] = {}

    async def enqueue(self, specs: Sequence[Spec]) -> list[JobHandle[Any]]:
        self.calls.append(len(specs))
        await self.go.wait()
        for spec in specs:
            if spec.id in self.wrong:
                raise self.wrong[spec.id]
        answers = [Enqueued("queued", spec.id, number, 1, State.WAITING) for number, spec in enumerate(specs)]
        return [JobHandle(App(), answer.id, answer) for answer in answers]


@pytest.fixture
def app() -> Any:
    return Counting()


def asked(app: Any, together: EnqueueBatcher, *ids: str) -> list[asyncio.Task[Enqueued]]:
    return [asyncio.create_task(together.enqueue(app, a_spec(id=one))) for one in ids]


async def test_what_arrives_while_a_call_is_under_way_goes_with_the_next(app: Any):
    together = EnqueueBatcher()
    first = asked(app, together, "a")
    while not app.calls:
        await asyncio.sleep(0)
    others = asked(app, together, *(f"job-{n}" for n in range(MOST + 5)))
    await asyncio.sleep(0)
    app.go.set()
    answers = await asyncio.gather(*first, *others)
    assert app.calls == [1, MOST, 5]
    assert [one.id for one in answers] == ["a", *(f"job-{n}" for n in range(MOST + 5))]
    assert [one.id for one in await asyncio.gather(*asked(app, together, "later"))] == ["later"]


async def test_a_client_that_goes_away_takes_nothing_from_the_others(app: Any):
    together = EnqueueBatcher()
    first, gone, last = asked(app, together, "a", "b", "c")
    while not app.calls:
        await asyncio.sleep(0)
    gone.cancel()
    app.go.set()
    assert [(await first).id, (await last).id] == ["a", "c"]
    assert gone.cancelled() and app.calls == [3]


async def test_whose_fault_it_was_shows_when_each_goes_alone(app: Any):
    together = EnqueueBatcher()
    app.go.set()
    app.wrong = {"b": QueueFull("q", 1, 1), "d": InvalidInput("no")}
    answers = await asyncio.gather(*asked(app, together, "a", "b", "c", "d"), return_exceptions=True)
    assert [type(one) for one in answers] == [Enqueued, QueueFull, Enqueued, InvalidInput]
    assert app.calls == [4, 1, 1, 1, 1]


async def test_a_store_that_is_gone_is_asked_once(app: Any):
    """What it did before it went is not known, so nothing is sent again."""
    together = EnqueueBatcher()
    app.go.set()
    app.wrong = {"b": StoreError("gone")}
    answers = await asyncio.gather(*asked(app, together, "a", "b", "c"), return_exceptions=True)
    assert [type(one) for one in answers] == [StoreError] * 3 and app.calls == [3]


async def test_jobs_that_may_concern_each_other_go_as_they_came(web: Web, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    enqueue = App.enqueue

    async def counted(app: App, specs: Any, **more: Any) -> list[JobHandle[Any]]:
        specs = list(specs)
        calls.append(len(specs))
        return await enqueue(app, specs, **more)

    monkeypatch.setattr(App, "enqueue", counted)
    given = ({"id": "x"}, {"key": "k"}, {"group": "g"}, {"delay": "1h"}, {"expires": "1h"})
    await asyncio.gather(*(web.enqueue(**one) for one in given))
    assert calls == [1] * len(given)
