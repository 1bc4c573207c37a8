"""Operating over HTTP, on every store: bulk by filter, queues, pools, dead letters, workers, schedules, metrics."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace import App, StoreError
from millrace.domain.request import WorkerInfo
from tests.web.stage import HERE, Web, opened


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
    async with asyncio.timeout(20):
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


async def test_a_schedule_is_paused_resumed_and_forgotten(app: App):
    async with opened(app) as web:
        assert (await web.get("/api/schedules"))["schedules"] == []
        paused = await web.post("/api/schedules/nightly/pause")
        assert paused["paused"] is True and paused["next_tick"] is None
        [listed] = (await web.get("/api/schedules"))["schedules"]
        assert (listed["name"], listed["expression"]) == ("nightly", "0 3 * * *")
        assert (await web.post("/api/schedules/nightly/resume"))["next_tick"] is not None
        assert (await web.get("/api/schedules/nightly"))["paused"] is False
        assert (await web.ask("DELETE", "/api/schedules/nightly", status=200)).json()["forgotten"] is True
        await web.get("/api/schedules/nightly", 404)
        await web.ask("DELETE", "/api/schedules/nightly", status=404)


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


async def test_health_says_whether_the_store_answers(web: Web, monkeypatch: pytest.MonkeyPatch):
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
