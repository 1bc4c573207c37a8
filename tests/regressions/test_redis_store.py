"""What job-queue's Redis got wrong (BR-05, BR-06, BR-07, BR-12, BR-15), on the Redis store: lists, keys, messages."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.event import Kind
from millrace.domain.request import Receipt
from millrace.domain.rules.upkeep import WORKER_MEMORY
from millrace.store.redis import RedisStore
from millrace.store.redis.scripts import METHODS, script
from millrace.testing import a_claim, a_reclaim, a_spec, specs
from millrace.testing.builders import a_worker, seconds
from millrace.testing.conformance.scenes import complete, put, retry, show, take
from millrace.worker.monitor import Monitor
from tests.servers.redis_server import url_for
from tests.servers.tcp_proxy import script_call, tcp_proxy
from tests.store.redis import test_keys

pytestmark = pytest.mark.parametrize("store", ["redis"], indirect=True)


async def kept(store: RedisStore, *words: object) -> Any:
    """What the server has under a key of the store."""
    command, key, *rest = words
    return await store._wire.command(command, f"{store._wire.prefix}{key}", *rest)


# ── BR-05: no moment between being taken and being held ───────────────────────────────────────────


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("fate", ["cut", "swallow"])
async def test_br_05_whenever_a_claimer_dies_its_job_is_waiting_or_held(store, clock, tmp_path, fate, grouped):
    """Its line breaks before the claim reaches the server, or after it, and nobody ever asks again."""
    assert await store.claim(a_claim()) == []  # so that the server knows the script
    spec = await put(store, group="g" if grouped else None)
    async with tcp_proxy(url_for(tmp_path, patience=0.01), script_call) as (proxy, url):
        dying = RedisStore(url, clock=clock)
        proxy.fate = lambda _: fate
        with pytest.raises(StoreError, match="repeating it is safe"):
            await dying.claim(a_claim(worker="dying"))
        await dying.close()

    record = await show(store, spec)
    held = await kept(store, "ZCARD", "lease")
    if fate == "cut":
        assert (record.state, held) == ("waiting", 0)
        rescued = await take(store)
    else:
        assert (record.state, record.worker, held) == ("running", "dying", 1)
        assert await store.claim(a_claim()) == []
        clock.advance(31)
        [rescued] = await store.reclaim(a_reclaim())
    await complete(store, rescued)
    assert (await show(store, spec)).state == "completed"
    assert await kept(store, "ZCARD", "lease") == 0


# ── BR-06: work has no time to live ───────────────────────────────────────────────────────────────


def test_br_06_no_script_gives_a_key_a_time_to_live_but_that_of_an_answer(store):
    """Of the texts, so that it also holds for what no test has set in motion."""
    limited = re.compile(r"'(EXPIRE|PEXPIRE|EXPIREAT|PEXPIREAT|SETEX|PSETEX|GETEX)'|'P?EX(?:AT)?'")
    for name in METHODS:
        lines = [line.strip() for line in script(name).source.splitlines() if limited.search(line)]
        assert all("MEMO" in line for line in lines), f"{name}: {lines}"


# ── BR-07: each worker by itself ──────────────────────────────────────────────────────────────────


async def test_br_07_each_worker_goes_when_its_own_time_is_over(store, clock):
    """One set for all cannot do that: a beat of one would keep all, or the silence of one would end all."""
    await store.beat(a_worker("short"), seconds(10))
    await store.beat(a_worker("long"), seconds(60))
    await store.beat(a_worker("beats"), seconds(10))
    clock.advance(11)
    await store.beat(a_worker("beats"), seconds(10))

    assert {record.info.id: record.alive for record in await store.workers()} == {
        "beats": True,
        "long": True,
        "short": False,
    }
    assert await kept(store, "TTL", "worker") == -1

    clock.advance(WORKER_MEMORY / 1000 + 1)
    await store.beat(a_worker("beats"), seconds(10))
    await store.maintain()
    assert set(await kept(store, "HKEYS", "worker")) == {b"long", b"beats"}, "each is forgotten in its own time, too"


# ── BR-12: removal by number, not by bytes ────────────────────────────────────────────────────────


async def test_br_12_a_job_is_removed_by_its_number_whatever_its_record_says_by_now(store, clock):
    """Attempts have changed the record, and a newer generation of the same id stands in the same line."""
    await put(store, id="same")
    for _ in range(3):
        await retry(store, await take(store))
    old = await show(store, "same")
    await store.cancel(["same"])
    await put(store, id="same")
    new = await show(store, "same")

    [line] = [name for name in await test_keys.keys(store) if ":r:" in name]
    waiting = await store._wire.command("ZRANGE", line, 0, -1)

    assert (old.generation, new.generation) == (1, 2)
    assert waiting == [f"{new.seq:016}".encode()]
    assert [job.seq for job in await store.claim(a_claim(10))] == [new.seq]


def test_br_12_no_script_looks_for_a_job_in_a_list(store):
    """The one LREM takes out what was blanked just before, in a list of a job's attempts that has a cap."""
    for name in METHODS:
        text = script(name).source.replace("'LREM', key, 1, ''", "")
        assert not re.search(r"'(LREM|LPOS|LINSERT)'", text), name


