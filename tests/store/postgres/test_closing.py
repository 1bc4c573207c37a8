"""The triggers with which a closed store refuses changes are created once, not with every page of an import."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import msgspec

from millrace.store.postgres import PostgresStore
from millrace.testing.conformance.transfer_scenes import TARGET, change_stage, close
from tests.servers.postgres import url_for

_TRIGGERS = """
SELECT t.oid FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgname = 'closed' AND n.nspname = $1 ORDER BY t.oid
"""


async def test_pages_of_an_import_leave_the_triggers_of_a_closed_store(tmp_path: Path) -> None:
    store = PostgresStore(url_for(tmp_path))
    await store.connect()
    importing = msgspec.structs.replace(TARGET, stage="importing", cursor="jobs:1")
    await close(store, TARGET)
    await change_stage(store, TARGET, importing)
    before = await _triggers(store)
    further = msgspec.structs.replace(importing, cursor="jobs:2")
    await change_stage(store, importing, further)

    assert len(before) == 14
    assert await _triggers(store) == before
    await change_stage(store, further, None)
    assert await _triggers(store) == []
    await store.close()


async def _triggers(store: PostgresStore) -> list[int]:
    connection = await asyncpg.connect(store.address.dsn)
    try:
        rows = await connection.fetch(_TRIGGERS, store.address.schema)
        return [row["oid"] for row in rows]
    finally:
        await connection.close()
