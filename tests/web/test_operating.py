"""Operating over HTTP, on every store: bulk by filter, queues, pools, dead letters, workers, schedules, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace import App, StoreError
from millrace.domain.request import Cancelled, WorkerInfo
from millrace.testing.conformance.events import beyond
from millrace.views import bulk as bulk_actions
from millrace.web import requests
from millrace.web.routes import bulk, server
from tests.narrowing import the
from tests.web.stage import HERE, TOKENS, Web, bearer, opened


@pytest.fixture
def app(url: str) -> App:
    made = App(url)

    @made.task(name="charge", queue="money", max_attempts=1)
    async def charge(card: int) -> None:
        raise ValueError(f"card {card} was refused")

    @made.task(name="pack", queue="line")
    async def pack() -> str:
        return "packed"

    @made.pool("orders", lanes=3)
    async def take(order: int) -> None: ...

    made.cron("0 3 * * *", name="nightly")(pack)
    return made


async def worked(app: App) -> None:
    async with asyncio.timeout(60):
        await app.worker(burst=True).run(handle_signals=False)


# ── bulk ──────────────────────────────────────────────────────────────────────────────────────


async def test_by_filter_the_dry_run_comes_first(app: App):
    async with opened(app) as web:
        for card in range(3):
            await web.enqueue("charge", payload={"card": card}, id=f"dead-{card}")
        await worked(app)
        chosen = {"action": "replay", "filter": {"queue": "money"}}

        looked = await web.post("/api/bulk", chosen)
        assert (looked["dry_run"], looked["matched"], looked["done"]) == (True, 3, 0)
        assert sorted(looked["sample"]) == ["dead-0", "dead-1", "dead-2"]
        assert (await web.get(web.job("dead-0")))["state"] == "dead"

        for when, count in (("finished_from", 3), ("finished_to", 0)):
            timed = {"action": "replay", "filter": {"queue": "money", when: "1h"}}
            assert (await web.post("/api/bulk", timed))["matched"] == count
            assert (await web.get("/api/dead", queue="money", **{when: "1h"}))["total"] == count

        unasked = await web.post("/api/bulk", {**chosen, "dry_run": False}, 400)
        assert "dry_run=true" in unasked["detail"]
        more = await web.post("/api/bulk", {**chosen, "dry_run": False, "expect": 2}, 409)
        assert (more["code"], more["matched"]) == ("more_than_expected", 3)
        assert (await web.get(web.job("dead-0")))["state"] == "dead"

        done = await web.post("/api/bulk", {**chosen, "dry_run": False, "expect": 3})
        assert (done["done"], done["answers"]) == (3, {"replayed": 3})
        assert (await web.get(web.job("dead-0")))["state"] == "ready"
        entry, *_ = (await web.get("/api/audit"))["entries"]
        assert entry["action"] == "actOnJobs"
        assert entry["facts"]["answers"] == {"replayed": 3} and entry["facts"]["filter"]["queue"] == "money"


async def test_jobs_that_die_after_the_count_do_not_stop_what_was_agreed_to(app: App):
    async with opened(app) as web:
        for card in range(2):
            await web.enqueue("charge", payload={"card": card}, id=f"dead-{card}")
        await worked(app)
        counted = await web.post("/api/bulk", {"action": "replay", "filter": {"queue": "money", "finished_from": "1h"}})
        await passed(app, at_least=2)
        await web.enqueue("charge", payload={"card": 9}, id="dead-later")
        await worked(app)

        again = {"action": "replay", "filter": counted["filter"], "dry_run": False, "expect": counted["matched"]}
        done = await web.post("/api/bulk", again)

        assert (done["matched"], done["answers"]) == (2, {"replayed": 2})
        assert (await web.get(web.job("dead-later")))["state"] == "dead"


async def test_jobs_that_come_after_the_count_are_not_cancelled(app: App):
    async with opened(app) as web:
        await web.enqueue("charge", payload={"card": 1}, id="counted")
        counted = await web.post("/api/bulk", {"action": "cancel", "filter": {"queue": "money"}})
        await passed(app, at_least=2)
        await web.enqueue("charge", payload={"card": 2}, id="later")

        again = {"action": "cancel", "filter": counted["filter"], "dry_run": False, "expect": counted["matched"]}
        assert (await web.post("/api/bulk", again))["answers"] == {"cancelled": 1}

        assert (await web.get(web.job("later")))["state"] == "ready"


async def passed(app: App, at_least: int) -> None:
    """So many milliseconds of the store's clock."""
    store = await app.connected()
    began = await store.now()
    while await store.now() < began + at_least:
        await asyncio.sleep(0.001)


