"""How much a claim and an end read does not depend on how many jobs wait, on tables that were never analyzed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millrace.domain.check import specs_like
from millrace.domain.job import Spec
from millrace.store.postgres import PostgresStore
from tests.servers.postgres import url_for

TABLES = ("job", "ready", "lease", "event", "past", "dependency", "agenda")


async def rows_read(connection: Any, schema: str) -> int:
    """In this transaction: rows that scans and index look-ups have touched."""
    found = await connection.fetch(
        "SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) AS touched "
        "FROM pg_stat_xact_user_tables WHERE schemaname = $1",
        schema,
    )
    return sum(row["touched"] for row in found if row["relname"] in TABLES)


@pytest.mark.parametrize("waiting", [200, 20_000])
async def test_a_claim_and_an_end_of_ten_read_a_few_rows_each(tmp_path: Path, waiting: int) -> None:
    store = PostgresStore(url_for(tmp_path))
    await store.connect()
    connection = await asyncpg.connect(store.address.dsn)
    try:
        await store.enqueue([Spec(id="first", task="work")])
        for start in range(0, waiting, 1_000):
            ids = [f"{start + n:06d}" for n in range(min(1_000, waiting))]
            await store.enqueue(specs_like(Spec(id="x", task="work"), ids, [b""] * len(ids)))
        sql = store.session().sql
        async with connection.transaction():
            jobs = await connection.fetch(
                sql["claim_plain"], None, ["default"], ["work"], 10, None, "w", "c", None, None, None
            )
            claimed = await rows_read(connection, store.address.schema)
            seqs, leases = [row[0] for row in jobs], [row[8] for row in jobs]
            await connection.fetch(sql["complete_plain"], None, seqs, leases, [None] * 10, [None] * 10)
            ended = await rows_read(connection, store.address.schema) - claimed
    finally:
        await connection.close()
        await store.close()

    assert len(jobs) == 10
    assert claimed <= 60
    assert ended <= 80
