"""Concurrent single enqueues share calls. An enqueue that has to wait for a lock does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_spec
from tests.servers.postgres import url_for

LIMIT = 8.0  # seconds; a call that is not shared waits 10 s for a lock


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresStore]:
    found = PostgresStore(url_for(tmp_path))
    await found.connect()
    try:
        yield found
    finally:
        await found.close()


async def test_concurrent_enqueues_use_few_calls(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.enqueue([a_spec(id="known")])
    session, calls = store.session(), []
    call, call_and_notify = session.call, session.call_and_notify

    async def counted_call(name: str, *args: Any, **options: Any) -> Any:
        calls.append(name)
        return await call(name, *args, **options)

    async def counted_call_and_notify(name: str, *args: Any, **options: Any) -> Any:
        calls.append(name)
        return await call_and_notify(name, *args, **options)

    monkeypatch.setattr(session, "call", counted_call)
    monkeypatch.setattr(session, "call_and_notify", counted_call_and_notify)
    answers = await asyncio.gather(*(store.enqueue([a_spec(id=f"job-{n}")]) for n in range(200)))

    assert [enqueued.id for [enqueued] in answers] == [f"job-{n}" for n in range(200)]
    assert {enqueued.status for [enqueued] in answers} == {"queued"}
    assert len(calls) == 2


@pytest.mark.parametrize("held", ["a queue", "an id"])
async def test_an_enqueue_that_waits_for_a_lock_delays_no_other_caller(store: PostgresStore, held: str) -> None:
    await store.control("queue", "busy", {"max_running": 10})
    await store.enqueue([a_spec(id="known"), a_spec(id="known in busy", queue="busy")])
    locked = a_spec(id="locked", queue="busy") if held == "a queue" else a_spec(id="locked")
    connection = await asyncpg.connect(store.address.dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await store.within(connection).enqueue([locked])
        wanted = a_spec(id="waits", queue="busy") if held == "a queue" else locked
        calls = [asyncio.ensure_future(store.enqueue([a_spec(id=f"job-{n}")])) for n in range(10)]
        waiting = asyncio.ensure_future(store.enqueue([wanted]))
        calls += [asyncio.ensure_future(store.enqueue([a_spec(id=f"job-{n}")])) for n in range(10, 20)]
        async with asyncio.timeout(LIMIT):
            answers = await asyncio.gather(*calls)
        waited = not waiting.done()
        await transaction.rollback()
        [enqueued] = await waiting
    finally:
        await connection.close()

    assert waited
    assert {answer.status for [answer] in answers} == {"queued"}
    assert (enqueued.id, enqueued.status) == (wanted.id, "queued")
