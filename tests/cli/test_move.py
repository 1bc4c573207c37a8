"""`millrace move`: to another store with one command, and nothing is forgotten or done twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg
import pytest

from millrace.store.object.store import ObjectStore
from tests.cli.stage import Stage
from tests.servers.postgres import drop_schema, shared_url

SHOP = ("--app", "tests.cli.shop:app")
TO = ("--to", "sqlite:///new.db")


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process writes, so a directory need not wait until such writes have ended."""
    monkeypatch.setattr(ObjectStore, "closes_after", 0.0)


@pytest.fixture
def filled(cli: Stage) -> Stage:
    cli("submit", "charge", '{"card": 1}', "--id", "dead", *SHOP)
    cli("worker", "--burst", *SHOP)
    cli("submit", "pack", "--id", "ready")
    cli("pause", "mail")
    return cli


def test_a_dry_run_counts_by_queue_and_state_and_changes_nothing(filled: Stage) -> None:
    filled("init", "--url", "sqlite:///new.db")
    ran = filled("move", *TO, "--dry-run", "--json")

    assert ran.json["jobs"] == 2
    [queue] = [queue for queue in ran.json["queues"] if queue["queue"] == "default"]
    assert (queue["waiting"], queue["dead"], queue["running"]) == (1, 1, 0)
    assert "would be moved" in filled("move", *TO, "--dry-run").err
    filled("submit", "pack", "--id", "still-open")


def test_a_dry_run_creates_no_store(filled: Stage, tmp_path: Path) -> None:
    for target in ("sqlite:///new.db", f"file://{tmp_path}/new"):
        ran = filled("move", "--to", target, "--dry-run")
        assert (
            f"2 jobs and 0 schedules would be moved to {target}, which would be created. Nothing was changed" in ran.err
        )
        assert not list(tmp_path.glob("new*"))
    assert (
        "there is no database nowhere.db"
        in filled.refused("move", "--from", "sqlite:///nowhere.db", *TO, "--dry-run").err
    )


def test_a_dry_run_creates_and_upgrades_nothing_in_postgres(bare: Stage) -> None:
    schema = f"planned_{token_hex(4)}"
    to = f"{shared_url()}?schema={schema}"

    def versions() -> list[int]:
        return asyncio.run(_versions(schema))

    try:
        bare("init", "--url", "sqlite:///old.db")
        ran = bare("move", "--from", "sqlite:///old.db", "--to", to, "--dry-run")
        assert "which would be created" in ran.err
        assert versions() == []

        bare("init", "--url", to)
        asyncio.run(_execute(f'UPDATE "{schema}".store SET version = 1'))
        for source, target in ((to, "sqlite:///new.db"), ("sqlite:///old.db", to)):
            assert "has version 1" in bare.refused("move", "--from", source, "--to", target, "--dry-run").err
        assert versions() == [1]
    finally:
        drop_schema(schema)


async def _versions(schema: str) -> list[int]:
    found = await _execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1", schema)
    return [row["version"] for row in await _execute(f'SELECT version FROM "{schema}".store')] if found else []


async def _execute(sql: str, *arguments: str) -> list[Any]:
    connection = await asyncpg.connect(shared_url())
    try:
        rows: list[Any] = await connection.fetch(sql, *arguments)
        return rows
    finally:
        await connection.close()


def test_a_dry_run_of_a_finished_move_knows_the_stores(filled: Stage) -> None:
    filled("move", *TO)
    assert "2 jobs and 0 schedules would be moved" in filled("move", *TO, "--dry-run").err
    assert "were moved to sqlite:///new.db" in filled.refused("move", "--to", "sqlite:///x.db", "--dry-run").err


def test_moved_jobs_are_in_the_new_store_and_the_old_one_names_it(filled: Stage) -> None:
    history = filled("history", "dead").rows
    ran = filled("move", "--from", filled.url, *TO)

    assert "2 jobs and 0 schedules moved to sqlite:///new.db" in ran.err
    refused = filled.refused("submit", "pack")
    assert refused.code == 3 and "moved to sqlite:///new.db" in refused.err
    assert filled("history", "dead", "--url", "sqlite:///new.db").rows == history
    filled("worker", "--burst", *SHOP, "--url", "sqlite:///new.db")
    assert filled("status", "ready", "--url", "sqlite:///new.db", "--json").json["state"] == "completed"
    assert filled("move", *TO, "--json").json["imported"] == 0


def test_a_store_with_jobs_is_refused_as_a_target(filled: Stage) -> None:
    filled("init", "--url", "sqlite:///new.db")
    filled("submit", "pack", "--url", "sqlite:///new.db")

    ran = filled.refused("move", *TO)
    assert ran.code == 2 and "has 1 jobs already" in ran.err
    filled("submit", "pack")


def test_wrong_use_of_move_says_what_to_do(filled: Stage) -> None:
    assert "to itself" in filled.refused("move", "--to", filled.url).err
    assert "exclude each other" in filled.refused("move", *TO, "--abort", "--dry-run").err
    assert filled.refused("move", "--from", "sqlite:///nowhere.db", *TO).code == 3
    assert "--to is missing" in filled.refused("move").err
    assert "only for --abort" in filled.refused("move", *TO, "--force").err
    ran = filled.refused("move", "--abort")
    assert ran.code == 1 and "is not being moved" in ran.err


def test_a_moved_store_is_opened_again_only_by_force_and_without_the_new_one(filled: Stage) -> None:
    filled("move", "--from", filled.url, *TO)
    ran = filled.refused("move", "--abort", *TO)
    assert ran.code == 2 and "--force" in ran.err

    for file in Path().glob("new.db*"):
        file.unlink()
    assert "replaced or emptied" in filled.refused("move", *TO).err
    assert "is open again" in filled("move", "--abort", "--force").err
    filled("submit", "pack")
