"""Looking into a bucket from a browser, with no server: the answers are those of the HTTP API (O-27…29)."""

from __future__ import annotations

from typing import Any

from millrace import App
from millrace.domain.job import Job
from millrace.runtime.causes import Causes, cause_plain
from millrace.runtime.fingerprint import fingerprint
from millrace.runtime.redaction import Redaction
from millrace.runtime.shape import counts_plain, event_plain
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec, a_worker
from millrace.web.house import House
from millrace.web.shown import listed, whole
from tests.web.browser.s3.stage import Site, completed, died


class ShownHere:
    """What the server would need to show a job."""

    redaction = Redaction()
    app = App("memory://")


def same(job: Job, now: int, shape: Any = whole) -> dict[str, Any]:
    plain: dict[str, Any] = shape(job, now, ShownHere)
    return {**plain, "seq": str(plain["seq"])}  # numbers of 61 bits are text in a browser


async def jobs_of_all_states(store: ObjectStore) -> None:
    await completed(store, a_spec(id="done", queue="mail", payload=b'{"n":1}'))
    await died(store, a_spec(id="dead-1", queue="mail", payload=b'{"password":"hunter22"}'), "wrong password hunter22")
    await died(store, a_spec(id="dead-2", queue="mail"), "host 17 is away")
    await died(store, a_spec(id="Dead 3 / ünïcode?", queue="mail", headers={"trace": "x"}), "host 18 is away")
    await completed(store, a_spec(id="hidden", queue="mail"))
    await store.archive(["hidden"])
    await store.enqueue([a_spec(id="running", task="run", queue="mail")])
    assert await store.claim(a_claim(queue="mail", worker="w-1", tasks=["run"], lease=600))
    await store.enqueue([a_spec(id=f"batch-{n}", queue="other", priority=n) for n in range(8)])
    await store.enqueue([a_spec(id="later", queue="other", delay=3600), a_spec(id="parent"), a_spec(id="child", after=("parent",))])
    await store.enqueue([a_spec(id=f"lined-{n}", queue="other", group="g") for n in range(3)])
    await store.enqueue([a_spec(id="gone", queue="mail")])
    await store.cancel(["gone"])


ALL = {"done", "dead-1", "dead-2", "Dead 3 / ünïcode?", "running", "later", "parent", "child", "gone"} | {
    *(f"batch-{n}" for n in range(8)),
    *(f"lined-{n}" for n in range(3)),
}


