"""A server that stops answering without a word: no end of a line, no refusal. Nobody hangs, nothing is lost or doubled.

What TCP would find out in a quarter of an hour is found out by the store's own timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.errors import StoreError
from millrace.domain.event import Kind
from millrace.store.redis import RedisStore, messages
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.invariants import assert_holds, gather
from tests.narrowing import the
from tests.servers.redis_server import url_for
from tests.servers.tcp_proxy import TcpProxy, tcp_proxy

TIMEOUT = 0.5
PATIENCE = 120.0
JOBS = 60


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[tuple[TcpProxy, str]]:
    async with tcp_proxy(url_for(tmp_path, timeout=TIMEOUT)) as through:
        yield through


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["new lines work", "nothing works for a while"])
async def test_a_worker_goes_on_when_its_lines_fall_silent(line, tmp_path: Path, how: str):
    """In the middle of claims, settles, beats and hints; once what was held back has arrived late, all is counted."""
    proxy, url = line
    app, ran = App(url), Counter[int]()

    @app.task(lease=20)
    async def work(n: int) -> int:
        ran[n] += 1
        await asyncio.sleep(0.01)
        return n

    near = RedisStore(url_for(tmp_path))
    async with app, app.worker(slots=3):
        await work.enqueue_many([{"n": n} for n in range(JOBS // 2)])
        await until(lambda: len(ran) >= 10)
        if how == "new lines work":
            proxy.forget_lines()
        else:
            proxy.fall_silent()
            await asyncio.sleep(3 * TIMEOUT)
            proxy.speak()
        begun = time.monotonic()
        await work.enqueue_many([{"n": n} for n in range(JOBS // 2, JOBS)])
        assert time.monotonic() - begun < PATIENCE / 2, "the producer hung"
        await until(lambda: len(ran) == JOBS)
        async with asyncio.timeout(PATIENCE):
            while sum(row.completed for row in await near.count()) < JOBS:
                await asyncio.sleep(0.05)

    assert set(ran.values()) == {1}, "run twice"
    evidence = await gather(near)
    assert_holds(evidence)
    kinds = Counter(event.kind for event in evidence.events)
    assert (kinds[Kind.ENQUEUED], kinds[Kind.COMPLETED], kinds[Kind.RECLAIMED]) == (JOBS, JOBS, 0)
    await near.close()


async def test_a_call_that_nobody_answers_ends_in_words(line):
    proxy, url = line
    store = RedisStore(f"{url}&patience=1")
    await store.connect()
    proxy.fall_silent()
    begun = time.monotonic()

    with pytest.raises(StoreError, match=r"could not be reached within 1 s.*repeating it is safe"):
        await store.enqueue([a_spec(id="asked twice")])

    assert time.monotonic() - begun < PATIENCE / 2
    proxy.speak()
    [answer] = await store.enqueue([a_spec(id="asked twice", token="another")])
    [found] = await store.get(["asked twice"])
    assert found is not None and answer.status in ("queued", "duplicate")
    assert len(await store.claim(a_claim(10))) == 1
    await store.close()


async def test_one_silent_line_is_enough_to_leave_all_that_are_as_old(line):
    """Else each of them would cost somebody a timeout later, whenever so many calls come at once again."""
    proxy, url = line
    store = RedisStore(url)
    await store.connect()
    await asyncio.gather(*(store.get([f"nobody-{n}"]) for n in range(10)))  # enqueues would share a connection
    assert proxy.lines >= 10
    proxy.forget_lines()

    [answer] = await store.enqueue([a_spec()])
    answers = await asyncio.gather(*(store.get([answer.id]) for _ in range(10)))

    assert answer.status == "queued"
    assert {the(job).id for [job] in answers} == {answer.id}
    assert proxy.dropped == 1
    await store.close()


async def test_what_arrives_late_is_not_done_again(line):
    """Calls were sent, given up, sent again on other lines and answered; then the first sendings arrive after all."""
    proxy, url = line
    store = RedisStore(f"{url}&patience=10")
    await store.connect()
    asked = specs(8)
    await store.enqueue(asked[:4])
    proxy.fall_silent()
    calls = [asyncio.create_task(store.enqueue([spec])) for spec in asked[4:]]
    claim = asyncio.create_task(store.claim(a_claim(2)))
    await asyncio.sleep(2.5 * TIMEOUT)  # each has been sent more than once by now

    proxy.speak()
    answers = [answer for [answer] in await asyncio.gather(*calls)]
    jobs = await claim
    await asyncio.sleep(TIMEOUT)

    assert [answer.status for answer in answers] == ["queued"] * 4
    assert len(jobs) == 2
    [counts] = await store.count()
    assert (counts.waiting, counts.running) == (6, 2)
    assert_holds(await gather(store))
    await store.close()


async def test_a_listener_that_hears_nothing_any_more_listens_anew(line, monkeypatch: pytest.MonkeyPatch):
    """Else hints would come to nobody until TCP gives up, and every job would wait for a poll."""
    monkeypatch.setattr(messages, "_QUIET", 0.2)
    monkeypatch.setattr(messages, "_ANSWER", 0.2)
    proxy, url = line
    worker, producer = RedisStore(url), RedisStore(url)
    sleeper = asyncio.create_task(worker.wait(["default"], None, PATIENCE))
    await until(worker._here().listener._subscribed.is_set)
    proxy.forget_lines()
    begun = time.monotonic()

    await sleeper  # woken once it listens again, for what was said meanwhile nobody has heard
    another = asyncio.create_task(worker.wait(["default"], None, PATIENCE))
    await until(worker._here().listener._subscribed.is_set)
    await asyncio.sleep(0.1)
    await producer.enqueue([a_spec()])
    await another

    assert time.monotonic() - begun < PATIENCE / 2
    for store in (worker, producer):
        await store.close()
