"""Callers that enqueue at the same time share calls, and do not affect each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.errors import QueueFull, StoreError
from millrace.store import shared_enqueues as module
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_spec
from tests.servers.redis_server import url_for

CALLERS = 100


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisStore]:
    made = RedisStore(url_for(tmp_path))
    yield made
    await made.close()


def recorded(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each script that the store calls."""
    sent: list[str] = []
    ask = store._wire.ask

    async def noted(name: str, *rest: Any, **more: Any) -> Any:
        sent.append(name)
        return await ask(name, *rest, **more)

    monkeypatch.setattr(store._wire, "ask", noted)
    return sent


def a_named_spec(name: str, **more: Any) -> Any:
    return a_spec(id=name, **{"token": name, **more})


async def test_callers_at_the_same_time_share_a_call(store: RedisStore, monkeypatch: pytest.MonkeyPatch):
    sent = recorded(store, monkeypatch)
    answers = await asyncio.gather(*(store.enqueue([a_named_spec(f"n-{n}")]) for n in range(CALLERS)))

    assert sent == ["fast_path/enqueue_one", "fast_path/enqueue"]
    assert [answer[0].id for answer in answers] == [f"n-{n}" for n in range(CALLERS)]
    assert [answer[0].seq for answer in answers] == list(range(1, CALLERS + 1))
    assert [job.seq for job in await store.get([f"n-{n}" for n in range(CALLERS)]) if job is not None] == list(
        range(1, CALLERS + 1)
    )


async def test_a_shared_call_has_a_limit(store: RedisStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MOST_SPECS", 40)
    monkeypatch.setattr(module, "_MOST_BYTES", 250)
    sent = recorded(store, monkeypatch)
    answers = await asyncio.gather(*(store.enqueue([a_named_spec(f"n-{n}", payload=b"x" * 10)]) for n in range(51)))

    assert sent == ["fast_path/enqueue_one", "fast_path/enqueue", "fast_path/enqueue"]
    assert len({answer[0].seq for answer in answers}) == 51


async def test_a_duplicate_among_many_is_recognized(store: RedisStore):
    await store.enqueue([a_named_spec("n-7", token="another")])
    answers = await asyncio.gather(*(store.enqueue([a_named_spec(f"n-{n}")]) for n in range(20)))

    assert [answer[0].status for answer in answers] == ["queued"] * 7 + ["duplicate"] + ["queued"] * 12


async def test_a_duplicate_does_not_send_the_others_to_the_general_script(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
):
    await store.enqueue([a_named_spec("n-7", token="another")])
    sent = recorded(store, monkeypatch)
    general: list[int] = []
    change = store._wire.change

    async def noted(name: str, *rest: Any, **more: Any) -> Any:
        general.append(len(rest[0][0]))
        return await change(name, *rest, **more)

    monkeypatch.setattr(store._wire, "change", noted)
    answers = await asyncio.gather(*(store.enqueue([a_named_spec(f"n-{n}")]) for n in range(12)))

    again = ["fast_path/enqueue", "fast_path/enqueue_one"]  # the others without the duplicate, and the duplicate alone
    assert sent == ["fast_path/enqueue_one", "fast_path/enqueue", *again]
    assert general == [1]
    assert [answer[0].status for answer in answers] == ["queued"] * 7 + ["duplicate"] + ["queued"] * 4
    stored = await store.get([f"n-{n}" for n in range(12)])
    assert [answer[0].seq for answer in answers] == [job.seq for job in stored if job is not None]


async def test_callers_with_the_same_id_do_not_share_a_call(store: RedisStore):
    answers = await asyncio.gather(*(store.enqueue([a_named_spec("same", token=f"t-{n}")]) for n in range(5)))

    assert [answer[0].status for answer in answers] == ["queued"] + ["duplicate"] * 4


async def test_a_queue_with_a_limit_does_not_affect_the_others(store: RedisStore):
    await store.control("queue", "small", {"max_depth": 2})
    specs = [a_named_spec(f"n-{n}", queue="small" if n % 2 else "default") for n in range(12)]
    answers = await asyncio.gather(*(store.enqueue([spec]) for spec in specs), return_exceptions=True)

    assert [answer[0].status for answer in answers[::2] if isinstance(answer, list)] == ["queued"] * 6
    assert sum(isinstance(answer, QueueFull) for answer in answers[1::2]) == 4


async def test_a_key_that_two_callers_want_goes_to_one_of_them(store: RedisStore):
    answers = await asyncio.gather(*(store.enqueue([a_named_spec(f"n-{n}", key="k")]) for n in range(20)))

    assert sorted(answer[0].status for answer in answers) == ["duplicate"] * 19 + ["queued"]


async def test_a_caller_that_is_cancelled_does_not_affect_the_others(store: RedisStore):
    calls = [asyncio.create_task(store.enqueue([a_named_spec(f"n-{n}")])) for n in range(20)]
    await asyncio.sleep(0)
    for number in (0, 5, 19):  # the first is on its way, the others wait
        calls[number].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)

    failed = [number for number, answer in enumerate(answers) if isinstance(answer, BaseException)]
    assert failed == [0, 5, 19]
    assert [answer[0].id for answer in answers if isinstance(answer, list)] == [
        f"n-{n}" for n in range(20) if n not in failed
    ]
    assert (await store.enqueue([a_named_spec("after")]))[0].status == "queued"


async def test_an_error_is_raised_for_every_caller_and_the_next_call_is_sent(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
):
    ask = store._wire.ask

    async def failing(*words: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        raise StoreError("out of order")

    monkeypatch.setattr(store._wire, "ask", failing)
    answers = await asyncio.gather(*(store.enqueue([a_named_spec(f"n-{n}")]) for n in range(5)), return_exceptions=True)
    monkeypatch.setattr(store._wire, "ask", ask)

    assert [type(answer) for answer in answers] == [StoreError] * 5
    assert (await store.enqueue([a_named_spec("n-0")]))[0].status == "queued"


async def test_nobody_waits_for_a_caller_that_gets_no_reply(store: RedisStore, monkeypatch: pytest.MonkeyPatch):
    ask, never = store._wire.ask, asyncio.Event()

    async def first_hangs(name: str, *rest: Any, **more: Any) -> Any:
        if name == "fast_path/enqueue_one":
            await never.wait()
        return await ask(name, *rest, **more)

    monkeypatch.setattr(store._wire, "ask", first_hangs)
    stuck = asyncio.create_task(store.enqueue([a_named_spec("stuck")]))
    await asyncio.sleep(0)
    answers = await asyncio.gather(*(store.enqueue([a_named_spec(f"n-{n}")]) for n in range(5)))

    assert [answer[0].status for answer in answers] == ["queued"] * 5
    assert not stuck.done()
    never.set()
    assert (await stuck)[0].status == "queued"
