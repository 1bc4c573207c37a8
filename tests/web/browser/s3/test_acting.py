"""Replay and archive from a browser, by conditional PUTs alone: afterwards the store is as if it had done it itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.store.object.engine.objects import Objects, Pending, raw_value, sealed, value_bytes
from millrace.store.object.engine.objects import opened as envelope_of
from millrace.store.object.engine.values import WriterValue, decode
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.conformance.transfer_scenes import SOURCE, close
from tests.web.browser.s3.stage import Page, Site, assert_sound, completed, died

EXACT = b'{"big": 12345678901234567890, "f": 1.0, "e": 1e400, "esc": "\\u003cb\\u003e \\"\\\\", "nested": [[{}], []]}'


async def run_it(site: Site, job_id: str, queue: str = "default") -> None:
    """Somebody else's worker takes it and completes it."""
    async with site.store() as store:
        [job] = await store.claim(a_claim(queue=queue, limit=1))
        assert job.id == job_id
        await store.settle([(job.lease, Change.completed(b'"again"'))])


async def test_a_dead_job_is_replayed_and_runs(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="a", payload=EXACT, expires=3600, priority=3))
        before = await store.history("a")
        page = opened()

        assert page.post("/api/jobs/a/replay") == {"id": "a", "answer": "replayed", "done": True}

        [job] = await store.get(["a"])
        assert job is not None and (job.state, job.failures, job.replays, job.open) == (State.WAITING, 0, 1, True)
        assert job.error is None and job.reason is None and job.finished_at is None
        assert job.payload == EXACT  # byte by byte, numbers of any size too
        assert job.expires_at == job.available_at + 3_600_000
        [*_, event] = await store.history("a")
        assert (event.kind, event.n, event.seq) == (Kind.REPLAYED, len(before) + 1, job.seq)
        feed = await store.events(None, 100)
        assert [one for one in feed.events if one.kind is Kind.REPLAYED] == [event]
        [counts] = await store.count()
        assert (counts.ready, counts.dead, counts.died) == (1, 0, 1)
        again = page.post("/api/jobs/a/replay")
        assert again == {"id": "a", "answer": "waiting", "done": False}
        listed = (await store.blobs.list("writers/")).entries
        kept = [decode(plain_value(await store.blobs.get(entry.key)), WriterValue) for entry in listed]
        assert [one.free for one in kept].count(False) == 1  # the page has given its number back
    await assert_sound(site)
    await run_it(site, "a")
    await assert_sound(site)


def plain_value(blob: Any) -> bytes:
    value = value_bytes(envelope_of(blob.body).value)
    assert value is not None
    return value


@pytest.mark.parametrize("how", ["dead", "completed", "cancelled"])
@pytest.mark.parametrize("counted", [False, True])
async def test_however_it_ended_and_however_it_is_counted(site: Site, opened: Any, how: str, counted: bool):
    async with site.store() as store:
        if counted:  # every step of such a queue is counted exactly, in the queue's own object
            await store.control(
                "queue", "q", {"max_running": 5, "max_depth": 100, "dead_cap": 9, "dead_overflow": "reject"}
            )
        if how == "dead":
            await died(store, a_spec(id="a", queue="q"))
        elif how == "completed":
            await completed(
                store, a_spec(id="a", queue="q", payload=b"[1]"), result=b'{"text": "' + b"r" * 3_000 + b'"}'
            )
        else:
            await store.enqueue([a_spec(id="a", queue="q")])
            await store.cancel(["a"])
        await died(store, a_spec(id="b", queue="q"))
    page = opened()

    def archived() -> list[str]:
        return [job["id"] for job in page.get("/api/jobs", status="archived")["jobs"]]

    assert page.post("/api/jobs/a/archive")["answer"] == "done" and archived() == ["a"]
    await assert_sound(site)
    assert page.post("/api/jobs/a/archive")["answer"] == "unchanged"
    assert page.post("/api/jobs/a/unarchive")["answer"] == "done" and archived() == []
    await assert_sound(site)
    assert page.post("/api/jobs/a/archive")["done"]
    assert page.post("/api/jobs/a/replay")["answer"] == "replayed" and archived() == []
    await assert_sound(site)
    assert page.post("/api/jobs/a/archive") == {"id": "a", "answer": "not_finished", "done": False}
    async with site.store() as store:
        [job] = await store.get(["a"])
        assert job is not None and job.result is None and not job.archived
        kinds = [event.kind for event in await store.history("a")]
        assert kinds[-4:] == [Kind.ARCHIVED, Kind.UNARCHIVED, Kind.ARCHIVED, Kind.REPLAYED]
    await run_it(site, "a", "q")
    await assert_sound(site)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "group": ("the ordered group g", {"group": "g"}),
    "key": ("the unique key k", {"key": "k"}),
    "after": ("depends on other jobs", {"after": ("parent",)}),
    "pool": ("is a pool", {"queue": "pool"}),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_a_page_cannot_decide_is_refused_and_nothing_changes(site: Site, opened: Any, why: str):
    words, more = REFUSED[why]
    async with site.store() as store:
        await store.control("queue", "pool", {"lanes": 2})
        await completed(store, a_spec(id="parent"))
        await died(store, a_spec(id="a", **more))
        page = opened()
        before = await everything(store)

        refused = page.post("/api/jobs/a/replay")["refused"]

        assert refused["status"] == 409 and words in refused["detail"] and "millrace replay a" in refused["detail"]
        assert await everything(store) == before
        assert page.post("/api/jobs/a/archive")["done"]  # that is only a flag of the job
        assert (await store.replay(["a"]))[0] == "replayed"  # and the store itself can
    await assert_sound(site)


