"""Looking into a bucket from a browser, with no server: the answers are those of the HTTP API (O-27…29)."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from millrace import App
from millrace.app.telemetry.redaction import COUNTS, USUAL, JobRedactor, Redaction, Secrets
from millrace.domain.change import Change
from millrace.domain.job import Job, State
from millrace.domain.outcome import Failure
from millrace.domain.schedule import Move, Schedule
from millrace.domain.settings import QueueSettings
from millrace.store.object.keys import Layout, word
from millrace.store.object.store import ObjectStore
from millrace.store.object.versions import Versions
from millrace.testing.builders import a_claim, a_spec, a_worker
from millrace.views.causes import Causes, cause_view
from millrace.views.fingerprint import cause, fingerprint
from millrace.views.job_view import JobView, digits, job_summary, job_view
from millrace.views.queue_view import PoolView, QueueView, counts_view
from millrace.views.timeline import change_view, changes, event_view, facts_after
from millrace.views.worker_view import ScheduleView
from millrace.web import responses
from tests.object.conftest import prepared
from tests.servers.ministack import S3Server
from tests.spark.report.browser import Browser
from tests.web.browser.s3.stage import PATIENCE, Page, Site, assert_sound, completed, died

RULE = json.loads((Path(__file__).parents[2] / "redaction.json").read_text(encoding="utf-8"))


def same(job: Job, now: int, *, summary: bool = False) -> dict[str, Any]:
    """The job as the server would show it."""
    redactor = JobRedactor(job, Redaction(), App("memory://").serdes)
    view = job_summary(job, now, redactor) if summary else job_view(job, now, QueueSettings(), redactor)
    return plain(view)


def plain(view: msgspec.Struct) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(view)
    return made


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
    await store.enqueue(
        [a_spec(id="later", queue="other", delay=3600), a_spec(id="parent"), a_spec(id="child", after=("parent",))]
    )
    await store.enqueue([a_spec(id=f"lined-{n}", queue="other", group="g") for n in range(3)])
    await store.enqueue([a_spec(id="gone", queue="mail")])
    await store.cancel(["gone"])


ALL = {"done", "dead-1", "dead-2", "Dead 3 / ünïcode?", "running", "later", "parent", "child", "gone"} | {
    *(f"batch-{n}" for n in range(8)),
    *(f"lined-{n}" for n in range(3)),
}


async def test_a_list_by_last_change_begins_with_what_changed_last(site: Site, opened: Any):
    """O-27: to the second, as a listing of the bucket tells it."""
    async with site.store() as store:
        for number in range(4):
            await store.enqueue([a_spec(id=f"job-{number}")])
        await asyncio.sleep(1.1)
        await store.cancel(["job-1"])
        page = opened()

        listed_first = page.get("/api/jobs", sort="changed", limit=2)
        rest = page.get("/api/jobs", sort="changed", limit=9, cursor=listed_first["cursor"])
        ids = [job["id"] for job in listed_first["jobs"] + rest["jobs"]]
        assert ids == ["job-1", "job-3", "job-2", "job-0"]
        assert page.get("/api/jobs", sort="changed", oldest=True)["refused"]["status"] == 400
        assert page.get("/api/jobs", sort="size")["refused"]["status"] == 400


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
            assert job == same(by_id[job["id"]], now, summary=True), job["id"]
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
            (
                {"status": "ready", "queue": "other"},
                {*(f"batch-{n}" for n in range(8)), *(f"lined-{n}" for n in range(3))},
            ),
            ({"group": "g"}, {f"lined-{n}" for n in range(3)}),
            ({"task": "run"}, {"running"}),
            ({"since": "1h", "queue": "mail", "status": "completed", "all": True}, {"done", "hidden"}),
            ({"until": "1h"}, set()),
            ({"status": "blocked", "after": "parent"}, {"child"}),
            ({"status": "blocked", "after": "parent", "task": "other"}, set()),
            ({"after": "parent"}, {"child"}),
            ({"status": "blocked", "after": "Nobody's"}, set()),
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
            told = [plain(event_view(event)) for event in await store.history(job_id)]
            if job_id != "dead-1":
                assert [step["event"] for step in steps] == told
        assert "hunter22" not in str(page.get("/api/jobs/dead-1")) + str(page.get("/api/jobs/dead-1/history"))
        assert page.get("/api/jobs/nobody")["refused"]["status"] == 404

        # queues
        counts = [plain(counts_view(one)) for one in await store.count()]
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
        first = plain(cause_view(causes.ordered(9)[0]))
        assert {**found["causes"][0]} == first
        mark = fingerprint(by_id["dead-2"])
        assert {job["id"] for job in page.get("/api/jobs", error=mark)["jobs"]} == {"dead-2", "Dead 3 / ünïcode?"}


async def test_of_more_finished_jobs_than_are_listed_the_newest_are_found(site: Site, opened: Any):
    """A bucket lists from the oldest on. What is looked for is what ended last; and it is said that there is more."""
    async with site.store() as store:
        for number in range(9):
            await completed(store, a_spec(id=f"new-{number}", queue="mail"))
        layout = Layout()
        [pattern] = await store.get(["new-0"])
        assert pattern is not None
        old = [msgspec.structs.replace(pattern, finished_at=60_000 * n + 1, seq=n + 1) for n in range(30)]
        await store.blobs.put_many({layout.state_key(job, 1, "abc123"): b"" for job in old})
        page = opened()

        found = page.run(
            f"const {{Store}} = {page.module('store.js')}; const {{Index}} = {page.module('index_keys.js')};"
            f"const {{find, readQuery}} = {page.module('search.js')};"
            f"const keys = {json.dumps(site.keys)};"
            f"const store = await Store.open({json.dumps(site.config)}, keys);"
            "store.index = new Index(store.bucket, store.layout, {pages: 2, size: 8, enough: 5});"
            "const page = await find(store, readQuery({limit: 9}, store));"
            "return {ids: page.jobs.map((job) => job.id), complete: page.complete, requests: store.bucket.requests}"
        )

        assert found["ids"] == [f"new-{number}" for number in reversed(range(9))] and found["complete"] is False
        assert found["requests"]["GET"] < 40


async def test_what_was_read_is_not_read_again_until_it_changes(site: Site, opened: Any):  # O-39
    async with site.store() as store:
        for number in range(5):
            await died(store, a_spec(id=f"j{number}"))
        page = opened()
        page.get("/api/jobs")

        for _ in range(3):
            before = page.run("return driver.requests.GET")
            page.run("return new Promise((go) => setTimeout(go, 400))")
            assert len(page.get("/api/jobs")["jobs"]) == 5
            assert page.run("return driver.requests.GET") - before <= 4  # ready/, held/, leases/, done/: no job
        await store.archive(["j3"])
        until = time.monotonic() + PATIENCE
        while {job["id"] for job in page.get("/api/jobs")["jobs"]} != {"j0", "j1", "j2", "j4"}:
            assert time.monotonic() < until


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
        assert reason["code"] == "task_unknown" and "has task work" in reason["text"]
        assert page.get("/api/jobs/held/why")["reasons"] == []


async def test_a_tasks_limit_is_compared_with_what_runs_of_the_task(site: Site, opened: Any):
    async with site.store() as store:
        await store.control("task", "limited", {"max_running": 1})
        await store.beat(a_worker("w", queues=("mail",), tasks=("limited", "other"), slots=9), 60_000)
        await store.enqueue([a_spec(task="other", queue="mail")])
        await store.claim(a_claim(queue="mail", worker="w"))
        await store.enqueue([a_spec(id="held", task="limited", queue="mail")])
        page = opened()
        assert [reason["code"] for reason in page.get("/api/jobs/held/why")["reasons"]] == ["next"]

        await store.enqueue([a_spec(task="limited", queue="elsewhere")])
        await store.claim(a_claim(queue="elsewhere", worker="w"))
        page = opened()
        assert [reason["code"] for reason in page.get("/api/jobs/held/why")["reasons"]] == ["task_limit"]


async def test_any_two_versions_of_a_record_can_be_compared(browser: Browser, ministack_server: S3Server):
    """O-23, O-28: each version is the whole record as it was, also where it was written in two steps.

    Always on a server of our own: not every other keeps versions that can be swapped (BO-23).
    """
    site = Site(prepared(ministack_server))
    url = site.upload()
    async with site.store() as store:
        await store.control("queue", "q", {"max_running": 5})  # so that every step is a transaction
        await completed(store, a_spec(id="a", queue="q", payload=b'{"n":[1,2]}'), result=b'{"sum":3}')
        page = Page.of_the_bucket(browser, site, url)
        assert page.post("/api/jobs/a/replay")["done"]
        wanted = [record async for record in Versions(store).newest_first("a")]

        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            some = page.get("/api/jobs/a/versions", limit=3, **({"cursor": cursor} if cursor else {}))
            found += some["versions"]
            cursor = some["cursor"]
            if cursor is None:
                break

        told = [(one["version"], one["rev"], one["repeats"], one["undecided"], one["deleted"]) for one in found]
        assert told == [(one.version, one.rev, one.repeats, one.undecided, one.deleted) for one in wanted]
        steps = [one for one in reversed(found) if not one["repeats"]]
        assert [one["state"] for one in steps] == ["ready", "running", "completed", "ready"]
        compared = page.get("/api/jobs/a/versions/diff", **{"from": steps[1]["version"], "to": steps[2]["version"]})
        changes = {one["fact"]: (one["before"], one["after"]) for one in compared["changes"]}
        assert changes["result"] == (None, {"sum": 3}) and changes["state"] == ("running", "completed")
        assert "payload" not in changes and compared["to"]["job"]["payload"] == {"n": [1, 2]}
        assert (
            page.get("/api/jobs/a/versions/diff", **{"from": "x", "to": steps[0]["version"]})["refused"]["status"]
            == 404
        )

        # the same between any two events of the history, as the screens ask for it
        diff = page.get("/api/jobs/a/history/diff", **{"from": "2", "to": "3"})
        facts = {one["fact"]: (one["before"], one["after"]) for one in diff["changes"]}
        assert (diff["from"]["kind"], diff["to"]["kind"]) == ("claimed", "completed")
        assert facts["result"] == (None, {"sum": 3}) and facts["state"] == ("running", "completed")
        kinds = [step["event"]["kind"] for step in page.get("/api/jobs/a/history")["steps"]]
        assert kinds == ["enqueued", "claimed", "completed", "replayed"]


async def test_what_each_step_changed_is_told_as_the_server_tells_it(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="a", delay=0))
        await store.archive(["a"])
        await store.replay(["a"])
        [job] = await store.claim(a_claim())
        await store.settle([(job.lease, Change.retry(Failure("E", "m"), delay=60_000))])
        events = await store.history("a")
        facts = facts_after(events)
        page = opened()

        steps = page.get("/api/jobs/a/history")["steps"]

        wanted = [
            [plain(change_view(one)) for one in changes(*pair)] for pair in zip([None, *facts], facts, strict=False)
        ]
        assert [step["changes"] for step in steps] == wanted


async def test_every_answer_has_the_shape_that_the_api_documents(site: Site, opened: Any):
    plan = Schedule("nightly", "0 3 * * *", "UTC", "clean", "mail", "skip", 0, "d" * 8, 1_000)
    async with site.store() as store:
        await jobs_of_all_states(store)
        await store.control("queue", "pool", {"lanes": 2, "paused_lanes": (1,)})
        await store.enqueue([a_spec(id=f"laned-{n}", queue="pool") for n in range(3)])
        await store.claim(a_claim(queue="pool"))
        await store.beat(a_worker("w-1"), 60_000)
        assert [moved.status for moved in await store.advance([Move("nightly", 0, plan)])] == ["ok"]
        lanes = await store.lanes("pool")
        page = opened()
        shapes = {
            "/api/overview": responses.Overview,
            "/api/jobs": responses.JobList,
            "/api/jobs/running": JobView,
            "/api/jobs/dead-1/history": responses.JobHistory,
            "/api/jobs/dead-1/history/diff": responses.HistoryDifference,
            "/api/jobs/child/why": responses.WaitReasons,
            "/api/dead": responses.CauseList,
            "/api/queues": responses.QueueList,
            "/api/queues/pool": QueueView,
            "/api/pools": responses.PoolList,
            "/api/pools/pool": PoolView,
            "/api/workers": responses.WorkerList,
            "/api/schedules": responses.ScheduleList,
            "/api/schedules/nightly": ScheduleView,
            "/api/redaction": responses.RedactionRule,
            "/api/me": responses.CallerInfo,
            "/health": responses.Health,
        }

        answers = {path: msgspec.convert(page.get(path), shape, strict=False) for path, shape in shapes.items()}

        shown = answers["/api/queues/pool"].lanes
        told = [(one.waiting, one.running, one.holder, one.paused) for one in shown]
        assert told == [(one.waiting, one.running, digits(one.holder), one.paused) for one in lanes]
        assert [lane.state for lane in answers["/api/pools/pool"].lanes].count("paused") == 1
        assert answers["/api/schedules/nightly"].expression == "0 3 * * *"
        assert answers["/api/jobs/child/why"].reasons[0].code == "blocked"
        for path in ("/api/queues/nobody", "/api/pools/mail", "/api/schedules/x", "/api/nothing"):
            assert page.get(path)["refused"]["status"] == 404


HOSTILE: dict[str, Any] = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "__proto__": {"polluted": True},
    "constructor": "x",
    "control": "a\x00\x07\x1b[31m\x7f",
    "rtl": "abc\u202edef\u2066",
    "lines": "a\u2028b\r\nc",
    "lone": "\U0001f600",
    "deep": [[[[[[[[[[]]]]]]]]]],
    "large": "x" * 300_000,
    "": None,
    "password": "hunter22",
}


async def test_hostile_payloads_come_through_as_data(site: Site, opened: Any):
    ids = ["<img src=x onerror=alert(1)>", "a/../b", "%2e%2e", "ü\u202e", "x" * 200]
    async with site.store() as store:
        for job_id in ids:
            spec = a_spec(
                id=job_id, queue="Mail.Out" if job_id == ids[0] else "q", payload=msgspec.json.encode(HOSTILE)
            )
            await died(store, spec, "<b>boom</b> \u202e 'hunter22'")
        await died(store, a_spec(id="odd", serde="msgpack", payload=b"\x81\xa1n\x01"))
        await died(store, a_spec(id="half", serde="json/msgpack", payload=b'{"n":1}'))  # its result would be the latter
        page = opened()

        assert {job["id"] for job in page.get("/api/jobs")["jobs"]} == {*ids, "odd", "half"}
        assert page.get("/api/jobs/half")["payload"] == {"n": 1}
        for job_id in ids:
            shown = page.get("/api/jobs/" + page.run(f"return encodeURIComponent({json.dumps(job_id)})"))
            payload = shown["payload"]
            assert {**payload, "__proto__": 0} == {**HOSTILE, "password": "[redacted]", "__proto__": 0}
            assert shown["error"]["message"] == "<b>boom</b> \u202e '[redacted]'"
        assert page.run("return ({}).polluted ?? null") is None
        assert page.get("/api/jobs/odd")["payload"] == "[redacted]"  # nobody can tell what is in it
        assert page.post("/api/jobs/odd/replay")["done"]
        [odd] = await store.get(["odd"])
        assert odd is not None and odd.payload == b"\x81\xa1n\x01"
        assert page.post("/api/jobs/" + page.run(f"return encodeURIComponent({json.dumps(ids[0])})") + "/archive")[
            "done"
        ]
        [evil] = await store.get([ids[0]])
        assert evil is not None and msgspec.json.decode(evil.payload) == HOSTILE
    await assert_sound(site)


CAUSES = [
    "no route to host 10.0.0.17:5432",
    "user 'ada' has no \"right\" to 0xDEADBEEF",
    "  job 8f14e45f-ceea-467f-a8c3-000000000000 lost\nsecond line",
    "commit deadbeef01 and cafebabe and édeadbeef01 and _deadbeef01_",
    "\u0663\u0664 items: \u00bd, \x1f",
    "x" * 499 + "\U0001f600\U0001f600" + "1",
    ": : odd : ",
    "",
]


async def test_fingerprints_are_those_of_the_command_line(site: Site, opened: Any):
    async with site.store():
        page = opened()
    jobs = [
        Job(
            a_spec(task=f"t{n}"),
            n,
            1,
            State.DEAD,
            0,
            0,
            error=Failure("Kind", message),
            reason=None if n % 2 else "why",
        )
        for n, message in enumerate(CAUSES)
    ]
    jobs.append(Job(a_spec(task="none"), 9, 1, State.DEAD, 0, 0))
    plain = [
        {
            "task": job.task,
            "reason": job.reason,
            "error": None if job.error is None else {"type": job.error.type, "message": job.error.message},
        }
        for job in jobs
    ]

    marks = page.run(
        f"const {{fingerprint, cause}} = {page.module('fingerprint.js')};"
        f"return Promise.all({json.dumps(plain)}.map(async (job) => [await fingerprint(job), cause(job)]))"
    )

    assert marks == [[fingerprint(job), cause(job)] for job in jobs]


def test_names_are_those_of_the_store(site: Site, opened: Any, modules: str, browser: Any):
    layouts = [0, 1, 2]
    ids = [
        "plain-1",
        "8f14e45f-ceea-467f-a8c3-000000000000",
        "Capital",
        "ü/x",
        "x" * 65,
        "8f14e45fceea467fa8c3000000000000",
    ]
    names = ["default", "Mail.Out", "a_b-c", "q" * 49, "ü", "x y"]
    asyncio.run(made(site))
    page = opened()

    found = page.run(
        f"const {{Layout, nameOf, word}} = {page.module('layout.js')};"
        f"return {{keys: await Promise.all({json.dumps(layouts)}.map((width) => Promise.all({json.dumps(ids)}"
        ".map((id) => new Layout(width).job(id))))),"
        f" words: await Promise.all({json.dumps(names)}.map(word))}}"
    )

    assert found["keys"] == [[Layout(width).job(job_id) for job_id in ids] for width in layouts]
    assert found["words"] == [word(name) for name in names]


async def made(site: Site) -> None:
    async with site.store():
        pass


def test_the_rule_of_what_is_hidden_is_the_servers(site: Site, opened: Any):
    asyncio.run(made(site))
    page = opened()
    names = [*(name for name, _ in RULE["names"]), "userPassword", "accessToken2", "monkey", "spinning", "SSN9"]

    usual, counts, hidden = page.run(
        f"const {{Redaction}} = {page.module('redaction.js')}; const {{COUNTS, PHRASES}} = {page.module('tables.js')};"
        f"return [PHRASES, COUNTS, {json.dumps(names)}.map((name) => new Redaction().hides(name))]"
    )

    assert (tuple(usual), tuple(counts)) == (USUAL, COUNTS)
    assert hidden == [Redaction().hides(name) for name in names]


def test_secrets_are_taken_out_of_errors_by_the_rule_of_the_server(site: Site, opened: Any):
    asyncio.run(made(site))
    odd = 'it\'s \\ "odd"\x00\x7f\x85\u200b\ufffe 😀'
    quoted = [odd, repr(odd), repr(f'"{odd}'), json.dumps(odd), quote(odd), quote_plus(odd), f"{odd[:9]}\n… (cut)"]
    cases = [*RULE["texts"], *({"secrets": [odd], "text": f"<{text}>"} for text in quoted)]

    shown = opened().run(
        f"const {{Secrets}} = {opened().module('secrets.js')};"
        f"return {json.dumps(cases)}.map((one) => new Secrets(one.secrets).without(one.text))"
    )

    assert shown == [Secrets(one["secrets"]).without(one["text"]) for one in cases]
    assert [one for one in shown if "odd" in one] == []
    many = Secrets(map(str, range(1_000, 1_201))).failure(Failure("E", "1000", "1001"))
    assert opened().run(
        f"const {{Secrets}} = {opened().module('secrets.js')};"
        "const many = new Secrets(Array.from({length: 201}, (_, n) => String(1000 + n)));"
        "return many.failure({type: 'E', message: '1000', traceback: '1001'})"
    ) == {"type": "E", "message": many.message, "traceback": ""}
