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
PROCEDURES = {
    "enqueue_one_and_tell": "enqueue.sql",
    "enqueue_and_tell": "enqueue.sql",
    "complete_and_tell": "settle.sql",
}
ERROR = "RAISE EXCEPTION 'after the commit' USING ERRCODE = '40P01';"


def failing(file: str, name: str) -> str:
    """The procedure of this name, but with an error in place of the notification."""
    text = (Path(stores.__file__).parent / "functions" / file).read_text()
    procedure = text[text.index(f"CREATE OR REPLACE PROCEDURE millrace.{name}") :].partition("END $$;")[0]
    assert procedure.count("COMMIT;") == 1
    return procedure.replace("_and_tell", "_and_fail").replace("COMMIT;", f"COMMIT; {ERROR}") + "END $$;"


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two stores as of two processes. The calls of the first one fail after their commit, and nobody polls."""
    monkeypatch.setattr(stores, "_SLICE", LONG)
    first, other = PostgresStore(url_for(tmp_path)), PostgresStore(url_for(tmp_path))
    await first.connect()
    await other.connect()
    session = first.session()
    async with session.connections.one() as connection:
        for name, file in PROCEDURES.items():
            await connection.execute(failing(file, name).replace("millrace.", f'"{first.address.schema}".'))
    session.sql = session.sql | {name: session.sql[name].replace("_and_tell", "_and_fail") for name in PROCEDURES}
    try:
        yield first, other
    finally:
        await first.close()
        await other.close()


@pytest.mark.parametrize("count", [1, 2])
async def test_an_enqueue_that_fails_after_its_commit_wakes_an_idle_worker(
    pair: tuple[PostgresStore, PostgresStore], count: int
) -> None:
    first, other = pair
    for number in range(2):  # the first enqueue of a queue is a step of the ledger
        ids = [f"job{number}-{n}" for n in range(count)]
        idle = asyncio.create_task(other.wait(["default"], None, LONG))
        await asyncio.sleep(0.3)
        answers = await first.enqueue([a_spec(id=job_id) for job_id in ids])

        assert [answer.status for answer in answers] == ["queued"] * count
        async with asyncio.timeout(60):
            await idle
        assert [job.id for job in await other.claim(a_claim(count))] == ids


async def test_a_completion_that_fails_after_its_commit_is_acknowledged_and_announced(
    pair: tuple[PostgresStore, PostgresStore],
):
    first, other = pair
    async with other.watch("wanted") as watch:
        await other.enqueue([a_spec(id="wanted")])
        [job] = await first.claim(a_claim())
        waiting = asyncio.create_task(watch.wait(LONG))

        assert await first.settle([(job.lease, Change.completed(b"1"))]) == [Receipt.OK]
        async with asyncio.timeout(60):
            await waiting
    [stored] = await other.get(["wanted"])
    assert stored is not None and stored.result == b"1"