async def test_by_id_each_is_counted_by_its_answer(web: Web):
    await web.enqueue(id="one")
    await web.enqueue(id="../two")

    done = await web.post("/api/bulk", {"action": "cancel", "ids": ["one", "../two", "nowhere"], "dry_run": False})

    assert done["answers"] == {"cancelled": 2, "not_found": 1} and done["done"] == 2
    archived = await web.post(
        "/api/bulk", {"action": "archive", "filter": {"status": "cancelled"}, "dry_run": False, "expect": 2}
    )
    assert archived["done"] == 2
    back = await web.post(
        "/api/bulk", {"action": "unarchive", "filter": {"queue": "default"}, "dry_run": False, "expect": 9}
    )
    assert back["done"] == 2


async def test_dead_letters_are_purged_by_filter_and_by_id(app: App):
    async with opened(app) as web:
        for card in range(4):
            await web.enqueue("charge", payload={"card": card}, id=f"dead-{card}")
        await worked(app)
        await web.enqueue("pack", id="live")

        one = await web.post(web.job("dead-0", "/delete"))
        assert (one["answer"], one["done"]) == ("deleted", True)
        refused = await web.post(web.job("live", "/delete"), code=409)
        assert (refused["answer"], refused["done"]) == ("not_finished", False)
        chosen = {"action": "delete", "filter": {"status": "dead", "queue": "money"}}
        assert (await web.post("/api/bulk", chosen))["matched"] == 3
        assert (await web.get("/api/dead"))["total"] == 3
        done = await web.post("/api/bulk", {**chosen, "dry_run": False, "expect": 3})
        assert (done["done"], done["answers"]) == (3, {"deleted": 3})
        assert [job["id"] for job in (await web.get("/api/jobs"))["jobs"]] == ["live"]


async def test_children_come_back_with_their_parent_unless_told_not_to(app: App):
    async with opened(app) as web:
        await web.enqueue("charge", payload={"card": 1}, id="parent")
        await web.enqueue("pack", id="child", after=["parent"])
        await worked(app)
        dead = await web.get(web.job("child"))
        assert (dead["state"], dead["reason"]) == ("dead", "dependency_failed")
        assert dead["expires_at"] > dead["finished_at"]

        await web.post(web.job("parent", "/replay"), {"children": False})
        assert (await web.get(web.job("child")))["state"] == "dead"
        await app.jobs.cancel("parent")
        body = {"action": "replay", "ids": ["parent"], "dry_run": False}
        await web.post("/api/bulk", {**body, "children": False})
        assert (await web.get(web.job("child")))["state"] == "dead"
        await app.jobs.cancel("parent")
        assert (await web.post("/api/bulk", body))["answers"] == {"replayed": 1}
        assert (await web.get(web.job("child")))["state"] == "blocked"


async def test_an_operator_may_not_delete(app: App):
    async with opened(app, tokens=TOKENS) as web:
        body = {"action": "delete", "ids": ["nobody"], "dry_run": False}
        refused = await web.ask("POST", "/api/bulk", body, 403, headers=bearer("operator"))
        assert refused.json()["code"] == "role"
        await web.ask("POST", "/api/bulk", body, 200, headers=bearer("admin"))


