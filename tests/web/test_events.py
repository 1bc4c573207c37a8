"""Events over HTTP: page by page, and live with resume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from millrace import App, CursorExpired, StoreError
from millrace.domain.job import Job
from millrace.domain.request import EventPage
from millrace.testing.conformance.events import beyond
from millrace.web.event_cache import EventCache
from millrace.web.routes import events
from tests.web.stage import Stream, Web, opened

STREAM = "/api/events/stream"


async def test_events_are_read_page_by_page_and_filtered(web: Web):
    for number in range(5):
        await web.enqueue(id=f"job-{number}", queue="a" if number % 2 else "b")

    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await web.get("/api/events", limit=2, **cursor)
        if not page["events"]:
            break
        seen += [event["job"] for event in page["events"]]
        cursor = {"cursor": page["cursor"]}
    assert seen == [f"job-{number}" for number in range(5)]
    only = await web.get("/api/events", queue="a", kind=["enqueued", "claimed"])
    assert [event["job"] for event in only["events"]] == ["job-1", "job-3"]
    assert (await web.get("/api/events", job="job-2"))["events"][0]["job"] == "job-2"
    assert (await web.get("/api/events", kind="claimed"))["events"] == []
    end = await web.get("/api/events", cursor="end")
    assert end["events"] == []
    await web.enqueue(id="new")
    assert [one["job"] for one in (await web.get("/api/events", cursor=end["cursor"]))["events"]] == ["new"]


async def test_a_stream_tells_what_happens_from_now_on(web: Web):
    await web.enqueue(id="before")
    async with Stream(web.served, STREAM) as stream:
        assert stream.status == 200
        assert (await stream.message())["event"] == "begin"
        await web.enqueue(id="after")
        message = await stream.message()
        assert message["event"] == "event" and json.loads(message["data"])["job"] == "after"
        assert message["id"]


async def test_a_stream_that_was_cut_off_goes_on_where_it_was(web: Web):
    async with Stream(web.served, STREAM) as stream:
        await stream.message()
        await web.enqueue(id="first")
        last = (await stream.message())["id"]
    await web.enqueue(id="meanwhile")

    async with Stream(web.served, STREAM, heads={"last-event-id": last}) as stream:
        await stream.message()
        assert json.loads((await stream.message())["data"])["job"] == "meanwhile"
    async with Stream(web.served, STREAM, query=f"cursor={last}") as stream:
        await stream.message()
        assert json.loads((await stream.message())["data"])["job"] == "meanwhile"


async def test_a_client_that_is_cut_off_before_anything_happened_resumes_too(web: Web):
    async with Stream(web.served, STREAM) as stream:
        begin = (await stream.message())["id"]
    await web.enqueue(id="meanwhile")
    async with Stream(web.served, STREAM, heads={"last-event-id": begin}) as stream:
        await stream.message()
        assert json.loads((await stream.message())["data"])["job"] == "meanwhile"


async def test_a_stream_is_filtered(web: Web):
    async with Stream(web.served, STREAM, query="queue=mine&kind=enqueued&kind=cancelled") as stream:
        await stream.message()
        await web.enqueue(id="other")
        await web.enqueue(id="mine", queue="mine")
        await web.post(web.job("mine", "/cancel"))
        kinds = [json.loads((await stream.message())["data"])["kind"] for _ in range(2)]
        assert kinds == ["enqueued", "cancelled"]


async def test_every_event_comes_through_a_stream_that_is_cut_off_again_and_again(web: Web):
    async with Stream(web.served, STREAM) as stream:
        cursor = (await stream.message())["id"]

    async def produce() -> None:
        for number in range(60):
            await web.enqueue(id=f"job-{number}")
            await asyncio.sleep(0)

    producing = asyncio.create_task(produce())
    seen: set[str] = set()
    while len(seen) < 60:
        async with Stream(web.served, STREAM, heads={"last-event-id": cursor}) as stream:
            before = cursor
            await stream.message()
            while cursor == before:  # it stays for one page; what else was on its way is lost with it
                message = await stream.message()
                seen.add(json.loads(message["data"])["job"])
                cursor = message.get("id", cursor)
    await producing
    assert seen == {f"job-{number}" for number in range(60)}


async def test_a_stream_that_was_overtaken_by_retention_says_how_much_is_lost(web: Web):
    store = await web.app.connected()
    plain = store.events

    async def overtaken(cursor: str | None, limit: int) -> EventPage:
        if cursor == "1":
            raise CursorExpired("1", 41, later)
        return await plain(cursor, limit)

    await web.enqueue(id="a")
    await web.enqueue(id="b")
    later = (await plain(None, 2)).cursor
    store.events = overtaken  # type: ignore[method-assign]
    async with Stream(web.served, STREAM, heads={"last-event-id": "1"}) as stream:
        assert (await stream.message())["event"] == "begin"
        lost = await stream.message()
        assert lost["event"] == "lost" and json.loads(lost["data"])["lost"] == 41
    gone = await web.get("/api/events", 410, cursor="1")
    assert (gone["code"], gone["lost"]) == ("cursor_expired", 41)


async def test_a_stream_of_a_store_that_lost_events_says_so_and_goes_on(web: Web):
    """Nobody knows how many are missing; the page reads everything anew."""
    await web.enqueue(id="a")
    ahead = beyond((await (await web.app.connected()).events(None, 10)).cursor)
    async with Stream(web.served, STREAM, heads={"last-event-id": ahead}) as stream:
        assert (await stream.message())["event"] == "begin"
        lost = await stream.message()
        assert lost["event"] == "lost" and json.loads(lost["data"])["lost"] is None
        await web.enqueue(id="b")
        assert json.loads((await stream.message())["data"])["job"] == "b"
    gone = await web.get("/api/events", 410, cursor=ahead)
    assert gone["code"] == "cursor_unknown" and "restored from a backup" in gone["detail"]


async def test_a_stream_ends_when_the_server_stops():
    async with opened(App("memory://")) as web, Stream(web.served, STREAM) as stream:
        await stream.message()
        web.server.shutdown.set()
        async with asyncio.timeout(60):
            await stream._task


async def test_streams_are_bounded():
    async with opened(App("memory://")) as web:
        web.server.streams._most = 1
        async with Stream(web.served, STREAM) as stream:
            await stream.message()
            assert (await web.get(STREAM, 503))["code"] == "busy"
        async with Stream(web.served, STREAM) as stream:
            assert stream.status == 200  # the place is free again


async def test_a_stream_that_never_begins_keeps_no_place():
    async with opened(App("memory://")) as web:
        await web.ask("HEAD", STREAM, status=200)
        assert web.server.streams.open == 0
        web.server.streams._most = 0
        assert (await web.get(STREAM, 503))["code"] == "busy"
        assert web.server.streams.open == 0


async def test_a_stream_ends_by_itself_and_its_client_comes_back_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "LIFE", 0.2)
    async with opened(App("memory://")) as web:
        await web.enqueue(id="before")
        async with Stream(web.served, STREAM) as stream:
            begin = (await stream.message())["id"]
            async with asyncio.timeout(60):
                await stream._task
            assert (await stream._next())["body"] == b"retry: 50\n\n"
        await web.enqueue(id="meanwhile")
        async with Stream(web.served, STREAM, heads={"last-event-id": begin}) as stream:
            await stream.message()
            assert json.loads((await stream.message())["data"])["job"] == "meanwhile"


async def test_a_store_that_fails_behind_an_event_is_told_of_and_the_event_comes_later(monkeypatch: pytest.MonkeyPatch):
    app = App("memory://")

    @app.task(name="charge", max_attempts=1)
    async def charge() -> None:
        raise ValueError("no")

    async with opened(app) as web:
        store = await app.connected()
        plain, fails = store.get, True

        async def get(ids: Sequence[str]) -> list[Job | None]:
            if fails:
                raise StoreError("the disk is full")
            return await plain(ids)

        async with Stream(web.served, STREAM, query="kind=buried") as stream:
            await stream.message()
            await web.enqueue("charge", id="j")
            monkeypatch.setattr(store, "get", get)
            await app.worker(burst=True).run(handle_signals=False)
            message = await stream.message()
            assert (message["event"], "disk is full" in message["data"]) == ("unavailable", True)
            fails = False
            message = await stream.message()
            while message["event"] == "unavailable":
                message = await stream.message()
            assert json.loads(message["data"])["job"] == "j"


async def test_streams_that_wait_at_the_same_place_ask_the_store_once():
    asked: list[str] = []

    class Feed:
        async def events(self, cursor: str, limit: int) -> EventPage:
            asked.append(cursor)
            await asyncio.sleep(0.01)
            if cursor == "bad":
                raise CursorExpired("bad", 1, "2")
            return EventPage((), cursor)

    cache, feed = EventCache(), Feed()
    pages = await asyncio.gather(*(cache.events(feed, "1", 10, fresh=60) for _ in range(50)))  # type: ignore[arg-type]
    assert asked == ["1"] and len(pages) == 50
    await cache.events(feed, "2", 10, fresh=60)  # type: ignore[arg-type]
    await cache.events(feed, "1", 10, fresh=0)  # type: ignore[arg-type]
    assert asked == ["1", "2", "1"]
    for _ in range(2):  # a failure is not kept
        with pytest.raises(CursorExpired):
            await cache.events(feed, "bad", 10, fresh=60)  # type: ignore[arg-type]
    assert asked.count("bad") == 2


async def test_a_listener_that_leaves_does_not_take_the_answer_from_the_others():
    class Slow:
        async def events(self, cursor: str, limit: int) -> EventPage:
            await asyncio.sleep(0.05)
            return EventPage((), "end")

    cache, slow = EventCache(), Slow()
    first = asyncio.create_task(cache.events(slow, "1", 10, fresh=60))  # type: ignore[arg-type]
    second = asyncio.create_task(cache.events(slow, "1", 10, fresh=60))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    first.cancel()
    assert (await second).cursor == "end"


async def test_a_cursor_that_is_none_is_refused_before_the_stream_begins():
    async with opened(App("memory://")) as web:
        problem = await web.get(STREAM, 400, cursor="nonsense")
        assert "not a cursor" in problem["detail"]