async def test_a_page_changes_nothing_in_a_store_that_is_being_moved(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        page = opened()
        await close(store, SOURCE)
        before = await everything(store)
        for verb in ("replay", "archive"):
            refused = page.post(f"/api/jobs/a/{verb}")["refused"]
            assert refused["status"] == 409 and "memory://target (millrace move)" in refused["detail"]
        assert await everything(store) == before

        await store.blobs.delete([store._layout.queue("default")])  # then the object of the store is read
        assert page.post("/api/jobs/a/archive")["refused"]["code"] == "closed"


async def test_a_page_changes_jobs_in_a_store_that_received_a_move(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        await close(store, msgspec.structs.replace(SOURCE, role="target", stage="opened"))
        assert opened().post("/api/jobs/a/archive")["done"]


async def everything(store: ObjectStore) -> dict[str, bytes]:
    """Every object but the numbers of writers, which come and go."""
    keys = [item.key for item in (await store.blobs.list("")).entries if not item.key.startswith(("ui/", "writers/"))]
    blobs = await store.blobs.get_many(keys)
    return {blob.key: blob.body for blob in blobs if blob is not None}


# Before its first PUT of the job itself, the page waits until it is let go on.
HELD = """
    const plain = globalThis.fetch;
    globalThis.held = new Promise((reached) => {
      globalThis.fetch = async (url, options) => {
        if (options.method === "PUT" && url.includes(WHAT) && globalThis.fetch !== plain) {
          globalThis.fetch = plain;
          reached(url);
          await new Promise((go) => { globalThis.goOn = go; });
        }
        return plain(url, options);
      };
    });
"""


async def held(page: Page, verb: str, what: str = "/tasks/") -> None:
    page.run(HELD.replace("WHAT", json.dumps(what)))
    page.run(
        f"globalThis.acting = driver.request('POST', '/api/jobs/a/{verb}', {{}});"
        " globalThis.acting.catch(() => 0); await held"
    )


def let_go(page: Page) -> Any:
    return page.run(
        "goOn(); try { return await acting } catch (error) { return {refused: error.detail ?? String(error)} }"
    )


@pytest.mark.parametrize("what", ["/tasks/", "/control/queues/"])
async def test_whoever_was_faster_is_not_overwritten(site: Site, opened: Any, what: str):
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        page = opened()
        await held(page, "archive", what)
        assert await store.replay(["a"]) == ["replayed"]
        [job] = await store.claim(a_claim())

        answer = let_go(page)

        assert answer == {"id": "a", "answer": "not_finished", "done": False}
        await store.settle([(job.lease, Change.completed(b'"done"'))])
        [ended] = await store.get(["a"])
        assert ended is not None and (ended.state, ended.archived, ended.result) == (State.COMPLETED, False, b'"done"')
        assert [event.kind for event in await store.history("a")][-3:] == [Kind.REPLAYED, Kind.CLAIMED, Kind.COMPLETED]
    await assert_sound(site)


async def test_an_action_on_what_was_shown_is_refused_when_it_has_changed(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        page = opened()
        rev = page.get("/api/jobs/a")["rev"]
        await store.archive(["a"])

        refused = page.post("/api/jobs/a/replay", {"rev": rev})["refused"]

        assert refused["code"] == "changed" and "Nothing was changed; refresh and try again" in refused["detail"]
        assert page.post("/api/jobs/a/replay", {"rev": page.get("/api/jobs/a")["rev"]})["done"]
    await assert_sound(site)


async def test_a_page_that_dies_halfway_leaves_what_a_crash_leaves(site: Site, opened: Any):
    """Between its two writes nobody knows yet whether it will happen: another one decides that it does not."""
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        page = opened()
        await held(page, "replay", "/control/queues/")  # the job is pending, its queue has not decided

        [job] = await store.get(["a"])
        assert job is not None and job.state is State.DEAD
        assert await store.replay(["a"]) == ["replayed"]

        answer = let_go(page)
        assert answer == {"id": "a", "answer": "waiting", "done": False}
        [job] = await store.get(["a"])
        assert job is not None and job.replays == 1
    await assert_sound(site)
    await run_it(site, "a")


async def test_what_another_one_left_half_done_is_waited_for_and_then_told(site: Site, opened: Any):
    async with site.store() as store:
        await died(store, a_spec(id="a"))
        key = store.engine.layout.job("a")
        blob = await store.blobs.get(key)
        assert blob is not None
        value = value_bytes(envelope_of(blob.body).value)
        lock = Pending("ab" * 9, "control/queues/default.json", raw_value(value))
        await store.blobs.swap(key, sealed(value, pending=lock), blob.tag)
        page = opened()

        refused = page.post("/api/jobs/a/replay")["refused"]

        assert refused["code"] == "locked" and "millrace replay a" in refused["detail"]
        assert page.get("/api/jobs/a")["state"] == "dead"
        assert await store.replay(["a"]) == ["replayed"]


async def test_what_is_decided_but_not_carried_through_counts_and_survives(
    site: Site, opened: Any, monkeypatch: pytest.MonkeyPatch
):
    """A client that died right after its decision: the queue's object says that the job's pending value holds."""

    async def crash(self: Objects, writes: Any) -> dict[str, str]:
        return {}

    async with site.store() as store:
        await store.control("queue", "q", {"max_running": 5})
        await died(store, a_spec(id="a", queue="q"))
        await died(store, a_spec(id="b", queue="q"))
        with monkeypatch.context() as patch:
            patch.setattr(Objects, "_tidy", crash)
            assert await store.archive(["b"]) == ["done"]
        blob = await store.blobs.get(store.engine.layout.job("b"))
        assert blob is not None and envelope_of(blob.body).pending is not None
        page = opened()

        assert page.get("/api/jobs/b")["archived"] is True
        assert page.post("/api/jobs/a/archive")["done"]  # which overwrites the queue's object

        jobs = await store.get(["a", "b"])
        assert [job.archived for job in jobs if job is not None] == [True, True]
    await assert_sound(site)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_a_lost_answer_is_settled_by_what_is_there(site: Site, opened: Any, lost: str):
    """Each PUT of the action once without an answer: it happens once, whatever got lost."""
    async with site.store() as store:
        await store.control("queue", "q", {"max_running": 5})
        await died(store, a_spec(id="a", queue="q"))
        page = opened()
        page.run(
            "const plain = globalThis.fetch; const seen = new Set(); globalThis.fetch = async (url, options) => {"
            "  const first = options.method === 'PUT' && !seen.has(url); seen.add(url);"
            "  if (!first) return plain(url, options);"
            f"  if ({json.dumps(lost)} === 'answer') await plain(url, options);"
            "  throw new TypeError('Failed to fetch') }"
        )

        assert page.post("/api/jobs/a/replay")["done"]

        history = await store.history("a")
        assert [event.kind for event in history].count(Kind.REPLAYED) == 1
        [counts] = await store.count()
        assert (counts.ready, counts.dead) == (1, 0)
    await assert_sound(site, leftovers=True)
    await run_it(site, "a", "q")
    await assert_sound(site)


async def test_many_at_once_and_a_worker_at_the_same_time(site: Site, opened: Any):
    """The page replays all of one cause while a worker takes what it brings back: each runs exactly once more."""
    async with site.store() as store:
        await store.control("queue", "q", {"max_running": 50})
        for number in range(6):
            await died(store, a_spec(id=f"j{number}", queue="q"))
        await died(store, a_spec(id="grouped", queue="q", group="g"))
        page = opened()
        mark = page.get("/api/dead")["causes"][0]["fingerprint"]
        dry = page.post("/api/bulk", {"action": "replay", "filter": {"error": mark}})
        assert (dry["matched"], dry["done"], dry["dry_run"]) == (7, 0, True)
        more = {"action": "replay", "filter": {"error": mark}, "dry_run": False, "expect": 5}
        assert page.post("/api/bulk", more)["refused"]["code"] == "more_match"

        page.run(
            "globalThis.acting = driver.request('POST', '/api/bulk', {body:"
            f" {json.dumps({**more, 'expect': 7})}}}); globalThis.acting.catch(() => 0)"
        )
        runs: list[str] = []
        for _ in range(400):
            for job in await store.claim(a_claim(queue="q", limit=2)):
                runs.append(job.id)
                await store.settle([(job.lease, Change.completed())])
            if len(runs) == 6:
                break
            await asyncio.sleep(0.02)
        answer = page.run("return acting")

        assert answer["answers"] == {"replayed": 6, "not_here": 1} and answer["done"] == 6
        assert sorted(runs) == [f"j{number}" for number in range(6)]
    await assert_sound(site)