async def test_two_who_replay_the_same_at_once_make_no_job_run_twice(app: App, monkeypatch: pytest.MonkeyPatch):
    """While one of them still looks at its last page, the other has replayed what was found, and it has run again."""
    async with opened(app) as web:
        for card in range(3):
            await web.enqueue("charge", payload={"card": card}, id=f"dead-{card}")
        await worked(app)
        again = {"action": "replay", "filter": {"queue": "money"}, "dry_run": False, "expect": 3}
        seen = bulk._refuse_unexpected
        meanwhile = [["dead-0", "dead-1"]]
        kind = type(app.store)

        async def overtaken(store: Any, ids: Any, get: Any = kind.get) -> Any:
            """Somebody else is faster, once."""
            if meanwhile:
                await app.jobs.replay(meanwhile.pop())
                await worked(app)
            return await get(store, ids)

        def agreed(body: requests.Bulk, matched: int) -> None:
            seen(body, matched)
            monkeypatch.setattr(kind, "get", overtaken)

        monkeypatch.setattr(bulk, "_refuse_unexpected", agreed)
        done = await web.post("/api/bulk", again)
        assert (done["matched"], done["done"], done["answers"]) == (3, 1, {"changed": 2, "replayed": 1})
        states = {one["id"]: one["state"] for one in (await web.get("/api/jobs"))["jobs"]}
        assert states == {"dead-0": "dead", "dead-1": "dead", "dead-2": "ready"}


