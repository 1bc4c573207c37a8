"""Whoever may only read can look at everything, on every store, and changes nothing: the server or the disk says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace import App
from millrace.domain.errors import InvalidInput, ReadOnlyStore, StoreError
from millrace.store.connect import connect
from millrace.store.postgres.address import Address
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec
from millrace.testing.conformance.read_access import everything
from tests.servers.ministack import S3Server, ministack_server, s3_server
from tests.servers.read_only import JOBS, KINDS, Limited, changed_environment, fill_and_number, filled, run, with_store

__all__ = ["ministack_server", "s3_server"]

IDS = [*(f"job-{number}" for number in range(JOBS)), "later"]


@pytest.fixture(params=KINDS)
def limited(request: pytest.FixtureRequest) -> Iterator[Limited]:
    def server() -> S3Server:
        found: S3Server = request.getfixturevalue("s3_server")
        return found

    with filled(request.param, server) as made, changed_environment(made.environment):
        yield made


async def test_a_reader_sees_everything_and_changes_nothing(limited: Limited):
    seen = await with_store(limited.writer, lambda store: everything(store, IDS))

    with limited.unchanged():
        read = await with_store(limited.reader, lambda store: everything(store, IDS))

    assert len(seen["scan"]) == len(IDS) and len(seen["spans"]) > len(IDS)
    del seen["now"], read["now"], seen["count"], read["count"]  # how long the oldest job has waited
    assert read == seen


async def test_a_reader_is_told_what_to_do_when_it_writes(limited: Limited):
    with limited.unchanged():
        store = connect(limited.reader)
        await store.connect()
        with pytest.raises(ReadOnlyStore, match="remove access=read from the URL, and use credentials that may write"):
            await store.enqueue([a_spec()])
        await store.close()


@pytest.mark.parametrize("limited", ["redis", "postgres", "s3"], indirect=True)
async def test_these_rights_do_not_suffice_without_read_access(limited: Limited):
    """The limits are real: a handle that may write asks for more. (For files, see below: another user.)"""
    with pytest.raises(StoreError):
        await with_store(limited.reader.replace("access=read", "access=write"), lambda store: store.enqueue([a_spec()]))


def test_a_url_names_the_access():
    assert connect("memory://?access=read").url == "memory://?access=read"
    assert connect("memory://?access=write").url == "memory://"
    assert connect("sqlite:////tmp/x.db?durability=relaxed&access=read").url.endswith("?durability=relaxed&access=read")
    with pytest.raises(InvalidInput, match="access is read or write, not 'all'"):
        connect("memory://?access=all")


async def test_memory_stores_of_a_name_are_read_too():
    store = connect("memory://read-access")
    await store.enqueue([a_spec(id="a")])

    assert [job and job.id for job in await connect("memory://read-access?access=read").get(["a"])] == ["a"]


@pytest.mark.parametrize("scheme", ["sqlite", "directory", "postgres"])
async def test_reading_creates_no_store(scheme: str, tmp_path: Path):
    urls = {
        "sqlite": f"sqlite:///{tmp_path}/none.db?access=read",
        "directory": f"file://{tmp_path}/none?access=read",
    }
    if scheme == "postgres":
        from tests.servers.postgres import shared_url

        urls["postgres"] = f"{shared_url()}?schema=nothing_here&access=read"
    store = connect(urls[scheme])

    with pytest.raises(StoreError, match="access=read"):
        await store.connect()
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_file_with_an_old_schema_is_refused_and_stays_as_it_is(tmp_path: Path):
    import sqlite3

    path = tmp_path / "jobs.db"
    await with_store(f"sqlite:///{path}", fill_and_number)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE millrace_store SET version = 1")
    connection.close()

    before = path.read_bytes()
    with pytest.raises(StoreError, match="schema version 1.*choose a new file"):
        await connect(f"sqlite:///{path}?access=read").connect()
    assert path.read_bytes() == before


@asynccontextmanager
async def postgres_reader() -> AsyncIterator[tuple[Store, Store, Any]]:
    """A writer, a reader, and a connection of somebody else."""
    import asyncpg

    with filled("postgres", lambda: pytest.fail("no bucket")) as limited:
        writer, reader = connect(limited.writer), connect(limited.reader)
        other = await asyncpg.connect(limited.writer.partition("?")[0])
        try:
            await writer.connect()
            await reader.connect()
            yield writer, reader, other
        finally:
            await other.close()
            await reader.close()
            await writer.close()


async def ids_after(store: Store, cursor: str) -> list[str]:
    return [event.job for event in (await store.events(cursor, 10)).events]


async def test_a_reader_of_postgres_numbers_events_as_they_will_be_numbered():
    """A transaction that is open may come before what is committed: nothing more is shown until it has ended."""
    async with postgres_reader() as (writer, reader, other):
        end = (await reader.events("end", 0)).cursor
        await writer.enqueue([a_spec(id="first")])
        shown = (await reader.events("end", 0)).cursor
        assert await ids_after(reader, end) == ["first"]

        held = other.transaction()
        await held.start()
        await App(writer).enqueue([a_spec(id="second")], within=other)
        await writer.enqueue([a_spec(id="third")])
        for one in (reader, reader.for_loop()):  # the second one knows only the cursor
            await one.connect()
            assert await ids_after(one, shown) == []
            [span] = await one.event_spans(end, 1, until=shown)
            assert [event.job async for events in one.scan_events(span) for event in events] == ["first"]
            assert await ids_after(one, end) == (["first"] if one is reader else [])
        await one.close()
        await held.commit()

        assert await ids_after(reader, shown) == ["second", "third"]
        as_read = await reader.events(None, 1_000)
        assert as_read == await writer.events(None, 1_000)  # which numbers them
        assert as_read == await reader.events(None, 1_000)


async def test_a_reader_of_postgres_waits_for_numbers_behind_a_standing_lock():
    """Where it cannot know the numbers, events are shown when they have been numbered, and none is skipped."""
    async with postgres_reader() as (writer, reader, other):
        end = (await reader.events("end", 0)).cursor
        held = other.transaction()
        await held.start()
        await other.execute(f'LOCK TABLE "{writer.address.schema}".outbox IN ROW EXCLUSIVE MODE')  # type: ignore[attr-defined]
        await writer.enqueue([a_spec(id="new")])

        assert (await reader.events(end, 10)).events == () and (await reader.events(end, 10)).cursor == end
        assert [event.kind for event in await reader.history("new")] == ["enqueued"]
        await writer.maintain()
        assert await ids_after(reader, end) == ["new"]
        await held.rollback()


def test_sessions_of_a_reader_are_read_only():
    address = Address.from_url("postgresql://db/shop")
    reader = connect("postgresql://db/shop?access=read")

    assert "default_transaction_read_only" not in address.arguments()["server_settings"]
    settings = reader.address.arguments_for_steps()["server_settings"]  # type: ignore[attr-defined]
    assert settings["default_transaction_read_only"] == "on"


# ── SQLite: the log of a writer ───────────────────────────────────────────────────────────────────


async def test_a_reader_follows_a_writer_that_comes_and_goes(tmp_path: Path):
    """With a log, without one, and again: what is committed is seen, and nothing of it is created by the reader."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    await with_store(url, fill_and_number)
    reader = connect(f"{url}?access=read")
    await reader.connect()
    try:
        assert not (tmp_path / "jobs.db-wal").exists()
        for number in range(3):
            writer = connect(url)
            await writer.connect()
            await writer.enqueue([a_spec(id=f"new-{number}")])
            assert await reader.get([f"new-{number}"]) != [None]  # from the log
            await writer.close()
            assert await reader.get([f"new-{number}"]) != [None]  # from the file
            moved = tmp_path / f"copy-{number}"
            shutil.copy(tmp_path / "jobs.db", moved)
            os.replace(moved, tmp_path / "jobs.db")  # as a restore does it
            assert await reader.get([f"new-{number}"]) != [None]
    finally:
        await reader.close()


