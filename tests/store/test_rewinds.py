"""Stores that went back to an earlier state: numbers are used again, and no reader of the feed may miss that.

Each store is really put back: a Redis that is killed and loads an older snapshot, a SQLite file and the data directory
of a PostgreSQL server that are replaced by a copy.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.errors import CursorUnknown
from millrace.domain.feed import mark_of, parse
from millrace.store.postgres import PostgresStore
from millrace.store.protocol import Store
from millrace.store.redis import RedisStore
from millrace.store.sqlite import SqliteStore
from millrace.testing.builders import a_claim, a_spec, settings_in_seconds, specs
from millrace.testing.clock import VirtualClock
from tests.servers.postgres import PostgresServer, wheel_binaries
from tests.servers.redis_server import RedisServer


class Place:
    """Where a store is kept: it can be saved, and put back to what was saved."""

    async def save(self) -> None:
        raise NotImplementedError

    def put_back(self) -> None:
        raise NotImplementedError

    def store(self) -> Store:
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        store = self.store()
        await store.connect()
        try:
            yield store
        finally:
            await store.close()


class SqlitePlace(Place):
    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self.path, self._copy, self._clock = folder / "jobs.db", folder / "backup.db", clock

    def store(self) -> Store:
        return SqliteStore(self.path, clock=self._clock)

    async def save(self) -> None:
        source, copy = sqlite3.connect(self.path), sqlite3.connect(self._copy)
        source.backup(copy)
        source.close()
        copy.close()

    def put_back(self) -> None:
        for old in self.path.parent.glob("jobs.db*"):
            old.unlink()
        shutil.copy(self._copy, self.path)


class RedisPlace(Place):
    """Without a log, and with one snapshot: what came after it is gone with the process."""

    def __init__(self, server: RedisServer, clock: VirtualClock) -> None:
        self._server, self._clock = server, clock

    def store(self) -> Store:
        return RedisStore(self._server.url, clock=self._clock)

    async def save(self) -> None:
        store = RedisStore(self._server.url)
        await store.connect()
        await store._wire.command("SAVE")
        await store.close()

    def put_back(self) -> None:
        self._server.kill()
        self._server.start()


class PostgresPlace(Place):
    """A copy of the data directory of a server that was stopped."""

    def __init__(self, server: PostgresServer, clock: VirtualClock) -> None:
        self._server, self._clock = server, clock
        self._copy = server.folder / "copy"

    def store(self) -> Store:
        return PostgresStore(self._server.url, clock=self._clock)

    async def save(self) -> None:
        self._server.stop()
        shutil.copytree(self._server.data, self._copy)
        self._server.start()

    def put_back(self) -> None:
        self._server.stop()
        shutil.rmtree(self._server.data)
        shutil.copytree(self._copy, self._server.data)
        for path in [Path(self._server.data), *Path(self._server.data).rglob("*")]:
            stat = self._server.folder.stat()
            shutil.chown(path, stat.st_uid, stat.st_gid)
        self._server.start()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path, clock)
    elif request.param == "redis":
        server = RedisServer("--dbfilename", "dump.rdb").start()
        try:
            yield RedisPlace(server, clock)
        finally:
            server.close()
    else:
        postgres = PostgresServer(wheel_binaries())
        postgres.start()
        try:
            yield PostgresPlace(postgres, clock)
        finally:
            postgres.remove()


async def test_a_reader_of_a_store_that_was_put_back_is_told_and_misses_nothing(place: Place, clock: VirtualClock):
    """Three events are saved and read, four more are read and lost, five others take their numbers."""
    async with place.opened() as store:
        await store.enqueue(specs(3))
        kept = (await store.events(None, 2)).cursor
        end = (await store.events(None, 10)).cursor
    await place.save()
    async with place.opened() as store:
        await store.enqueue(specs(4))
        inside = (await store.events(None, 5)).cursor
        planned = await store.event_spans(kept, 3)
        lost = [inside, (await store.events("end", 1)).cursor, planned[1].until, planned[-1].until]
        assert len({*lost, kept, end}) == 5
    place.put_back()
    clock.advance(1)

    async with place.opened() as store:
        with pytest.raises(CursorUnknown, match="restored from a backup"):
            await store.events(lost[1], 10)
        new = [answer.id for answer in await store.enqueue(specs(5))]
        for cursor in lost:
            with pytest.raises(CursorUnknown):
                await store.events(cursor, 10)
            with pytest.raises(CursorUnknown):
                await store.event_spans(cursor, 2)
            with pytest.raises(CursorUnknown):
                await store.event_spans(None, 2, until=cursor)
        for span in planned:
            with pytest.raises(CursorUnknown):
                [batch async for batch in store.scan_events(span, 1)]
        for cursor in (kept, end):  # what they stand behind was saved
            assert [event.job for event in (await store.events(cursor, 10)).events][-5:] == new


async def test_an_app_that_reads_on_is_told(place: Place, clock: VirtualClock):
    async with place.opened() as store:
        await store.enqueue(specs(2))
    await place.save()
    async with place.opened() as store:
        await store.enqueue(specs(2))
        app = App(store)
        feed = app.events(follow=False)
        assert len([event async for event in feed]) == 4
    place.put_back()
    clock.advance(1)
    async with place.opened() as store:
        await store.enqueue(specs(6))
        with pytest.raises(CursorUnknown):
            await anext(aiter(App(store).events(feed.cursor)))


async def test_a_cursor_whose_event_was_trimmed_in_another_history_is_refused(place: Place, clock: VirtualClock):
    """What retention took away leaves its mark: the numbers alone would fit."""
    async with place.opened() as store:
        await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await place.save()
    async with place.opened() as store:
        await store.enqueue(specs(3))
        cursor = (await store.events(None, 10)).cursor
    place.put_back()
    clock.advance(1)
    async with place.opened() as store:
        await store.enqueue(specs(3))
        [*_, last] = (await store.events(None, 10)).events
        clock.advance(60)
        assert (await store.maintain()).events == 3

        with pytest.raises(CursorUnknown):
            await store.events(cursor, 10)
        assert parse((await store.events(None, 10)).cursor).mark == mark_of(last)


async def test_the_mark_of_a_trimmed_event_is_that_of_the_event(place: Place, clock: VirtualClock):
    """On Redis a script makes it: of ids in any writing, of events with a lease and without one."""
    async with place.opened() as store:
        await store.control("store", "", settings_in_seconds({"keep_events": 60}))
        await store.enqueue([a_spec(id="ключ ü"), a_spec(id="x" * 200)])
        await store.claim(a_claim(2))
        events = list((await store.events(None, 10)).events)
        cursors = [(await store.events(None, number)).cursor for number in range(1, 5)]
        clock.advance(60)
        for event, cursor in zip(events, cursors, strict=True):
            assert (await store.maintain(limit=1)).events == 1
            assert parse(cursor).mark == mark_of(event)
            assert parse((await store.event_spans(None, 1))[0].after) == parse(cursor)