async def test_a_deed_that_breaks_off_tells_and_notes_what_was_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bulk_actions, "BATCH", 2)
    async with opened(App("memory://")) as web:
        ids = [await web.enqueue(id=f"job-{number}") for number in range(5)]
        store = await web.app.connected()
        plain = store.cancel

        async def cancel(ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
            if "job-2" in ids:
                raise StoreError("the disk is full")
            return await plain(ids, running)

        monkeypatch.setattr(store, "cancel", cancel)
        for chosen in ({"ids": ids}, {"filter": {"queue": "default"}, "expect": 5}):
            broken = await web.post("/api/bulk", {"action": "cancel", "dry_run": False, **chosen}, 503)
            entry, *_ = (await web.get("/api/audit"))["entries"]
            if "ids" in chosen:
                assert (broken["answers"], broken["done"], broken["matched"]) == ({"cancelled": 2}, 2, 5)
                assert "disk is full" in broken["detail"] and "2 of 5 jobs" in broken["detail"]
                assert entry["facts"]["answers"] == {"cancelled": 2} and entry["facts"]["ids"] == ids
                assert (entry["status"], entry["facts"]["matched"]) == (503, 5)
            else:  # nothing of it was done
                assert "answers" not in broken and entry["facts"]["answers"] == {}
                assert entry["facts"]["filter"] == {"queue": "default"}


async def test_what_is_said_of_archived_jobs_is_done_to_no_others(app: App):
    async with opened(app) as web:
        for name in ("seen", "away"):
            await web.enqueue("charge", id=name, payload={"card": 1})
        await worked(app)
        await web.post(web.job("away", "/archive"))
        await web.enqueue("pack", id="waits")
        chosen = {"filter": {"status": "archived"}, "dry_run": False, "expect": 9}

        for action, matched in (("cancel", 0), ("archive", 1), ("replay", 1)):
            assert (await web.post("/api/bulk", {**chosen, "action": action}))["matched"] == matched, action
            entry, *_ = (await web.get("/api/audit"))["entries"]
            assert entry["facts"]["filter"]["status"] == "archived"
        states = {one["id"]: one["state"] for one in (await web.get("/api/jobs", all=True))["jobs"]}
        assert states == {"seen": "dead", "away": "ready", "waits": "ready"}

        await web.post(web.job("seen", "/archive"))
        back = await web.post("/api/bulk", {**chosen, "action": "unarchive"})
        assert (back["matched"], back["answers"]) == (1, {"done": 1})


@pytest.mark.parametrize(
    "body",
    [
        {"action": "cancel"},
        {"action": "cancel", "ids": ["a"], "filter": {"queue": "a"}},
        {"action": "cancel", "filter": {}},
        {"action": "obliterate", "ids": ["a"]},
        {"action": "cancel", "ids": []},
    ],
)
async def test_an_unclear_choice_is_refused(body: dict[str, object]):
    async with opened(App("memory://")) as web:
        await web.enqueue(id="a")
        await web.post("/api/bulk", {**body, "dry_run": False, "expect": 9}, 400)
        assert (await web.get(web.job("a")))["state"] == "ready"


async def test_those_that_died_of_one_error_come_back_together(app: App):
    async with opened(app) as web:
        for card in (1, 2):
            await web.enqueue("charge", payload={"card": card})
        await web.post(
            "/api/jobs", {"task": "charge", "queue": "money", "payload": {"card": "x"}, "unchecked": True}, 201
        )
        await worked(app)

        dead = await web.get("/api/dead")
        assert (dead["total"], dead["complete"], [one["count"] for one in dead["causes"]]) == (3, True, [2, 1])
        worst = dead["causes"][0]
        assert worst["error"] == "ValueError: card … was refused" and worst["queues"] == {"money": 2}
        assert (await web.get(web.job(worst["example"])))["state"] == "dead"
        listed = await web.get("/api/jobs", error=worst["fingerprint"])
        assert len(listed["jobs"]) == 2

        again = {"action": "replay", "filter": {"error": worst["fingerprint"]}, "dry_run": False, "expect": 2}
        assert (await web.post("/api/bulk", again))["done"] == 2
        assert (await web.get("/api/dead"))["total"] == 1
        assert "dead jobs only" in (await web.get("/api/dead", 400, status="running"))["detail"]


# ── queues, pools ─────────────────────────────────────────────────────────────────────────────


async def test_a_queue_is_counted_paused_bounded_and_drained(web: Web):
    for number in range(3):
        await web.enqueue(queue="line", id=f"job-{number}")
    [queue] = (await web.get("/api/queues"))["queues"]
    assert (queue["queue"], queue["ready"], queue["paused"]) == ("line", 3, False)
    assert queue["oldest_ready"] >= 0

    assert (await web.post("/api/queues/line/pause"))["paused"] is True
    changed = (
        await web.ask("PATCH", "/api/queues/line", {"max_running": 5, "rate": 2.5, "keep_dead": "2d"}, 200)
    ).json()
    assert (changed["settings"]["max_running"], changed["settings"]["rate"]) == (5, 2.5)
    assert changed["settings"]["keep_dead"] == 2 * 86_400 and changed["paused"] is True
    unbounded = (await web.ask("PATCH", "/api/queues/line", {"max_running": None}, 200)).json()
    assert unbounded["settings"]["max_running"] is None and unbounded["settings"]["rate"] == 2.5
    assert (await web.post("/api/queues/line/resume", {}))["paused"] is False

    assert await web.post("/api/queues/line/drain", {}) == {
        "queue": "line",
        "dry_run": True,
        "waiting": 3,
        "cancelled": 0,
    }
    assert (await web.post("/api/queues/line/drain", {"dry_run": False}))["cancelled"] == 3
    assert (await web.get(web.job("job-0")))["state"] == "cancelled"


@pytest.mark.parametrize("name", [".", "..", "...", "~"])
async def test_a_queue_of_dots_can_be_named(web: Web, name: str):
    """Clients take `.` and `..` out of a path before they send it, however they are encoded."""
    if name == "~":
        await web.get("/api/queues/~", 400)
        return
    await web.enqueue(queue=name)
    place = f"/api/queues/{name if len(name) > 2 else '~' + name}"
    assert (await web.get(place))["queue"] == name
    assert (await web.post(f"{place}/pause"))["queue"] == name
    assert (await web.post(f"{place}/drain", {"dry_run": False}))["cancelled"] == 1


async def test_a_rate_that_no_clock_can_wait_for_is_refused(web: Web):
    bad = await web.ask("PATCH", "/api/queues/line", {"rate": 1e-9}, 400)
    assert "rate" in bad.json()["detail"]


async def test_what_has_no_way_back_wants_the_name_typed(web: Web):
    await web.enqueue(queue="line", id="job")
    path = "/api/queues/line/obliterate"

    assert (await web.post(path, {}))["jobs"] == 1
    for confirm in (None, "lines"):
        await web.post(path, {"dry_run": False, "confirm": confirm}, 400)
    assert (await web.get(web.job("job")))["state"] == "ready"
    assert (await web.post(path, {"dry_run": False, "confirm": "line"}))["removed"] == 1
    await web.get(web.job("job"), 404)


async def test_a_queue_that_was_never_used_is_not_found(web: Web):
    await web.get("/api/queues/nowhere", 404)
    await web.get("/api/pools/nowhere", 404)
    await web.post("/api/queues/nowhere/drain", {"dry_run": False}, 404)
    await web.post("/api/queues/nowhere/obliterate", {"dry_run": False, "confirm": "nowhere"}, 404)
    bad = await web.ask("PATCH", "/api/queues/line", {"rate": -1}, 400)
    assert "rate" in bad.json()["detail"]


async def test_a_pool_is_shown_lane_by_lane_and_one_lane_is_paused(app: App):
    async with opened(app) as web:
        await app.prepared()
        for order in range(6):
            await app.pools["orders"].task.enqueue(order=order)
        paused = await web.post("/api/queues/orders/pause", {"lane": 1})
        assert (paused["paused"], paused["paused_lanes"]) == (False, [1])

        pool = await web.get("/api/pools/orders")
        assert [lane["waiting"] for lane in pool["lanes"]] == [2, 2, 2]
        assert [lane["state"] for lane in pool["lanes"]] == ["idle", "paused", "idle"]
        assert [one["pool"] for one in (await web.get("/api/pools"))["pools"]] == ["orders"]
        assert [lane["lane"] for lane in (await web.get("/api/queues/orders"))["lanes"]] == [0, 1, 2]
        assert (await web.post("/api/queues/orders/drain", {"lane": 0, "dry_run": False}))["cancelled"] == 2
        await web.post("/api/queues/orders/drain", {"lane": 7, "dry_run": False}, 400)
        await web.post("/api/queues/orders/pause", {"lane": 7}, 400)


# ── workers, schedules ────────────────────────────────────────────────────────────────────────


async def test_workers_are_shown_with_what_they_hold(app: App):
    async with opened(app) as web:
        store = await app.connected()
        await store.beat(WorkerInfo("w-1", ("line",), ("pack",), slots=4, completed=7, host="here", pid=1), 60_000)
        [worker] = (await web.get("/api/workers"))["workers"]
        assert (worker["id"], worker["alive"], worker["slots"], worker["completed"]) == ("w-1", True, 4, 7)
        overview = await web.get("/api/overview")
        assert (overview["workers"], overview["stale_workers"]) == (1, 0)


async def test_a_schedule_is_paused_resumed_and_removed(app: App):
    async with opened(app) as web:
        assert (await web.get("/api/schedules"))["schedules"] == []
        paused = await web.post("/api/schedules/nightly/pause")
        assert paused["paused"] is True and paused["next_tick"] is None
        [listed] = (await web.get("/api/schedules"))["schedules"]
        assert (listed["name"], listed["expression"]) == ("nightly", "0 3 * * *")
        assert (await web.post("/api/schedules/nightly/resume"))["next_tick"] is not None
        assert (await web.get("/api/schedules/nightly"))["paused"] is False
        assert (await web.ask("DELETE", "/api/schedules/nightly", status=200)).json()["removed"] is True
        await web.get("/api/schedules/nightly", 404)
        await web.ask("DELETE", "/api/schedules/nightly", status=404)


async def test_schedules_are_stored_over_http_and_listed_in_pages(app: App):
    async with opened(app) as web:
        job = {"task": "report", "payload": {"customer": "acme"}, "unchecked": True, "priority": 7}
        for name in ("c", "a", "b"):
            body = {**job, "cron": "0 8 * * *", "tz": "Europe/Berlin", "missed": "skip", "grace": "10m"}
            stored = (await web.ask("PUT", f"/api/schedules/{name}", body, status=200)).json()
            assert (stored["source"], stored["expression"], stored["grace"]) == ("store", "0 8 * * *", 600)
        first = await web.get("/api/schedules", limit=2)
        assert ([one["name"] for one in first["schedules"]], first["next"]) == (["a", "b"], "b")
        rest = await web.get("/api/schedules", limit=2, after="b")
        assert ([one["name"] for one in rest["schedules"]], rest["next"]) == (["c"], None)

        kept = await app.schedules.get("a")
        assert kept is not None and kept.template is not None
        assert (kept.template.payload, kept.template.priority) == (b'{"customer":"acme"}', 7)
        for wrong in ({"cron": "0 8 * *"}, {}, {"every": "1h", "cron": "@daily"}, {"every": "1h", "id": "x"}):
            assert (await web.ask("PUT", "/api/schedules/d", {**job, **wrong})).status_code in (400, 422)
        await web.get("/api/schedules/d", 404)


# ── metrics, health ───────────────────────────────────────────────────────────────────────────


async def samples(web: Web) -> dict[tuple[str, ...], float]:
    text = (await web.ask("GET", "/metrics", status=200)).text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_count_what_the_store_holds_and_what_happened(app: App):
    async with opened(app) as web:
        first = await samples(web)
        assert not [name for name in first if name[0] == "millrace_events_total"]
        await web.enqueue("pack", queue="line")
        await web.enqueue("charge", payload={"card": 1})
        await web.enqueue("pack", queue="line", delay="1h")
        await worked(app)

        found = await samples(web)
        assert found["millrace_jobs", "line", "completed"] == 1
        assert found["millrace_jobs", "line", "scheduled"] == 1
        assert found["millrace_jobs", "money", "dead"] == 1
        assert found["millrace_processed_total", "line"] == 1
        assert found["millrace_died_total", "money"] == 1
        assert found["millrace_events_total", "enqueued", "line", "pack"] == 2
        assert found["millrace_events_total", "buried", "money", "charge"] == 1
        assert found["millrace_attempt_seconds_count", "line", "pack"] == 1
        assert (await samples(web))["millrace_events_total", "enqueued", "line", "pack"] == 2  # each is counted once


async def test_metrics_go_on_from_now_when_the_store_lost_events(app: App, caplog: pytest.LogCaptureFixture):
    async with opened(app) as web:
        await web.enqueue("pack", queue="line")
        await samples(web)
        exporter = web.server.exporter
        exporter._cursor = beyond(the(exporter._cursor))

        assert not [name for name in await samples(web) if name[0] == "millrace_events_total"]
        assert "restored from a backup" in caplog.text
        await web.enqueue("pack", queue="line")
        assert (await samples(web))["millrace_events_total", "enqueued", "line", "pack"] == 1


async def test_health_says_whether_the_store_answers(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "BUDGET", 60)
    assert (await web.get("/health"))["status"] == "ok"

    async def down() -> int:
        raise StoreError("it is gone")

    monkeypatch.setattr(await web.app.connected(), "now", down)
    assert (await web.get("/health", 503))["status"] == "down"
    problem = await web.ask("GET", "/api/queues", status=503)
    assert problem.json()["code"] == "store" and problem.headers["retry-after"] == "1"


async def test_what_nobody_foresaw_is_logged_and_tells_nothing(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(ids: object) -> None:
        raise RuntimeError("the secret is 1234")

    monkeypatch.setattr(await web.app.connected(), "get", broken)
    problem = (await web.ask("GET", "/api/jobs/x", status=500)).json()

    assert problem["code"] == "defect" and "1234" not in str(problem)
    assert "the secret is 1234" in caplog.text


# ── mounted, pages ────────────────────────────────────────────────────────────────────────────


async def test_it_can_be_mounted_in_an_app_of_ones_own(url: str):
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from millrace.web import application

    app = App(url)
    outer = Starlette(routes=[Mount("/ops/jobs", application(app))])
    transport = httpx.ASGITransport(outer, client=("127.0.0.1", 1))
    heads = {"origin": f"http://{HERE}"}
    async with app, httpx.AsyncClient(transport=transport, base_url=f"http://{HERE}", headers=heads) as client:
        made = await client.post("/ops/jobs/api/jobs", json={"task": "pack", "id": "a/b"})
        assert made.status_code == 201
        assert str(made.url.join(made.headers["location"])).endswith("/ops/jobs/api/jobs/a%2Fb")
        assert (await client.get("/ops/jobs/api/jobs/a%2Fb")).json()["id"] == "a/b"
        assert (await client.get("/ops/jobs/")).headers["content-type"].startswith("text/html")


async def test_pages_are_served_with_tags_and_nothing_else_is():
    async with opened(App("memory://"), heads={}) as web:
        page = await web.ask("GET", "/", status=200)
        assert "openapi.json" in page.text
        tag = page.headers["etag"]
        assert (await web.ask("GET", "/", headers={"if-none-match": tag})).status_code == 304
        for path in ("/../pages.py", "/%2e%2e/pages.py", "/..%2fpages.py", "/static/index.html", "//etc/passwd"):
            assert (await web.ask("GET", path)).status_code == 404, path
