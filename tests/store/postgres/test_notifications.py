"""Notifications sent with a call: to sleepers, and to processes that wait for an end, in the same round trip."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore
from millrace.store.postgres import store as stores
from millrace.store.protocol import Ending
from millrace.testing.builders import a_claim, a_spec, a_worker
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import url_for


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two processes' worth of stores, who know each other's queue."""
    here, there = PostgresStore(url_for(tmp_path)), PostgresStore(url_for(tmp_path))
    await here.connect()
    await there.connect()
    await here.enqueue([a_spec(id="known", delay=3_600_000)])
    try:
        yield here, there
        assert_holds(await gather(here, since=0))
    finally:
        await here.close()
        await there.close()


async def ended_with(here: PostgresStore, there: PostgresStore, result: bytes | None) -> Ending | None:
    """What a watch tells of a job that another store completed."""
    async with here.watch("wanted") as watch:
        await here.enqueue([a_spec(id="wanted")])
        [job] = await there.claim(a_claim())
        assert await there.settle([(job.lease, Change.completed(result))]) == [Receipt.OK]
        return await watch.wait(10)


@pytest.mark.parametrize("result", [None, b"", b'{"a": 1}', bytes(range(256)) * 15])
async def test_the_word_of_an_end_says_how_it_ended(
    pair: tuple[PostgresStore, PostgresStore], result: bytes | None
) -> None:
    assert await ended_with(*pair, result) == Ending(1, result)
    assert pair[0].endings == {}


async def test_a_result_without_room_in_a_word_is_left_for_the_caller_to_read(
    pair: tuple[PostgresStore, PostgresStore],
) -> None:
    result = b"x" * 100_000

    assert await ended_with(*pair, result) is None
    [job] = await pair[0].get(["wanted"])
    assert job is not None and job.result == result


async def test_a_caller_reads_nothing_that_the_word_has_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = url_for(tmp_path)
    here, there = App(url), App(url)
    looks: list[Sequence[str]] = []

    @there.task(name="double")
    async def work(n: int) -> int:
        return 2 * n

    @here.task(name="double")
    async def double(n: int) -> int:
        raise AssertionError("it runs in the other one")

    async with here, there, there.worker(slots=4):
        await double.call(0)
        store = await here.connected()
        assert isinstance(store, PostgresStore)
        read = store.get

        async def get(ids: Sequence[str]) -> object:
            looks.append(ids)
            return await read(ids)

        monkeypatch.setattr(store, "get", get)
        monkeypatch.setattr("millrace.app.result_wait.FIRST_POLL", 20.0)
        assert [await double.call(n) for n in range(5)] == [0, 2, 4, 6, 8]

    assert looks == []


async def test_word_of_another_generation_is_not_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(url_for(tmp_path))
    tell = PostgresStore.announce

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    def announce(store: PostgresStore, opened: object, ended: Sequence[str], replies: object) -> None:
        store.endings.update((job_id, Ending(7, b"1")) for job_id in store.watching)
        tell(store, opened, ended, replies)  # type: ignore[arg-type]

    monkeypatch.setattr(PostgresStore, "announce", announce)
    async with app, app.worker(slots=1):
        assert await double.call(21) == 42


@pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["plain", "key"])
async def test_an_enqueue_takes_its_word_along(
    pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setattr(stores, "_SLICE", 600.0)
    here, there = pair
    await here.enqueue([a_spec(id="first", queue="other")])
    while here.listener().notification_for({("other", "work"): 1}) is None:  # until the workers are counted
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)

    def tell(*_: object) -> None:
        raise AssertionError("it was told already")

    monkeypatch.setattr(here.listener(), "notify", tell)
    asleep = asyncio.ensure_future(there.wait(["default"], None, 600.0))
    await asyncio.sleep(0.5)
    assert not asleep.done()
    await here.enqueue([a_spec(id="now", **options)])
    await asyncio.wait_for(asleep, 60)


async def test_a_stream_of_enqueues_is_told_of_in_few_words(
    pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    heard: list[object] = []
    await there.listener().listen()
    monkeypatch.setattr(there.listener()._hint_handler, "receive", heard.append)
    await asyncio.gather(*(here.enqueue([a_spec(id=f"job{number}")]) for number in range(200)))
    await asyncio.sleep(0.3)

    assert 1 <= len(heard) < 100


@pytest.mark.parametrize("name", ["enqueue_one_and_tell", "enqueue_and_tell", "complete_and_tell"])
async def test_a_server_without_room_for_words_still_does_what_it_was_asked(
    pair: tuple[PostgresStore, PostgresStore], name: str
) -> None:
    here, there = pair
    async with _without_room(here, name), there.watch("now"):
        await here.enqueue([a_spec(id="before")])
        while here.listener().notification_for({("default", "work"): 1}) is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        [answer] = await there.enqueue([a_spec(id="now")])
        others = ["other 1", "other 2"] if name == "enqueue_and_tell" else ["other"]
        answers = await here.enqueue([a_spec(id=job_id) for job_id in others])
        jobs = await here.claim(a_claim(4))
        receipts = await here.settle([(job.lease, Change.completed(b"1")) for job in jobs])

    assert {one.status for one in (answer, *answers)} == {"queued"}
    assert sorted(job.id for job in jobs) == ["before", "now", *others]
    assert receipts == [Receipt.OK] * len(jobs)


@asynccontextmanager
async def _without_room(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """As when some listener sleeps in a transaction, and the queue of notifications has run full.

    Other tests use the same schema later, so the procedure is restored.
    """
    sql = "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE proname = $1 AND pronamespace = $2::regnamespace"
    full = "RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; sent := concat("
    connection = await asyncpg.connect(store.address.dsn)
    try:
        text: str = await connection.fetchval(sql, name, store.address.schema)
        before, notify, after = text.partition("sent := pg_notify(")
        assert notify
        await connection.execute(before + full + after)
        try:
            yield
        finally:
            await connection.execute(text)
    finally:
        await connection.close()


async def test_an_end_that_is_announced_while_workers_are_counted_is_sent(
    pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    await here.listener().listen()
    heard = asyncio.Event()
    monkeypatch.setattr(here.listener(), "on_ended", lambda ids, ending: heard.set())
    sender = there.listener()
    count = sender._count

    async def counting() -> None:
        sender.notify({}, [(here.listener().mine, "wanted")])
        await count()

    monkeypatch.setattr(sender, "_count", counting)
    sender.notify({("default", "work"): 1}, [])

    await asyncio.wait_for(heard.wait(), 30)


async def test_only_live_workers_are_counted(pair: tuple[PostgresStore, PostgresStore]) -> None:
    here, there = pair
    await here.beat(a_worker("alive", queues=("default",)), 3_600_000)
    await here.beat(a_worker("gone", queues=("default", "other")), 1)
    while [worker.info.id for worker in await here.workers() if worker.alive] != ["alive"]:
        await asyncio.sleep(0.01)
    sender = there.listener()
    await sender._count()
    assert [hint.live for hint in sender._hints({("default", "work"): 1, ("other", "work"): 1})] == [1, 0]
