"""Calls that commit and then notify: an error after the commit loses neither the result nor the notification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore
from millrace.store.postgres import store as stores
from millrace.testing.builders import a_claim, a_spec
from tests.servers.postgres import url_for

LONG = 600.0
# The same procedures as in functions/*.sql, but with an error instead of the notification.
FAILING = """
CREATE OR REPLACE PROCEDURE millrace.enqueue_and_fail(
    INOUT seqs bigint[], given bigint, ids text[], specs bytea[], combos integer[], queues integer[], delays bigint[],
    expires bigint[], leases bigint[], keeps bigint[], replies text[], drawn bigint[], channel text, word text
) LANGUAGE plpgsql AS $$
BEGIN
    seqs := millrace.enqueue_plain(given, ids, specs, combos, queues, delays, expires, leases, keeps, replies, drawn);
    COMMIT;
    RAISE EXCEPTION 'after the commit' USING ERRCODE = '40P01';
END $$;
CREATE OR REPLACE PROCEDURE millrace.complete_and_fail(
    INOUT held bigint[], INOUT replies text[], given bigint, seqs bigint[], leases text[], results bytea[],
    durations bigint[], mine text
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT c.held, c.replies INTO held, replies
    FROM millrace.complete_plain(given, seqs, leases, results, durations) AS c;
    COMMIT;
    RAISE EXCEPTION 'after the commit' USING ERRCODE = '40P01';
END $$;
"""


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two stores as of two processes. The calls of the first one fail after their commit, and nobody polls."""
    monkeypatch.setattr(stores, "_SLICE", LONG)
    failing, other = PostgresStore(url_for(tmp_path)), PostgresStore(url_for(tmp_path))
    await failing.connect()
    await other.connect()
    session = failing.session()
    async with session.connections.one() as connection:
        await connection.execute(FAILING.replace("millrace.", f'"{failing.address.schema}".'))
    session.sql = {
        **session.sql,
        "enqueue_and_tell": session.sql["enqueue_and_tell"].replace("enqueue_and_tell", "enqueue_and_fail"),
        "complete_and_tell": session.sql["complete_and_tell"].replace("complete_and_tell", "complete_and_fail"),
    }
    try:
        yield failing, other
    finally:
        await failing.close()
        await other.close()


async def test_an_enqueue_that_fails_after_its_commit_wakes_an_idle_worker(pair: tuple[PostgresStore, PostgresStore]):
    failing, other = pair
    for number in range(2):  # the first enqueue of a queue is a step of the ledger
        idle = asyncio.create_task(other.wait(["default"], None, LONG))
        await asyncio.sleep(0.3)
        [enqueued] = await failing.enqueue([a_spec(id=f"job{number}")])

        assert enqueued.status == "queued"
        async with asyncio.timeout(60):
            await idle
        assert [job.id for job in await other.claim(a_claim())] == [f"job{number}"]


async def test_a_completion_that_fails_after_its_commit_is_acknowledged_and_announced(
    pair: tuple[PostgresStore, PostgresStore],
):
    failing, other = pair
    async with other.watch("wanted") as watch:
        await other.enqueue([a_spec(id="wanted")])
        [job] = await failing.claim(a_claim())
        waiting = asyncio.create_task(watch.wait(LONG))

        assert await failing.settle([(job.lease, Change.completed(b"1"))]) == [Receipt.OK]
        async with asyncio.timeout(60):
            await waiting
    [stored] = await other.get(["wanted"])
    assert stored is not None and stored.result == b"1"
