"""app.events: the store's history as a stream that can be resumed."""

import asyncio
from typing import Any

import pytest

from millrace import App, CursorExpired, Task
from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.job import DAY
from millrace.store.memory.store import MemoryStore
from tests.worker.by_hand import HandClock, settle

Send = Task[[], Any]


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store(clock: HandClock):
    return MemoryStore(clock=clock)


@pytest.fixture
def app(store: MemoryStore):
    return App(store)


@pytest.fixture
def send(app: App):
    @app.task
    async def send(): ...

    return send


async def test_events_come_in_order_and_end_where_the_history_ends(app: App, store: MemoryStore, send: Send):
    job = await send.enqueue()
    await settle(store, Change.completed())

    events = [event async for event in app.events(follow=False)]

    assert [(event.job, event.n, event.kind) for event in events] == [
        (job.id, 1, Kind.ENQUEUED),
        (job.id, 2, Kind.CLAIMED),
        (job.id, 3, Kind.COMPLETED),
    ]


async def test_a_feed_that_is_followed_waits_for_more(app: App, send: Send):
    await send.options(id="a").enqueue()
    seen = []

    async def follow():
        async for event in app.events():
            seen.append(event.job)
            if len(seen) == 2:
                return

    following = asyncio.create_task(follow())
    while not seen:
        await asyncio.sleep(0.01)
    assert seen == ["a"]
    await send.options(id="b").enqueue()
    await asyncio.wait_for(following, 60)

    assert seen == ["a", "b"]


async def test_a_reader_resumes_from_its_cursor_and_misses_nothing(app: App, send: Send):
    await send.enqueue_many([{}] * 25)
    feed = app.events(follow=False, page=10)
    seen = []
    async for event in feed:
        seen.append(event.seq)
        if len(seen) == 15:
            break

    rest = [event.seq async for event in app.events(feed.cursor, follow=False)]

    assert rest[:5] == seen[10:], "the page it was in comes again"
    assert sorted({*seen, *rest}) == list(range(1, 26))


async def test_pages_carry_the_cursor_to_store_with_what_was_read(app: App, send: Send):
    await send.enqueue_many([{}] * 25)

    pages = [page async for page in app.events(follow=False, page=10).pages()]

    assert [len(page.events) for page in pages] == [10, 10, 5]
    assert [event async for event in app.events(pages[-1].cursor, follow=False)] == []


async def test_a_reader_that_retention_overtook_is_told_how_much_is_gone(
    app: App, store: MemoryStore, clock: HandClock, send: Send
):
    await send.enqueue_many([{}] * 5)
    page = await store.events(None, 2)
    clock.advance(8 * DAY / 1000)
    while (await store.maintain()).more:
        pass

    with pytest.raises(CursorExpired, match="3 events after cursor"):
        await anext(aiter(app.events(page.cursor)))
