"""The listener is told to stop, and stops, whatever it hears in that moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millrace.store.postgres import PostgresStore
from tests.servers.postgres import url_for


class Deaf:
    """A connection on which nothing is said."""

    async def execute(self, *_: object) -> None:
        return None


async def test_a_probe_that_is_answered_while_its_listener_is_closed_ends_with_it(tmp_path: Path):
    store = PostgresStore(url_for(tmp_path))
    await store.connect()
    listener = store.listener()
    probing = asyncio.ensure_future(listener._probe(Deaf()))
    await asyncio.sleep(0.01)

    listener._probed.set()
    probing.cancel()
    await asyncio.wait([probing], timeout=5)

    assert probing.cancelled()
    await store.close()