# ── another user ──────────────────────────────────────────────────────────────────────────────────

LOOK = """
import asyncio, os, sys
import concurrent.futures.thread
from millrace.domain.job import Spec
from millrace.store.connect import connect

async def look(store):
    await store.connect()
    print(sum(counts.waiting for counts in await store.count()), len((await store.events(None, 1000)).events))
    if "access=read" not in store.url:
        await store.enqueue([Spec("new", "send")])
    await store.close()

store = connect(sys.argv[1])
if os.geteuid() == 0:  # root may do anything; and only root's interpreter may be where nobody can read it
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
asyncio.run(look(store))
"""


def look_as_nobody(url: str) -> subprocess.CompletedProcess[str]:
    """Look at a store as a user to whom nothing belongs."""
    return subprocess.run([sys.executable, "-c", LOOK, url], capture_output=True, text=True, check=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="millrace-read-"))
    yield made
    for path in [made, *made.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(made)


def may_only_be_read(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.mark.parametrize("kind", ["sqlite", "directory"])
@pytest.mark.parametrize("busy", [False, True], ids=["nobody writes", "somebody writes"])
def test_files_that_may_only_be_read_are_read(kind: str, busy: bool, folder: Path):
    """With a writer that has them open, and without one. Without read access, the same user cannot write."""
    url = f"sqlite:///{folder}/jobs.db" if kind == "sqlite" else f"file://{folder}/jobs"
    with changed_environment({"MILLRACE_FEED_DELAY_MS": "0"}):

        async def look_while_open(store):
            await fill_and_number(store)
            may_only_be_read(folder)
            return look_as_nobody(f"{url}?access=read")

        def look_afterwards():
            run(with_store(url, fill_and_number))
            may_only_be_read(folder)
            return look_as_nobody(f"{url}?access=read")

        ran = run(with_store(url, look_while_open)) if busy else look_afterwards()
        refused = look_as_nobody(url)

    assert (ran.returncode, ran.stdout.split()) == (0, ["5", "58"]), ran.stderr
    assert "StoreError" in refused.stderr, refused


async def test_a_worker_does_not_start_without_write_access():
    """It would repeat its calls forever."""
    app = App("memory://read-worker?access=read")

    with pytest.raises(ReadOnlyStore, match="a worker writes"):
        await app.worker().run(handle_signals=False)