async def test_jobs_are_listed_counted_and_shown_as_the_server_would(site: Site, opened: Any):
    async with site.store() as store:
        await jobs_of_all_states(store)
        page = opened()
        now = await store.now()

        # lists: by state, queue, task, group; newest first; page by page; and in shards
        everything = page.get("/api/jobs", limit=500)
        assert {job["id"] for job in everything["jobs"]} == ALL and everything["cursor"] is None
        numbers = [int(job["seq"]) for job in everything["jobs"]]
        assert numbers == sorted(numbers, reverse=True)
        by_id = {job.id: job for job in await store.get(sorted(ALL)) if job is not None}
        for job in everything["jobs"]:
            assert job == same(by_id[job["id"]], now, listed), job["id"]
        paged: list[str] = []
        cursor = None
        while True:
            some = page.get("/api/jobs", limit=4, oldest=True, **({"cursor": cursor} if cursor else {}))
            paged += [job["id"] for job in some["jobs"]]
            cursor = some["cursor"]
            if cursor is None:
                break
        assert paged == [job["id"] for job in reversed(everything["jobs"])]
        for query, wanted in (
            ({"status": "dead"}, {"dead-1", "dead-2", "Dead 3 / ünïcode?"}),
            ({"status": "failed", "queue": "other"}, set()),
            ({"status": "running"}, {"running"}),
            ({"status": "scheduled"}, {"later"}),
            ({"status": "blocked"}, {"child"}),
            ({"status": "cancelled"}, {"gone"}),
            ({"status": "archived"}, {"hidden"}),
            ({"status": "ready", "queue": "other"}, {*(f"batch-{n}" for n in range(8)), *(f"lined-{n}" for n in range(3))}),
            ({"group": "g"}, {f"lined-{n}" for n in range(3)}),
            ({"task": "run"}, {"running"}),
            ({"since": "1h", "queue": "mail", "status": "completed", "all": True}, {"done", "hidden"}),
            ({"until": "1h"}, set()),
            ({"id": ["done", "nobody", "Dead 3 / ünïcode?"]}, {"done", "Dead 3 / ünïcode?"}),
        ):
            assert {job["id"] for job in page.get("/api/jobs", **query)["jobs"]} == wanted, query
        shards = page.run("return driver.shards")
        assert shards == [f"{n:x}" for n in range(16)]
        in_shards = [{job["id"] for job in page.get("/api/jobs", shard=shard)["jobs"]} for shard in shards]
        assert set().union(*in_shards) == ALL and sum(map(len, in_shards)) == len(ALL)
        assert page.get("/api/jobs", shard="zz")["refused"]["status"] == 400

        # one job, and its history
        for job_id in ("done", "dead-1", "Dead 3 / ünïcode?", "running", "child", "hidden"):
            quoted = page.run(f"return encodeURIComponent({job_id!r})")
            [job] = await store.get([job_id])
            assert job is not None
            shown = page.get(f"/api/jobs/{quoted}")
            assert shown.pop("rev") > 0 and shown.pop("missing") == []
            assert shown == same(job, now)
            steps = page.get(f"/api/jobs/{quoted}/history")["steps"]
            told = [{**event_plain(event), "seq": str(event.seq)} for event in await store.history(job_id)]
            if job_id != "dead-1":
                assert [step["event"] for step in steps] == told
        assert "hunter22" not in str(page.get("/api/jobs/dead-1")) + str(page.get("/api/jobs/dead-1/history"))
        assert page.get("/api/jobs/nobody")["refused"]["status"] == 404

        # queues
        counts = [counts_plain(one) for one in await store.count()]
        seen = page.get("/api/queues")["queues"]
        for one in (*counts, *seen):
            one.pop("oldest_ready")
        assert seen == counts
        overview = page.get("/api/overview")
        assert (overview["dead"], overview["blocked"], overview["queues"]) == (3, 1, 3)

        # dead letters, by the same fingerprints
        causes = Causes()
        for job in by_id.values():
            if job.state == "dead":
                causes.add(job)
        found = page.get("/api/dead")
        assert (found["total"], found["complete"]) == (3, True)
        assert [one["fingerprint"] for one in found["causes"]] == [one.fingerprint for one in causes.ordered(9)]
        assert found["causes"][0]["count"] == 2 and found["causes"][0]["error"] == "OSError: host … is away"
        assert found["causes"][1]["error"] == "OSError: wrong password [redacted]"
        first = cause_plain(causes.ordered(9)[0])
        assert {**found["causes"][0]} == first
        mark = fingerprint(by_id["dead-2"])
        assert {job["id"] for job in page.get("/api/jobs", error=mark)["jobs"]} == {"dead-2", "Dead 3 / ünïcode?"}


async def test_workers_and_what_they_hold(site: Site, opened: Any):
    async with site.store() as store:
        await store.beat(a_worker("w-1", queues=("mail",), tasks=("run",), slots=3, completed=7), 60_000)
        await store.beat(a_worker("W 2"), 1)
        await store.enqueue([a_spec(id="held", task="run", queue="mail"), a_spec(id="next", queue="mail")])
        await store.claim(a_claim(queue="mail", worker="w-1", tasks=["run"]))
        page = opened()

        alive, stale = page.get("/api/workers")["workers"]

        assert (alive["id"], alive["alive"], alive["running"], alive["completed"]) == ("w-1", True, ["held"], 7)
        assert (stale["id"], stale["alive"], stale["running"]) == ("W 2", False, [])
        [reason] = page.get("/api/jobs/next/why")["reasons"]
        assert reason["code"] == "task_unknown" and "knows task work" in reason["text"]
        assert page.get("/api/jobs/held/why")["reasons"] == []


def test_the_server_would_hide_the_same(site: Site):
    assert House.__dataclass_fields__.keys() >= {"redaction", "app"}  # what stands in for it above
