"""The command line on a bucket: set-up, checks, shards, and history from object versions (O-23, O-31, O-32)."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.init.page import page_files
from millrace.store.object.s3.admin import INDEXES, BucketAdmin
from millrace.store.object.s3.state import state_of
from millrace.store.object.store import ObjectStore
from tests.cli.conftest import bare
from tests.cli.stage import Stage
from tests.cli.test_doctor import found
from tests.servers.ministack import S3Server
from tests.servers.ports import free_port

__all__ = ["bare"]

SHOP = ("--app", "tests.cli.shop:app")


class Bucket(Stage):
    """Commands that name nothing: bucket and prefix come from the environment."""

    def __init__(self, patch: pytest.MonkeyPatch, server: S3Server, name: str, versioned: bool = True) -> None:
        super().__init__(patch, "s3:///queue")
        for variable, value in {
            "MILLRACE_URL": self.url,
            "S3_ENDPOINT": server.endpoint,
            "S3_BUCKET": name,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "MILLRACE_FEED_DELAY_MS": "0",
            **({} if versioned else {"QO_ALLOW_NO_VERSIONING": "1"}),
        }.items():
            patch.setenv(variable, value)
        self.admin = BucketAdmin(server.address("x", bucket=name))
        self.client = self.admin._client
        self.name = name


@pytest.fixture
def fresh(bare: Stage, monkeypatch: pytest.MonkeyPatch, ministack_server: S3Server) -> Bucket:
    """A bucket that does not exist yet. Always on a server of our own: settings of others are not touched."""
    return Bucket(monkeypatch, ministack_server, f"cli-{secrets.token_hex(5)}")


@pytest.fixture
def stage(fresh: Bucket) -> Bucket:
    fresh("init")
    return fresh


def steps(stage: Stage, *arguments: str) -> dict[str, str]:
    return {step["step"]: step["status"] for step in stage("init", *arguments, "--json").json["steps"]}


def test_init_sets_a_bucket_up_once_and_says_what_it_would_do(fresh: Bucket):
    origin = ("--origin", "https://jobs.example.com")
    planned = dict.fromkeys(["bucket", "versioning", "lifecycle", "CORS", "dashboard"], "to do")

    assert steps(fresh, "--dry-run", *origin) == planned
    assert fresh.name not in [one["Name"] for one in fresh.client.list_buckets()["Buckets"]]
    assert steps(fresh, *origin) == dict.fromkeys(planned, "done")
    assert steps(fresh, *origin) == dict.fromkeys(planned, "was so")
    assert "There is nothing to do" in fresh("init", "--dry-run", *origin).err

    assert fresh.client.get_bucket_versioning(Bucket=fresh.name)["Status"] == "Enabled"
    rules = fresh.client.get_bucket_lifecycle_configuration(Bucket=fresh.name)["Rules"]
    assert {rule["Filter"]["Prefix"] for rule in rules} == {f"queue/{family}" for family in INDEXES}
    assert all(rule["Expiration"] == {"ExpiredObjectDeleteMarker": True} for rule in rules)  # BO-09
    [cors] = fresh.client.get_bucket_cors(Bucket=fresh.name)["CORSRules"]
    assert cors["AllowedOrigins"] == ["https://jobs.example.com"] and "ETag" in cors["ExposeHeaders"]  # BO-10


def test_init_can_bound_the_history_and_remembers_it(stage: Bucket):
    done = steps(stage, "--history-days", "30")
    assert done.pop("lifecycle") == "done" and set(done.values()) == {"was so"}

    ran = stage("init")

    assert "versions of jobs after 30 d" in ran.err and "done" not in ran.err
    rules = stage.client.get_bucket_lifecycle_configuration(Bucket=stage.name)["Rules"]
    [tasks] = [rule for rule in rules if rule["Filter"]["Prefix"] == "queue/tasks/"]
    assert tasks["NoncurrentVersionExpiration"]["NoncurrentDays"] == 30


def test_init_puts_the_dashboard_into_the_bucket(fresh: Bucket, monkeypatch: pytest.MonkeyPatch):
    """O-27: every file, with its type, so that a browser runs them; and where the bucket is, but nothing secret."""
    monkeypatch.setenv("MILLRACE_REDACT", "shoe size")
    assert "dashboard" not in steps(fresh, "--no-dashboard")
    assert "index.html" in fresh("init").err

    wanted = page_files()
    for name, body in wanted.items():
        found = fresh.client.get_object(Bucket=fresh.name, Key=f"queue/ui/{name}")
        there = found["Body"].read()
        assert there == body or (name == "index.html" and b"Content-Security-Policy" in there)
        if name.endswith(".js"):
            assert found["ContentType"] == "text/javascript" and found["CacheControl"] == "no-cache"
    assert {"index.html", "drivers/s3/driver.js", "drivers/s3/sign.js"} < wanted.keys()
    config = json.loads(fresh.client.get_object(Bucket=fresh.name, Key="queue/ui/config.json")["Body"].read())
    assert (config["bucket"], config["prefix"]) == (fresh.name, "queue/")
    assert {"password", "shoe size"} < set(config["redact"]) and "key" not in "".join(config.keys())

    assert steps(fresh)["dashboard"] == "was so"
    fresh.client.delete_object(Bucket=fresh.name, Key="queue/ui/config.json")  # as if the upload had been cut short
    assert steps(fresh)["dashboard"] == "done"
    assert fresh.refused("init", "--no-dashboard", "--url", "memory://").code == 2


def test_a_page_of_anybody_is_refused_before_anything_is_done(fresh: Bucket):
    assert fresh.refused("init", "--origin", "*").code == 2
    assert fresh.name not in [one["Name"] for one in fresh.client.list_buckets()["Buckets"]]


def test_a_step_that_the_credentials_may_not_take_is_told(fresh: Bucket, monkeypatch: pytest.MonkeyPatch):
    def denied(self: BucketAdmin, *arguments: Any) -> str:
        from millrace import StoreError

        raise StoreError("put_bucket_lifecycle_configuration was refused (AccessDenied)")

    monkeypatch.setattr(BucketAdmin, "expire", denied)
    ran = fresh("init", "--json", ok=False)
    assert ran.code == 1 and {one["step"]: one["status"] for one in ran.json["steps"]}["lifecycle"] == "failed"
    assert fresh("submit", "pack", "--id", "x").out == "x\n"  # it works without

    monkeypatch.setattr(BucketAdmin, "keep_versions", denied)
    other = fresh("init", "--url", f"s3://{fresh.name}-2/q", "--json", ok=False)
    assert other.code == 3 and other.json["ready"] is False


def test_the_doctor_reads_the_bucket_and_proves_its_promises(stage: Bucket):
    checks = found(stage)

    looked_at = ("bucket", "versioning", "lifecycle", "CORS", "durability", "clock", "promises", "dialect", "leftovers")
    assert {checks[name]["status"] for name in looked_at} == {"ok"}
    for promise in ("creating an object that exists is refused", "old tag is refused", "in order", "one wins"):
        assert promise in checks["promises"]["found"]
    assert "quotation marks" in checks["dialect"]["found"]


@pytest.mark.parametrize(("off", "status"), [(1_000, "ok"), (-9_000, "warn"), (90_000, "fail")])
def test_a_machine_whose_clock_is_off_is_told(stage: Bucket, monkeypatch: pytest.MonkeyPatch, off: int, status: str):
    """O-13: up to 2 s is nothing; above a minute claims are refused."""

    async def wrong(self: ObjectStore) -> int:
        return time.time_ns() // 1_000_000 + off

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "now", wrong)
        assert found(stage, "--quick")["clock"]["status"] == status


def test_the_doctor_says_what_is_not_set_up(stage: Bucket):
    stage.client.delete_bucket_lifecycle(Bucket=stage.name)
    rule = {"AllowedOrigins": ["*"], "AllowedMethods": ["PUT"], "AllowedHeaders": ["*"]}
    stage.client.put_bucket_cors(Bucket=stage.name, CORSConfiguration={"CORSRules": [rule]})

    checks = found(stage)

    assert checks["lifecycle"]["status"] == "warn" and "millrace init" in checks["lifecycle"]["do"]
    assert checks["CORS"]["status"] == "warn" and "--origin" in checks["CORS"]["do"]
    assert state_of(stage.admin).open_to_all


def test_a_bucket_that_is_not_there_or_not_reachable_fails(fresh: Bucket):
    assert "millrace init" in found(fresh)["bucket"]["do"]
    assert "endpoint" in found(fresh, "--url", "s3://jobs?endpoint=http://127.0.0.1:9")["bucket"]["do"]


def test_a_bucket_without_versions_is_refused_unless_that_is_allowed(
    fresh: Bucket, monkeypatch: pytest.MonkeyPatch, ministack_server: S3Server
):
    """O-38: the override skips the check, and then there is no history from versions (BO-19, BO-23)."""
    fresh.admin.create()
    assert "keeps versions" in fresh.refused("list").err
    assert found(fresh)["versioning"]["status"] == "fail"

    loose = Bucket(monkeypatch, ministack_server, fresh.name, versioned=False)
    assert steps(loose)["versioning"] == "was so"
    loose("submit", "pack", "--id", "x")
    assert found(loose)["versioning"]["status"] == "warn"
    ran = loose.refused("history", "x", "--versions")
    assert ran.code == 1 and "keeps no versions" in ran.err
    assert [one["kind"] for one in loose("history", "x", "--json").json] == ["enqueued"]


def test_history_from_object_versions(stage: Bucket):
    """O-23: every state that a job was in, in full, from the bucket's own versions."""
    stage("submit", "send_email", '{"to": "ada"}', "--id", "mail", "--group", "g", *SHOP)
    stage("submit", "send_email", '{"to": "eve"}', "--id", "next", "--group", "g", *SHOP)
    stage("worker", "--burst", "--name", "w", *SHOP)

    records = stage("history", "next", "--versions", "--json").json

    assert [one["job"]["state"] for one in records][-2:] == ["running", "completed"]
    assert [one["rev"] for one in records] == list(range(1, len(records) + 1))
    assert records[-1]["job"]["result"] == "sent to eve"
    versions = stage.client.list_object_versions(Bucket=stage.name, Prefix="queue/tasks/")["Versions"]
    assert {one["version"] for one in records} <= {version["VersionId"] for version in versions}
    [change] = stage("history", "next", "--versions", "--diff", "--from", str(records[-2]["rev"]), "--json").json
    assert {"fact": "result", "before": None, "after": "sent to eve"} in change["changes"]


