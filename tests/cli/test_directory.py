"""A directory as a store, through the commands: made, looked after, and its jobs' past records shown."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

import millrace.cli.doctor.objects
from millrace import App
from millrace.store.object.store import ObjectStore
from tests.cli.stage import Stage
from tests.cli.test_doctor import found

SHOP = ("--app", "tests.cli.shop:app")


@pytest.fixture
def stage(bare: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    bare.url = f"file://{tmp_path}/jobs"
    monkeypatch.setenv("MILLRACE_URL", bare.url)
    return bare


# ── init ──────────────────────────────────────────────────────────────────────────────────────


def test_init_makes_a_directory_for_its_owner_only_and_leaves_one_that_is_there(stage: Stage):
    dry = stage("init", "--dry-run", "--json").json
    assert not Path("jobs").exists() and dry["dry_run"] is True
    assert [(step["step"], step["status"]) for step in dry["steps"]] == [("directory", "to do")]

    assert stage("init", "--json").json["created"] is True
    assert stat.S_IMODE(os.stat("jobs").st_mode) == 0o700

    stage("submit", "pack", "--id", "x")
    again = stage("init", "--json").json
    assert again["created"] is False and {step["status"] for step in again["steps"]} == {"was so"}
    assert stage("init").out == f"{stage.url}\n"
    assert [row["id"] for row in stage("list").rows] == ["x"]


def test_init_says_what_it_found_and_takes_nothing_over(stage: Stage):
    Path("jobs").mkdir(mode=0o755)
    os.chmod("jobs", 0o755)
    assert "chmod 700" in stage("init").err

    Path("other").mkdir()
    Path("other/letter.txt").write_text("dear")
    ran = stage.refused("init", "--url", stage.url.replace("/jobs", "/other"))
    assert ran.code == 3 and "letter.txt" in ran.err and os.listdir("other") == ["letter.txt"]
    ran = stage.refused("init", "--url", stage.url.replace("/jobs", "/other/letter.txt"))
    assert ran.code == 3 and "is a file" in ran.err


def test_options_of_a_bucket_are_refused_elsewhere(stage: Stage):
    assert stage.refused("init", "--origin", "https://jobs.example.com").code == 2
    assert stage.refused("init", "--history-days", "3", "--url", "sqlite:///jobs.db").code == 2
    assert not Path("jobs").exists() and not Path("jobs.db").exists()


def test_a_dry_run_makes_no_file(stage: Stage):
    ran = stage("init", "--dry-run", "--url", "sqlite:///jobs.db")
    assert "to do" in ran.err and "Nothing was changed" in ran.err and not Path("jobs.db").exists()


def test_a_directory_that_is_not_there_is_not_made_by_looking(stage: Stage):
    ran = stage.refused("list")

    assert ran.code == 3 and "millrace init" in ran.err and not Path("jobs").exists()


# ── doctor ────────────────────────────────────────────────────────────────────────────────────


def test_the_doctor_looks_at_a_directory_from_all_sides(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    assert found(stage)["directory"]["status"] == "fail"
    stage("init")

    checks = found(stage)
    looked_at = ("directory", "permissions", "file system", "disk", "quarantine", "durability", "clock")
    assert {checks[name]["status"] for name in (*looked_at, "leftovers", "transactions")} == {"ok"}
    assert "power loss" in checks["durability"]["found"]
    assert "leftovers" not in found(stage, "--quick")

    os.chmod("jobs", 0o750)
    assert found(stage)["permissions"]["do"].startswith("chmod 700 ")
    assert found(stage, "--url", stage.url + "?durability=relaxed")["durability"]["status"] == "warn"

    for kind, status in (("nfs4", "fail"), ("tmpfs", "warn"), ("ext4", "ok")):
        monkeypatch.setattr(millrace.cli.doctor.objects, "file_system_of", lambda path, mounts, kind=kind: kind)
        assert found(stage)["file system"]["status"] == status


def test_torn_and_foreign_files_are_told(stage: Stage):
    stage("init")
    stage("submit", "pack", "--id", "x")
    [file] = Path("jobs/tasks").rglob("*.json")
    file.write_bytes(file.read_bytes()[:-7])

    met = found(stage)
    assert met["strange files"]["status"] == "warn" and "quarantine" in met["strange files"]["found"]
    checks = found(stage)
    assert checks["quarantine"]["status"] == "warn" and "1 file" in checks["quarantine"]["found"]


def age(folder: Path) -> None:
    """As if nobody had touched it for an hour: the sweep leaves alone what is young."""
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (os.stat(file).st_atime, os.stat(file).st_mtime - 3_600))


def test_leftovers_of_a_crash_are_told_and_not_touched(stage: Stage):
    """A job whose index key is missing: the doctor says so, twice, because it changes nothing (BO-01)."""
    stage("init")
    stage("submit", "pack", "--id", "x")
    [ready] = [file for file in Path("jobs/ready").rglob("*") if file.is_file()]
    ready.unlink()
    age(Path("jobs"))

    for _ in range(2):
        leftovers = found(stage)["leftovers"]
        assert leftovers["status"] == "warn" and "index restored 1" in leftovers["found"]
    assert not ready.exists() and "monitor" in leftovers["do"]


def test_an_open_transaction_is_told_with_its_age(stage: Stage):
    """Two jobs of a group: one object is written as pending, and its owner is never heard of again."""
    from millrace.store.object.engine.objects import Pending, opened, sealed, value_bytes

    stage("init")
    stage("submit", "pack", "--id", "x")

    async def half_done() -> None:
        async with App(stage.url) as app:
            store = await app.connected()
            assert isinstance(store, ObjectStore)
            key = store.engine.layout.job("x")
            blob = await store.blobs.get(key)
            assert blob is not None
            value = value_bytes(opened(blob.body).value)
            pending = Pending("tx", "lines/default/g-a.json")
            await store.blobs.swap(key, sealed(value, pending=pending), blob.tag)

    asyncio.run(half_done())
    assert found(stage)["transactions"]["status"] == "ok"  # young: it may be at work
    age(Path("jobs"))

    transactions = found(stage)["transactions"]

    assert transactions["status"] == "warn" and "tasks/" in transactions["found"] and "1h" in transactions["found"]


# ── history from versions ─────────────────────────────────────────────────────────────────────


def test_history_shows_the_whole_record_after_each_write(stage: Stage):
    """O-23: created, claimed, outcome; each with its payload and result."""
    stage("init")
    stage("submit", "send_email", '{"to": "ada"}', "--id", "mail", *SHOP)
    stage("worker", "--burst", "--name", "w", *SHOP)

    records = stage("history", "mail", "--versions", "--json").json

    assert [one["rev"] for one in records] == list(range(1, len(records) + 1))
    states = [one["job"]["state"] for one in records]
    assert states[0] == "ready" and states[-1] == "completed" and set(states[1:-1]) == {"running"}
    assert [one["job"]["worker"] for one in records][:2] == [None, "w"]
    assert all(one["job"]["payload"] == {"to": "ada"} for one in records)
    assert records[-1]["job"]["result"] == "sent to ada" and records[0]["job"]["result"] is None
    rows = stage("history", "mail", "--versions").rows
    assert [row["state"] for row in rows][:2] == ["waiting", "running"] and "lease_id" in rows[1]["details"]


def test_a_difference_of_two_records(stage: Stage):
    stage("init")
    stage("submit", "charge", '{"card": 1}', "--id", "c", *SHOP)
    stage("worker", "--burst", "--name", "w", *SHOP)
    stage("replay", "c")

    each = stage("history", "c", "--versions", "--diff", "--json").json
    facts = [{one["fact"]: (one["before"], one["after"]) for one in step["changes"]} for step in each]
    assert [(step["from"], step["to"]) for step in each] == [(n, n + 1) for n in range(1, len(each) + 1)]
    steps = [fact for fact in facts if "state" in fact]  # a lease that was extended is a write too
    assert [fact["state"] for fact in steps] == [("waiting", "running"), ("running", "dead"), ("dead", "waiting")]
    assert steps[1]["error"][1]["message"] == "card 1 was refused" and "events" not in steps[1]

    last = str(each[-1]["to"])
    [whole] = stage("history", "c", "--versions", "--diff", "--from", "1", "--to", last, "--json").json
    changed = {one["fact"] for one in whole["changes"]}
    assert "replays" in changed and "state" not in changed
    assert stage.refused("history", "c", "--versions", "--diff", "--from", "99").code == 2
    assert stage.refused("history", "c", "--versions", "--from", "3", "--to", "1").code == 2
    assert stage.refused("history", "nobody", "--versions").code == 1


def test_elsewhere_only_events_are_kept(bare: Stage):
    bare("init")
    bare("submit", "pack", "--id", "x", "--url", "sqlite:///jobs.db")

    ran = bare.refused("history", "x", "--versions", "--url", "sqlite:///jobs.db")

    assert ran.code == 1 and ran.out == "" and "events" in ran.err
