"""What somebody finds who opens the bucket with boto3 and nothing of ours: the layout that keys.py documents.

Everything is read by `programs/read_bucket.py`, in a process that has not loaded this package.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.store.object import keys
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_burial, a_claim, a_retry_change, a_spec, a_worker
from millrace.testing.conformance.scenes import control, put, take
from tests.object.conftest import Bucket
from tests.object.stores import Make, in_bucket

READER = Path(__file__).parent / "programs/read_bucket.py"
LARGE = {"text": "x" * 5_000}


@pytest.fixture(scope="module")
def found(bucket: Bucket) -> dict[str, Any]:
    """A small queue with one job of each kind, and what the reader says of it."""
    prefix = secrets.token_hex(8)
    asyncio.run(play_in(in_bucket(bucket, prefix, ObjectOptions(look_every=0, inline_limit=1_000))))
    address = bucket.server.address(prefix)
    keys = {"AWS_ACCESS_KEY_ID": address.access_key or "", "AWS_SECRET_ACCESS_KEY": address.secret_key or ""}
    done = subprocess.run(
        [sys.executable, str(READER), address.endpoint or "", address.bucket, address.prefix],
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def play_in(make: Make) -> None:
    store = make(None)
    await store.connect()
    try:
        await play(store)
    finally:
        await store.close()


async def play(store: ObjectStore) -> None:
    await put(store, id="paid", task="charge", payload=b'{"order":7}')
    first = await take(store, worker="w-1")
    await store.settle([(first.lease, a_retry_change(0))])
    await store.settle([((await take(store, worker="w-2")).lease, Change.completed(b'{"paid":true}'))])
    await put(store, id="broken")
    await store.settle([((await take(store)).lease, a_burial())])
    await put(store, id="held", group="customer 7", queue="mail")
    await put(store, id="next", group="customer 7", queue="mail")
    await store.claim(a_claim(queue="mail", worker="w-1"))
    await put(store, id="child", after=("held",))
    await put(store, id="large", payload=json.dumps(LARGE).encode(), delay=600)
    await store.enqueue([a_spec(id=f"many-{n}", delay=600, queue="later") for n in range(8)])
    await control(store, queue="later", paused=True)
    await store.beat(a_worker("w-1", queues=("mail",)), 60_000)


def test_the_layout_is_the_documented_one(found):
    """O-04 … O-07: and nothing lies anywhere else."""
    below = found["below"]

    documented = {line.split("/")[0] for line in (keys.__doc__ or "").splitlines() if "/" in line.split(" ")[0]}
    assert {"tasks", "ready", "held", "leases", "done", "feed", "control", "workers", "data"} <= set(below)
    assert set(below) <= documented | {
        "due",
        "upkeep",
        "lines",
        "keys",
        "control",
        "workers",
        "writers",
        "feed",
        "batches",
        "data",
    }
    assert sorted(below["tasks"]) == sorted(job["key"] for job in found["jobs"].values())
    assert len(found["jobs"]) == 6 + 8
    assert all(key.split("/")[1] in "0123456789abcdef" and key.endswith(".json") for key in below["tasks"])


def test_each_job_stands_in_one_index_and_names_it(found):
    """O-07: projections of the job objects, which name them."""
    states = {name: (job["state"], job["filed"].split("/")[0]) for name, job in found["jobs"].items()}
    filed = [key for family in ("ready", "held", "leases", "done") for key in found["below"][family]]

    assert sorted(filed) == sorted(job["filed"] for job in found["jobs"].values())
    assert states == {
        "paid": ("completed", "done"),
        "broken": ("dead", "done"),
        "held": ("running", "leases"),
        "next": ("waiting", "held"),
        "child": ("waiting", "held"),
        "large": ("waiting", "ready"),
        **{f"many-{n}": ("waiting", "ready") for n in range(8)},
    }


def test_a_job_tells_what_it_was_asked_and_what_came_of_it(found):
    """O-09: in plain JSON, also where it is large (BO-20)."""
    paid, large = found["jobs"]["paid"], found["jobs"]["large"]

    assert (paid["task"], paid["input"], paid["output"], paid["attempts"]) == (
        "charge",
        {"order": 7},
        {"paid": True},
        2,
    )
    assert paid["events"] == ["enqueued", "claimed", "retried", "claimed", "completed"]
    assert large["input"] == LARGE
    [data] = found["below"]["data"]
    assert data.startswith(large["key"].removesuffix(".json").replace("tasks/", "data/"))
    assert found["jobs"]["child"]["waits_for"] == ["held"]
    assert found["jobs"]["held"]["worker"] == "w-1"


def test_the_feed_workers_and_settings_are_there_to_read(found):
    ours = [event["kind"] for event in found["feed"] if event["job"] == "paid"]

    assert ours == found["jobs"]["paid"]["events"]  # in the order of the keys
    assert len(found["feed"]) == sum(len(job["events"]) for job in found["jobs"].values())
    assert found["control"]["control/queues/later.json"]["settings"]["paused"] is True
    assert [worker["info"]["id"] for worker in found["workers"]] == ["w-1"]


def test_the_versions_of_a_job_are_its_states_one_by_one(bucket, found):
    """O-23: the audit trail that the bucket keeps by itself."""
    if not bucket.findings.versioned:
        pytest.skip("this bucket keeps no versions")

    assert found["jobs"]["paid"]["versions"] == ["waiting", "running", "waiting", "running", "completed"]
    assert found["jobs"]["broken"]["versions"] == ["waiting", "running", "dead"]
