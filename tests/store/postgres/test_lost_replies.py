"""A reply is lost after every single request of every operation: the answer is the same, and it happened once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.request import Cancelled, Extension, Receipt, Replayed
from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change, a_spec, specs
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import url_for
from tests.servers.tcp_proxy import Fate, TcpProxy, tcp_proxy

MOST = 200  # requests of one operation, on a connection that has prepared nothing yet
Act = Callable[[PostgresStore, str], Awaitable[None]]


@pytest.fixture
async def wired(tmp_path: Path) -> AsyncIterator[tuple[PostgresStore, TcpProxy]]:
    async with tcp_proxy(url_for(tmp_path)) as (proxy, url):
        store = PostgresStore(url + "&notify=off&connections=1")
        await store.connect()
        await store.enqueue([a_spec(id="first")])  # so that its queue is known, and plain work is plain
        [job] = await store.claim(a_claim())
        await store.settle([(job.lease, Change.completed())])
        try:
            yield store, proxy
            proxy.pass_all()
            assert_holds(await gather(store, since=0))
        finally:
            proxy.pass_all()
            await store.close()


async def enqueue(store: PostgresStore, name: str) -> None:
    answers = await store.enqueue([a_spec(id=name), a_spec(id=name + "2")])
    assert [(answer.status, answer.id) for answer in answers] == [("queued", name), ("queued", name + "2")]


async def enqueue_one(store: PostgresStore, name: str) -> None:
    [answer] = await store.enqueue([a_spec(id=name)])
    assert (answer.status, answer.id) == ("queued", name)


async def enqueue_with_key(store: PostgresStore, name: str) -> None:
    [answer] = await store.enqueue([a_spec(id=name, key=name, group="g")])
    assert (answer.status, answer.id) == ("queued", name)


async def claim(store: PostgresStore, name: str) -> None:
    jobs = await store.claim(a_claim(2))
    assert [job.id for job in jobs] == [f"{name}0", f"{name}1"]
    assert await store.settle([(job.lease, Change.completed()) for job in jobs]) == [Receipt.OK] * 2


async def settle(store: PostgresStore, name: str) -> None:
    jobs = await store.claim(a_claim(2))
    assert await store.settle([(job.lease, Change.completed(b"1")) for job in jobs]) == [Receipt.OK] * 2


def take_words_along(store: PostgresStore) -> None:
    """As with notifications, but that nothing is sent in the background, whose requests would be counted."""
    store.address = msgspec.structs.replace(store.address, notify=True)
    store.listener().notification_for = lambda jobs: ("nobody", "{}")  # type: ignore[method-assign]


async def enqueue_and_tell(store: PostgresStore, name: str) -> None:
    take_words_along(store)
    await enqueue(store, name)


async def enqueue_one_and_tell(store: PostgresStore, name: str) -> None:
    take_words_along(store)
    await enqueue_one(store, name)


async def settle_and_tell(store: PostgresStore, name: str) -> None:
    take_words_along(store)
    await settle(store, name)


async def enqueue_abreast(store: PostgresStore, name: str) -> None:
    first = await store.enqueue_behind([a_spec(id=name), a_spec(id=name + "2")], None)
    second = await store.enqueue_behind([a_spec(id=name + "3")], first)
    answers = [*await first, *await second]
    assert [(answer.status, answer.id) for answer in answers] == [
        ("queued", name),
        ("queued", name + "2"),
        ("queued", name + "3"),
    ]


async def settle_as_failed(store: PostgresStore, name: str) -> None:
    jobs = await store.claim(a_claim(2))
    assert await store.settle([(job.lease, a_retry_change(0)) for job in jobs]) == [Receipt.OK] * 2


async def extend(store: PostgresStore, name: str) -> None:
    [job] = await store.claim(a_claim(1))
    assert await store.extend([Extension(job.lease, progress=b"50%")]) == [Receipt.OK]
    assert await store.settle([(job.lease, Change.release())]) == [Receipt.OK]


async def cancel_and_replay(store: PostgresStore, name: str) -> None:
    assert await store.cancel([f"{name}0"]) == [Cancelled.CANCELLED]
    assert (await store.replay([f"{name}0"]))[0] in (Replayed.REPLAYED, Replayed.WAITING)


async def control_and_upkeep(store: PostgresStore, name: str) -> None:
    assert (await store.control("queue", "default", {"max_running": 50})).max_running == 50  # type: ignore[union-attr]
    await store.maintain()
    assert await store.reclaim(a_reclaim(5)) == []


OPERATIONS: dict[str, tuple[Act, dict[str, Any]]] = {
    "enqueue": (enqueue, {}),
    "enqueue and tell": (enqueue_and_tell, {}),
    "enqueue one": (enqueue_one, {}),
    "enqueue one and tell": (enqueue_one_and_tell, {}),
    "enqueue abreast": (enqueue_abreast, {}),
    "enqueue with a key": (enqueue_with_key, {}),
    "claim": (claim, {}),
    "claim of a group": (claim, {"grouped": True}),
    "settle": (settle, {}),
    "settle and tell": (settle_and_tell, {}),
    "settle of a group": (settle, {"grouped": True}),
    "settle as failed": (settle_as_failed, {}),
    "extend": (extend, {}),
    "cancel and replay": (cancel_and_replay, {}),
    "control and upkeep": (control_and_upkeep, {}),
}


SHORT = ("enqueue", "enqueue and tell", "enqueue abreast", "claim", "settle", "settle and tell", "extend")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["swallow", pytest.param("cut", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_an_operation_whose_reply_is_lost_happens_once(
    wired: tuple[PostgresStore, TcpProxy], operation: str, how: Fate
) -> None:
    store, proxy = wired
    act, wish = OPERATIONS[operation]
    hits = 0
    for k in range(1, MOST, 1 if operation in SHORT else 5):  # long ones are tried at every fifth of their requests
        proxy.pass_all()
        name = f"n{k}-"
        if "enqueue" not in operation:
            await store.drain("default")
            wishes = specs(2)
            made = [
                a_spec(id=f"{name}{n}", group=f"{name}{n}" if wish.get("grouped") else None)
                for n, _ in enumerate(wishes)
            ]
            await store.enqueue(made)
        proxy.lose(k, how)
        await act(store, name)
        if not proxy.hit:
            break
        hits += 1
    else:
        raise AssertionError(f"more than {MOST} requests")

    assert hits > 0
    kinds = [event.kind for event in (await store.events(None, 10_000)).events]
    enqueued = kinds.count(Kind.ENQUEUED)
    jobs = {event.job for event in (await store.events(None, 10_000)).events}
    assert enqueued == len(jobs)