def test_shards_and_lists_of_one(stage: Bucket):
    jobs = [f"{digit * 8}-1111-4111-8111-{digit * 12}" for digit in "05af"]
    for job in jobs:
        stage("submit", "pack", "--id", job, *SHOP)

    stage("worker", "--burst", "--shards", "0,5", "--id", "low", "--no-monitor", *SHOP)

    states = {row["id"]: row["state"] for row in stage("list").rows}
    assert [states[job] for job in jobs] == ["completed", "completed", "ready", "ready"]
    assert [row["id"] for row in stage("list", "--shard", "a", "--status", "ready").rows] == [jobs[2]]


async def test_what_may_not_be_read_is_not_a_failure(stage: Bucket, monkeypatch: pytest.MonkeyPatch):
    from millrace import StoreError

    def denied(self: BucketAdmin, operation: str, name: str = "") -> Any:
        raise StoreError(f"{operation} was refused (AccessDenied)")

    monkeypatch.setattr(BucketAdmin, "rules", denied)
    state = await asyncio.to_thread(state_of, stage.admin)

    assert state.expiring is None and state.origins is None and set(state.unread) == {"lifecycle", "CORS"}


@pytest.mark.timeout(300)
def test_the_recipe_for_a_server_of_ones_own_works_as_it_is_written(tmp_path: Path):
    """O-32: line by line, but for the port, and for what is installed already."""
    page = (Path(__file__).parents[2] / "docs/howto/object-stores.md").read_text()
    recipe = page.partition("### Try it with a local server")[2].partition("```sh\n")[2].partition("```")[0]
    install, start, *rest = recipe.strip().splitlines()
    port = str(free_port())
    assert install == "pip install ministack" and start.endswith("ministack &") and "BIND_HOST=127.0.0.1" in start
    script = "\n".join(
        [
            start,
            "server=$!",
            "trap 'kill $server' EXIT",
            f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done",
            *rest,
        ]
    ).replace("9000", port)
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=tmp_path,
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    [job] = [line for line in done.stdout.splitlines() if "send_email" in line and "ready" in line]
    assert job
