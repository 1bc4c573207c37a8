"""Two chunks of jobs under way at once: in order, and as if one had been written after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from millrace import App
from millrace.domain.errors import QueueFull
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.store.postgres import PostgresStore, abreast
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import url_for

Writing = asyncio.Future[list[Enqueued]]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url_for(tmp_path))
    await store.connect()
    await store.enqueue([a_spec(id="known")])  # so that its queue is known, and plain work is plain
    try:
        yield store
        assert_holds(await gather(store, since=0))
    finally:
        await store.close()


def chunk(name: str, size: int = 50) -> list[Spec]:
    return [a_spec(id=f"{name}{number:03}") for number in range(size)]


def ids(specs: list[Spec]) -> list[str]:
    return [spec.id for spec in specs]


def refused() -> Writing:
    failed: Writing = asyncio.get_running_loop().create_future()
    failed.set_exception(QueueFull("default", 1, 1))
    return failed


async def held_up(store: PostgresStore, name: str, before: Writing) -> Writing:
    """A chunk that is written, and waits for the one before."""
    writing = await store.enqueue_behind(chunk(name), before)
    await asyncio.sleep(0.2)
    assert not writing.done()
    return writing


async def test_chunks_are_claimed_in_their_order(store: PostgresStore) -> None:
    before, chunks = None, [chunk(name) for name in "abcdef"]
    under_way: list[Writing] = []
    for specs in chunks:
        before = await store.enqueue_behind(specs, before)
        under_way.append(before)
    answers = [answer for writing in under_way for answer in await writing]
    jobs = await store.claim(a_claim(1_000))

    assert [answer.id for answer in answers] == [job_id for specs in chunks for job_id in ids(specs)]
    assert {answer.status for answer in answers} == {"queued"}
    assert [job.id for job in jobs] == ["known", *[answer.id for answer in answers]]
    assert [answer.seq for answer in answers] == sorted(answer.seq for answer in answers)


async def test_a_chunk_is_seen_only_after_the_one_before(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abreast, "_PATIENCE", 30.0)
    first: Writing = asyncio.get_running_loop().create_future()
    second = await held_up(store, "b", first)

    assert await store.get(["b000"]) == [None]
    first.set_result([])
    await second
    assert (await store.get(["b000"]))[0] is not None


async def test_a_chunk_behind_one_that_was_refused_was_never_there(store: PostgresStore) -> None:
    second = await store.enqueue_behind(chunk("b"), refused())

    with pytest.raises(QueueFull):
        await second
    assert await store.get(ids(chunk("b"))) == [None] * 50


async def test_one_that_waits_too_long_makes_way_and_comes_in_all_the_same(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abreast, "_PATIENCE", 0.01)
    first: Writing = asyncio.get_running_loop().create_future()
    second = await held_up(store, "b", first)
    connection = await asyncpg.connect(store.address.dsn)
    try:
        open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        assert await connection.fetchval(open_ones + " AND datname = current_database()") == 0
    finally:
        await connection.close()
    first.set_result([])

    assert [answer.status for answer in await second] == ["queued"] * 50


async def test_ids_that_were_there_before_are_answered_as_duplicates(store: PostgresStore) -> None:
    specs = [*chunk("a"), a_spec(id="known", token="another")]
    first = await store.enqueue_behind(specs, None)
    second = await store.enqueue_behind(chunk("b"), first)
    answers = await first

    assert [answer.status for answer in answers] == ["queued"] * 50 + ["duplicate"]
    assert [answer.status for answer in await second] == ["queued"] * 50


async def test_the_same_ids_in_both_chunks_are_one_job_each(store: PostgresStore) -> None:
    first = await store.enqueue_behind(chunk("a"), None)
    again = [a_spec(id=spec.id, token="another") for spec in chunk("a")]
    second = await store.enqueue_behind([*again, *chunk("b")], first)

    assert [answer.status for answer in await first] == ["queued"] * 50
    assert [answer.status for answer in await second] == ["duplicate"] * 50 + ["queued"] * 50


async def test_a_connection_that_is_lost_on_the_way_loses_no_job(store: PostgresStore) -> None:
    first: Writing = asyncio.get_running_loop().create_future()
    second = await held_up(store, "b", first)
    connection = await asyncpg.connect(store.address.dsn)
    try:
        ended = await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'millrace'"
        )
        assert ended > 0
    finally:
        await connection.close()
    first.set_result([])

    assert [answer.status for answer in await second] == ["queued"] * 50


async def test_a_caller_that_is_cancelled_leaves_nothing_half_done(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abreast, "_PATIENCE", 30.0)
    second = await held_up(store, "b", asyncio.get_running_loop().create_future())
    second.cancel()
    await asyncio.wait([second])

    assert await store.get(["b000"]) == [None]
    assert [answer.status for answer in await store.enqueue(chunk("b"))] == ["queued"] * 50


async def test_many_jobs_of_a_task_are_in_up_to_the_chunk_with_a_bad_item(tmp_path: Path) -> None:
    app = App(url_for(tmp_path))

    @app.task
    async def add(number: int) -> None: ...

    items = [{"number": number} for number in range(45)]
    async with app:
        await add.enqueue(number=-1)
        with pytest.raises(Exception, match="no_number") as refused:
            await add.enqueue_many([*items, {"no_number": 1}], chunk=10)
        good = await add.enqueue_many(items, chunk=10)
        [counts] = await (await app.connected()).count()

    assert refused.value.__notes__ == ["40 jobs of this call were enqueued before the chunk that failed."]
    assert [answer.seq for answer in good] == sorted(answer.seq for answer in good)
    assert counts.waiting == 1 + 40 + 45
