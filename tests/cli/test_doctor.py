"""`millrace doctor`: each check can be in order and can fail, and says what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace import App, StoreError
from millrace.cli.doctor import store as checkup_store
from millrace.cli.doctor.jobs import check_jobs
from millrace.domain.request import Claim, Page, Query, WorkerInfo
from millrace.store.memory import MemoryStore
from millrace.store.object.store import ObjectStore
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


def found(cli: Stage, *arguments: str) -> dict[str, dict[str, str]]:
    """Findings by check; a warning never stands without advice."""
    document = cli("doctor", *arguments, "--json", ok=False).json
    assert all(one["do"] for one in document["checks"] if one["status"] != "ok")
    return {one["check"]: one for one in document["checks"]}


def status(cli: Stage, check: str, *arguments: str) -> str:
    return found(cli, *arguments)[check]["status"]


def test_an_empty_store_is_in_order(cli: Stage):
    ran = cli("doctor", "--strict", "--json")

    assert ran.json["healthy"] is True and ran.json["warn"] == ran.json["fail"] == 0
    checks = {one["check"] for one in ran.json["checks"]}
    assert checks >= {
        "settings",
        "app",
        "url",
        "schema",
        "clock",
        "workers",
        "queues",
        "oldest ready",
        "tasks",
        "lines",
    }
    assert {row["status"] for row in cli("doctor").rows} == {"ok"}


def test_a_file_is_looked_at_from_all_sides(bare: Stage):
    bare("init")
    url = ("--url", "sqlite:///jobs.db")
    assert {"file", "permissions", "disk", "durability", "integrity"} <= found(bare, *url).keys()
    assert "integrity" not in found(bare, *url, "--quick")

    os.chmod("jobs.db", 0o644)
    assert found(bare, *url)["permissions"]["do"] == "chmod 600 jobs.db"
    assert status(bare, "durability", "--url", "sqlite:///jobs.db?durability=relaxed") == "warn"
    assert bare("doctor", *url).code == 0
    assert bare("doctor", *url, "--strict", ok=False).code == 1


def test_a_store_that_is_not_there_fails(bare: Stage):
    assert status(bare, "file", "--url", "sqlite:///nowhere.db") == "fail"
    assert status(bare, "open", "--url", "redis://127.0.0.1:1/0") == "fail"
    assert status(bare, "url", "--url", "no url") == "fail"
    assert status(bare, "url") == "fail"
    assert bare.refused("doctor").code == 1


def test_a_damaged_file_fails(bare: Stage):
    bare("init")
    bare("submit", "pack", "-", "--many", "--url", "sqlite:///jobs.db", stdin="{}\n" * 3_000)
    with sqlite3.connect("jobs.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(Path("jobs.db").read_bytes())
    data[len(data) // 3 : len(data) // 3 + 30_000] = b"\xa5" * 30_000
    Path("jobs.db").write_bytes(data)

    checks = found(bare, "--url", "sqlite:///jobs.db")

    assert "fail" in {checks.get(name, {}).get("status") for name in ("integrity", "open", "jobs")}


def test_a_file_of_another_program_or_of_a_newer_version_fails(bare: Stage):
    with sqlite3.connect("other.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert "another program" in found(bare, "--url", "sqlite:///other.db")["open"]["found"]

    bare("init")
    with sqlite3.connect("jobs.db") as connection:
        connection.execute("UPDATE millrace_store SET version = 99")
    connection.close()
    assert "schema version 99" in found(bare, "--url", "sqlite:///jobs.db")["open"]["found"]


def test_an_app_that_cannot_be_loaded_fails_and_the_rest_is_still_looked_at(cli: Stage):
    checks = found(cli, "--app", "nowhere:app")

    assert checks["app"]["status"] == "fail" and checks["clock"]["status"] == "ok"


def test_a_misspelt_variable_is_told(cli: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLRACE_ULR", "sqlite:///jobs.db")

    assert "MILLRACE_ULR" in found(cli)["settings"]["found"]


def beat(cli: Stage, worker: str, ttl: int, queues: tuple[str, ...] = ("default",), tasks: tuple[str, ...] = ("pack",)):
    async def once() -> None:
        async with App(cli.url) as app:
            store = await app.connected()
            await store.beat(WorkerInfo(worker, queues, tasks), ttl)
            await asyncio.sleep(0.005)

    asyncio.run(once())


def test_jobs_without_a_worker_are_told(cli: Stage):
    cli("submit", "pack")
    assert "no worker" in found(cli)["workers"]["found"]

    beat(cli, "w", 60_000)
    assert status(cli, "workers") == "ok"


def test_a_worker_that_went_silent_is_told(cli: Stage):
    beat(cli, "silent", 1)

    assert "silent" in found(cli)["workers"]["found"]
    assert cli("workers", "--json").json[0]["alive"] is False
    assert cli("workers", "--alive", "--json").json == []
    assert cli("workers").rows[0]["state"] == "stale"


def test_a_queue_that_nobody_serves_and_a_task_that_nobody_knows_are_told(cli: Stage):
    beat(cli, "w", 60_000)
    cli("submit", "pack", "--queue", "lonely")
    cli("submit", "mystery")

    checks = found(cli)
    assert "lonely (1 ready)" in checks["queues"]["found"]
    assert "mystery (1 job)" in checks["tasks"]["found"]
    assert status(cli, "tasks", *SHOP) == "warn"


def test_a_job_that_has_been_ready_for_long_is_told_unless_its_queue_is_paused(cli: Stage):
    cli("submit", "pack")
    assert status(cli, "oldest ready") == "ok"
    assert status(cli, "oldest ready", "--max-age", "0") == "warn"

    cli("pause", "default")
    assert status(cli, "oldest ready", "--max-age", "0") == "ok"
    assert status(cli, "paused") == "warn"


def test_a_queue_that_is_nearly_full_is_told(cli: Stage):
    cli("submit", "pack", "-", "--many", stdin="{}\n" * 10)
    cli("queues", "default", "--set", "max_depth=10")
    assert "10 waiting jobs of at most 10" in found(cli)["depth"]["found"]

    cli("worker", "--burst", *SHOP)
    cli("submit", "charge", '{"card": 1}', *SHOP)
    cli("worker", "--burst", *SHOP)
    cli("queues", "default", "--set", "dead_cap=1")
    assert "1 dead job of at most 1" in found(cli)["dead letters"]["found"]


def test_lines_that_move_are_not_called_stuck(cli: Stage):
    for _ in range(3):
        cli("submit", "pack", "--group", "g")

    assert status(cli, "lines") == "ok"


def test_a_line_in_which_nothing_moves_is_a_failure(cli: Stage, monkeypatch: pytest.MonkeyPatch):
    """No store lets it happen, so what the doctor is shown is a group whose members all claim to wait for another."""
    for number in range(2):
        cli("submit", "pack", "--id", f"job-{number}", "--group", "g")
    for kind in (MemoryStore, ObjectStore, SqliteStore):

        async def closed(self: Store, query: Query, find: Any = kind.find) -> Page:
            found: Page = await find(self, query)
            for job in found.jobs:
                job.open = False
            return found

        monkeypatch.setattr(kind, "find", closed)
    lines = found(cli)["lines"]

    assert lines["status"] == "fail" and "default g:g" in lines["found"] and "report it" in lines["do"]
    assert cli("doctor", ok=False).code == 1


def test_a_line_that_a_running_job_holds_is_in_order(cli: Stage):
    for number in range(2):
        cli("submit", "pack", "--id", f"job-{number}", "--group", "g")

    async def claim_and_look() -> str:
        async with App(cli.url) as app:
            store = await app.connected()
            await store.claim(Claim(("default",), "w"))
            [finding] = [one for one in await check_jobs(app, store, None, 300_000) if one.check == "lines"]
            return finding.status

    assert asyncio.run(claim_and_look()) == "ok"


def test_a_clock_that_is_off_is_told_and_one_that_does_not_answer_fails(cli: Stage, monkeypatch: pytest.MonkeyPatch):
    assert status(cli, "clock") == "ok"

    here = time.time_ns()  # it stands still, so that it does not matter how long an answer takes
    for off in (-90_000, 90_000):

        async def wrong(self: object, off: int = off) -> int:
            return here // 1_000_000 + off

        with monkeypatch.context() as patch:
            patch.setattr(checkup_store, "time", SimpleNamespace(time_ns=lambda: here))
            for store in (MemoryStore, SqliteStore, ObjectStore):
                patch.setattr(store, "now", wrong)
            clock = found(cli)["clock"]
        assert clock["status"] == "warn" and "differ by 1m 30s" in clock["found"] and "NTP" in clock["do"]

    async def silent(self: object) -> int:
        raise StoreError("it went away")

    for store in (MemoryStore, SqliteStore, ObjectStore):
        monkeypatch.setattr(store, "now", silent)
    clock = found(cli)["clock"]
    assert clock["status"] == "fail" and "it went away" in clock["found"]


def test_a_disk_that_is_nearly_full_is_told(bare: Stage, monkeypatch: pytest.MonkeyPatch):
    bare("init")
    url = ("--url", "sqlite:///jobs.db")
    assert status(bare, "disk", *url) == "ok"

    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=50 << 20))
    disk = found(bare, *url)["disk"]

    assert disk["status"] == "warn" and "50 MiB free" in disk["found"]