async def test_br_12_taking_one_out_costs_the_same_in_a_long_line(store, clock):
    """Counted in commands inside the server: nothing is walked through to find it."""
    costs = []
    await store.cancel(["nobody"])  # the server has the script from now on
    for size in (10, 1_000):
        made = specs(size, queue=f"of-{size}")
        await store.enqueue(made)
        before = await _commands(store)
        assert await store.cancel([made[size // 2].id]) == ["cancelled"]
        costs.append(await _commands(store) - before)

    assert costs[1] <= costs[0] + 2


async def _commands(store: RedisStore) -> int:
    stats: bytes = await store._wire.command("INFO", "commandstats")
    return sum(map(int, re.findall(rb"calls=(\d+)", stats)))


# ── BR-15: whoever looks, finds ───────────────────────────────────────────────────────────────────


async def test_br_15_monitors_need_neither_a_message_nor_a_leader(store, clock):
    """Five look at once, none has ever listened: what was lost is recovered by one of them, each job once."""
    made = specs(20, max_attempts=None, max_stalls=None)
    await store.enqueue(made)
    await store.claim(a_claim(20, worker="lost"))
    clock.advance(31)
    homes = [store.for_loop() for _ in range(5)]
    try:
        reports = await asyncio.gather(*(Monitor(home).check() for home in homes))
    finally:
        for home in homes:
            await home.close()

    assert await store._wire.command("PUBSUB", "CHANNELS", f"{store._wire.prefix}*") == []
    assert [report.failed for report in reports] == [None] * 5
    assert sum(report.recovered for report in reports) == 20
    events = (await store.events(None, 1_000)).events
    taken_over = Counter(event.job for event in events if event.kind is Kind.RECLAIMED)
    assert taken_over == {spec.id: 1 for spec in made}


async def test_br_15_a_monitor_that_dies_over_its_work_stops_no_other(store, clock):
    """There is no lock that it could leave behind: what it took over is a lease like any other."""
    spec = await put(store, max_stalls=None)
    await take(store)
    clock.advance(31)
    [taken] = await store.reclaim(a_reclaim(worker="monitor that dies"))
    assert (await Monitor(store).check()).recovered == 0, "it is held"
    clock.advance(31)

    assert (await Monitor(store).check()).recovered == 1
    assert await store.settle([(taken.lease, Change.completed())]) == [Receipt.LOST]
    assert (await show(store, spec)).state == "waiting"


async def test_br_15_a_job_put_in_again_by_a_monitor_is_not_slept_over(store, clock):
    """Word of it is only a hint, too: a claim finds it without."""
    await store.enqueue([a_spec(id="lost", max_stalls=None)])
    await take(store)
    clock.advance(31)
    await Monitor(store, chance=lambda: 0.0).check()
    clock.advance(3_600)

    assert (await take(store)).id == "lost"
