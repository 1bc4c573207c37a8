"""`millrace monitor`: what is lost comes back, what is broken is mended, and both are told (O-22, O-31)."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.request import Claim, WorkerInfo
from tests.cli.process import Shell, ended
from tests.cli.stage import Stage
from tests.cli.test_directory import age

SHOP = ("--app", "tests.cli.shop:app")


def lose(cli: Stage, *jobs: str) -> None:
    """Somebody takes them and is never heard of again."""

    async def claimed() -> None:
        async with App(cli.url) as app:
            store = await app.connected()
            info = WorkerInfo("gone", queues=("default",), tasks=("pack",))
            await store.beat(info, 1)
            assert len(await store.claim(Claim(("default",), "gone", len(jobs), lease=1))) == len(jobs)
            await asyncio.sleep(0.02)

    for job in jobs:
        cli("submit", "pack", "--id", job)
    asyncio.run(claimed())


def test_one_look_recovers_what_was_lost(cli: Stage):
    lose(cli, "x", "y")
    assert {row["state"] for row in cli("list").rows} == {"running"}

    ran = cli("monitor", "--once", "--json")

    assert ran.json["repaired"] == {"recovered": 2} and ran.json["failed"] is None
    assert {row["state"] for row in cli("list").rows} == {"retrying"}
    assert "recovered 2" in ran.err
    assert cli("monitor", "--once", "--json").json["repaired"] == {}


def test_the_words_go_to_stderr_and_a_line_of_what_was_done_to_stdout(cli: Stage):
    assert cli("monitor", "--once").out == ""
    lose(cli, "x")

    ran = cli("monitor", "--once")

    [line] = ran.out.splitlines()
    assert line.split("\t")[1:] == ["recovered 1"] and "1 check" in ran.err


def test_a_silent_worker_is_told(cli: Stage):
    lose(cli, "x")

    assert cli("monitor", "--once", "--json").json["stale_workers"] == []  # it has only just gone
    time.sleep(0.1)
    ran = cli("monitor", "--once", "--worker-health-threshold", "0.1", "--json")
    assert ran.json["stale_workers"] == ["gone"] and "gone has been silent" in ran.err
    for command in ("--check-interval", "--worker-health-threshold", "--sweep-interval"):
        refused = cli.refused("monitor", "--once", command, "soon")
        assert refused.code == 2 and command in refused.err.replace("--monitor-", "--")


@pytest.fixture
def stage(bare: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    bare.url = f"file://{tmp_path}/jobs"
    monkeypatch.setenv("MILLRACE_URL", bare.url)
    bare("init")
    return bare


def test_a_job_that_no_index_shows_is_found_again(stage: Stage):
    """BO-01: written, but its process died before the index was; one sweep brings it back."""
    stage("submit", "pack", "--id", "x", *SHOP)
    [ready] = [file for file in Path("jobs/ready").rglob("*") if file.is_file()]
    ready.unlink()
    age(Path("jobs"))
    stage("worker", "--burst", "--no-monitor", "--index-mode", "index-only", *SHOP)
    assert stage("status", "x", "--json").json["state"] == "ready"

    assert stage("monitor", "--once", "--sweep-interval", "0", "--json").json["looked_at"] is None
    ran = stage("monitor", "--once", "--json")

    assert ran.json["repaired"]["index_restored"] == 1 and ran.json["looked_at"] >= 1
    assert ready.exists()
    stage("worker", "--burst", "--no-monitor", "--index-mode", "index-only", *SHOP)
    assert stage("status", "x", "--json").json["state"] == "completed"


def test_it_goes_on_until_it_is_asked_to_stop(tmp_path: Path):
    shell = Shell(tmp_path)
    shell.environ["MILLRACE_URL"] = f"file://{tmp_path}/jobs"
    assert shell.run("init").returncode == 0

    with shell.started("monitor", "--check-interval", "0.1", "--json") as process:
        assert process.stdout is not None
        reports = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)

    assert code == 0 and all(report["repaired"] == {} for report in reports)
    assert reports[0]["looked_at"] is not None and reports[1]["looked_at"] is None  # sweeps come less often
    assert "watching file://" in err and "nothing needed repair" in err
