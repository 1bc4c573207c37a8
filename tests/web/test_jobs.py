"""Jobs over HTTP, on every kind of store."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millrace import App, StoreError
from millrace.domain.job import Job
from millrace.store.sqlite import self_deadlock
from millrace.web import deadline
from tests.cli.stage import Stage
from tests.web.stage import Web, opened

STRANGE = [
    "a/b",
    "a b?c#d",
    "ü→😀",
    "../../etc/passwd",
    "a%2Fb",
    "50%",
    "<script>alert(1)</script>",
    "a\nb",
    "null",
    "batch",
]


async def run_all(web: Web) -> None:
    worker = web.app.worker()
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(60):
            while any(one.ready or one.running for one in await web.app.jobs.count()):
                await asyncio.sleep(0.01)
    finally:
        await worker.stop()
        await running


@pytest.fixture
def app(url: str) -> App:
    made = App(url)

    @made.task(name="double", max_attempts=1)
    async def double(number: int) -> int:
        return 2 * number

    @made.task(name="charge", max_attempts=1)
    async def charge(card: int, password: str = "") -> None:
        raise ValueError(f"card {card} was refused for {password}")

    return made


async def test_a_job_is_put_in_and_found_again(web: Web):
    response = await web.ask("POST", "/api/jobs", {"task": "pack", "payload": {"n": 1}, "queue": "line"}, 201)
    job = response.json()

    assert job["status"] == "queued" and job["state"] == "waiting"
    assert response.headers["location"] == f"jobs/{job['id']}"
    found = await web.get(web.job(job["id"]))
    assert found["payload"] == {"n": 1} and found["queue"] == "line" and found["state"] == "ready"
    assert [one["id"] for one in (await web.get("/api/jobs", queue="line"))["jobs"]] == [job["id"]]
    assert [one["id"] for one in (await web.get("/api/jobs", id=job["id"]))["jobs"]] == [job["id"]]
    assert (await web.get("/api/jobs", id="nowhere"))["jobs"] == []


async def test_jobs_are_looked_up_together(web: Web):
    """A page that draws what a job waits for asks once for all its parents."""
    for name in ("a", "b", "c"):
        await web.enqueue(id=name)

    found = await web.get("/api/jobs", id=["c", "nowhere", "a"])

    assert [one["id"] for one in found["jobs"]] == ["c", "a"]
    await web.get("/api/jobs", 400, id=["x"] * 101)
    await web.get("/api/jobs", 400, id=["a", ""])


async def test_options_travel_as_people_write_them(web: Web):
    parent = await web.enqueue(id="parent", delay="1h")
    child = await web.enqueue(
        id="child", after=[parent], priority=7, group="g", key="k", max_attempts=9, timeout=12.5, headers={"a": "b"}
    )

    found = await web.app.jobs.get(child)
    assert found is not None
    job = found.record
    assert (job.spec.after, job.spec.priority, job.spec.group, job.spec.key) == (("parent",), 7, "g", "k")
    assert (job.spec.max_attempts, job.spec.timeout, job.spec.headers) == (9, 12_500, {"a": "b"})
    assert (await web.get(web.job(parent)))["state"] == "scheduled"
    assert (await web.get(web.job(child)))["state"] == "blocked"


async def test_a_duplicate_is_an_answer(web: Web):
    await web.enqueue(id="once", payload={"n": 1})

    answer = await web.post("/api/jobs", {"task": "pack", "id": "once", "payload": {"n": 2}}, 200)

    assert (answer["status"], answer["by"], answer["payload_differs"]) == ("duplicate", "id", True)


@pytest.mark.parametrize("job_id", STRANGE)
async def test_ids_may_be_any_text(job_id: str):
    async with opened(App("memory://")) as web:
        await web.enqueue(id=job_id)
        assert (await web.get(web.job(job_id)))["id"] == job_id
        assert (await web.get(web.job(job_id, "/history")))["steps"][0]["event"]["job"] == job_id
        assert (await web.get("/api/jobs", id=job_id))["jobs"][0]["id"] == job_id
        assert (await web.post(web.job(job_id, "/cancel")))["answer"] == "cancelled"


async def test_many_are_put_in_all_or_none(web: Web):
    good = [{"task": "pack", "id": f"many-{number}"} for number in range(50)]
    answers = await web.post("/api/batch", {"jobs": good}, 201)
    assert [one["id"] for one in answers["jobs"]] == [one["id"] for one in good]

    bad = [{"task": "pack", "id": "new"}, {"task": "pack", "after": ["nowhere"]}]
    problem = await web.post("/api/batch", {"jobs": bad}, 409)
    assert problem["code"] == "unknown_dependency" and "nowhere" in problem["detail"]
    assert (await web.get("/api/jobs", id="new"))["jobs"] == []


async def test_with_the_app_at_hand_payloads_are_checked(app: App):
    async with opened(app) as web:
        wrong = await web.post("/api/jobs", {"task": "double", "payload": {"number": "x"}}, 422)
        assert wrong["code"] == "payload_invalid" and "number" in wrong["detail"]
        missing = await web.post("/api/jobs", {"task": "dubble", "payload": {}}, 422)
        assert missing["code"] == "unknown_task" and "double" in missing["detail"]
        assert await app.jobs.count() == []
        await web.post("/api/jobs", {"task": "dubble", "unchecked": True}, 201)


async def test_a_result_is_waited_for(app: App):
    async with opened(app) as web:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        answer = await web.post("/api/jobs", {"task": "double", "payload": {"number": 21}}, 201, wait=10)
        await worker.stop()
        await running

        assert answer["outcome"] == {
            "id": answer["id"],
            "state": "completed",
            "finished": True,
            "result": 42,
            "reason": None,
            "error": None,
        }
        assert (await web.get(web.job(answer["id"], "/result")))["result"] == 42


async def test_a_result_that_is_not_there_yet_is_said_so(web: Web):
    job = await web.enqueue()

    assert await web.get(web.job(job, "/result"), 202, wait=0.05) == {
        "id": job,
        "state": "waiting",
        "finished": False,
        "result": None,
        "reason": None,
        "error": None,
    }
    assert (await web.get(web.job("nowhere", "/result"), 404))["code"] == "not_found"
    await web.post(web.job(job, "/cancel"))
    assert (await web.get(web.job(job, "/result")))["state"] == "cancelled"


async def test_a_dead_job_tells_why_and_comes_back(app: App):
    async with opened(app) as web:
        job = await web.enqueue("charge", payload={"card": 7})
        await run_all(web)

        outcome = await web.get(web.job(job, "/result"))
        assert outcome["state"] == "dead" and outcome["error"]["type"] == "ValueError"
        assert (await web.post(web.job(job, "/replay")))["answer"] == "replayed"
        assert (await web.get(web.job(job)))["state"] == "ready"
        refused = await web.post(web.job(job, "/replay"), code=409)
        assert refused == {"id": job, "answer": "waiting", "done": False}


async def test_acting_on_what_is_not_there_is_not_found(web: Web):
    for verb in ("cancel", "replay", "archive", "unarchive"):
        problem = await web.post(web.job("nowhere", f"/{verb}"), code=404)
        assert problem["code"] == "not_found" and "nowhere" in problem["detail"]


async def test_archived_jobs_are_out_of_sight_until_unarchived(web: Web):
    job = await web.enqueue()
    assert (await web.post(web.job(job, "/archive"), code=409))["answer"] == "not_finished"
    await web.post(web.job(job, "/cancel"))
    assert (await web.post(web.job(job, "/archive")))["done"]

    assert (await web.get("/api/jobs"))["jobs"] == []
    assert len((await web.get("/api/jobs", all="true"))["jobs"]) == 1
    assert len((await web.get("/api/jobs", status="archived"))["jobs"]) == 1
    await web.post(web.job(job, "/unarchive"))
    assert len((await web.get("/api/jobs", status="cancelled"))["jobs"]) == 1


async def test_a_list_is_read_page_by_page_in_both_directions(web: Web):
    jobs = [{"task": "pack", "id": f"job-{number:02}"} for number in range(25)]
    await web.post("/api/batch", {"jobs": jobs}, 201)

    for oldest in ("true", "false"):
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await web.get("/api/jobs", limit=7, oldest=oldest, **cursor)
            assert len(page["jobs"]) <= 7
            seen += [one["id"] for one in page["jobs"]]
            if page["cursor"] is None:
                break
            cursor = {"cursor": page["cursor"]}
        assert len(seen) == 25 and set(seen) == {one["id"] for one in jobs}


async def test_filters_must_all_fit(web: Web):
    await web.enqueue(id="one", queue="a", group="g")
    await web.enqueue(id="two", queue="a", delay="1h")
    await web.enqueue("other", id="three", queue="b", key="k", tags=["eu", "x"])

    async def ids(**query: str) -> set[str]:
        return {one["id"] for one in (await web.get("/api/jobs", **query))["jobs"]}

    assert await ids(queue="a") == {"one", "two"}
    assert await ids(queue="a", status="scheduled") == {"two"}
    assert await ids(status="pending") == {"one", "two", "three"}
    assert await ids(task="other") == {"three"}
    assert await ids(group="g") == {"one"}
    assert await ids(key="k") == {"three"}
    assert await ids(tag="eu") == await ids(tag="x", queue="b") == {"three"}
    assert await ids(tag="eu", queue="a") == set()
    assert await ids(since="1h") == {"one", "two", "three"}
    assert await ids(until="1h") == set()
    await web.post(web.job("two", "/cancel"), {})
    assert await ids(finished_from="1h") == await ids(finished_from="1h", queue="a") == {"two"}
    assert await ids(finished_to="1h") == await ids(finished_from="1h", queue="b") == set()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/jobs?limit=0", "limit"),
        ("/api/jobs?limit=501", "limit"),
        ("/api/jobs?limit=x", "limit"),
        ("/api/jobs?status=asleep", "status"),
        ("/api/jobs/x/result?wait=nan", "wait"),
        ("/api/jobs/x/result?wait=NaN", "wait"),
        ("/api/jobs/x/result?wait=inf", "wait"),
        ("/api/jobs/x/result?wait=-1", "wait"),
        ("/api/jobs/x/result?wait=61", "wait"),
        ("/api/jobs?queue=a%20b", "queue"),
        ("/api/jobs?nothing=1", "nothing"),
        ("/api/jobs?tag=a%20b", "tag"),
        ("/api/jobs?queue=a&queue=b", "twice"),
        ("/api/jobs?since=yesterday", "since"),
        ("/api/jobs?since=2026-02-30", "2026-02-30"),
        ("/api/jobs?finished_from=yesterday", "finished_from"),
        ("/api/jobs?finished_to=2026-02-30", "2026-02-30"),
        ("/api/jobs?cursor=%00", "cursor"),
        ("/api/jobs?group=%ff", "UTF-8"),
        ("/api/jobs/%ff", "UTF-8"),
        ("/api/jobs/" + "x" * 201, "200"),
        ("/api/overview?x=1", "no query"),
        ("/api/queues/a%20b", "queue name"),
    ],
)
async def test_bad_input_is_said_to_be_bad_in_words(web: Web, path: str, says: str):
    response = await web.ask("GET", path, status=400)

    assert response.headers["content-type"] == "application/problem+json"
    assert says in response.json()["detail"]


CURSORS = ["x", "-1", "0", "1e9", "9" * 30, "٣", "\0", "a:b:c", "/", "..", "{}", "[]", "null", "end", "AAAA", "😀"]


async def test_no_text_for_a_cursor_is_a_defect(web: Web):
    """A store may read its own cursors as it likes; what it never gave out is refused, or leads nowhere."""
    await web.enqueue()
    for cursor in CURSORS:
        for path in ("/api/jobs", "/api/events"):
            for query in ({}, {"oldest": "true"}) if path == "/api/jobs" else ({},):
                response = await web.ask("GET", path, params={"cursor": cursor, **query})
                assert response.status_code in (200, 400, 410), (path, cursor, response.text)


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"[]", 400, "object"),
        (b'{"task": 1}', 400, "task"),
        (b'{"task": "x", "more": 1}', 400, "more"),
        (b'{"task": "x y"}', 400, "task"),
        (b'{"task": "x", "payload": []}', 400, "payload"),
        (b'{"task": "x", "priority": 16}', 400, "priority"),
        (b'{"task": "x", "delay": -1}', 400, "delay"),
        (b'{"task": "x", "delay": "soon"}', 400, "delay"),
        (b'{"task": "x", "id": ""}', 400, "id"),
        (b'{"task": "x", "payload": ' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}", 422, "deeper"),
        (b'{"task": "x", "payload": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", 400, "JSON"),
        (b'{"task": "x", "payload": {"a": "' + b"x" * (1 << 20) + b'"}}', 422, "bytes"),
        (b'{"task": "\xff"}', 400, "JSON"),
        (b" " * (3 << 20), 413, "larger"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, bytes) else None,
)
async def test_a_bad_body_is_refused_in_words_and_stores_nothing(data: bytes, status: int, says: str):
    async with opened(App("memory://")) as web:
        heads = {"content-type": "application/json"}
        response = await web.client.post("/api/jobs", content=data, headers=heads)

        assert (response.status_code, says in response.json()["detail"]) == (status, True), response.text
        assert await web.app.jobs.count() == []


async def test_a_body_without_a_length_is_bounded_too():
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100_000

    async with opened(App("memory://")) as web:
        response = await web.client.post("/api/bulk", content=endless(), headers={"content-type": "application/json"})
        assert response.status_code == 413


async def test_only_json_is_taken():
    async with opened(App("memory://")) as web:
        for content in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            response = await web.client.post("/api/jobs", content=b'{"task":"x"}', headers={"content-type": content})
            assert response.status_code == 415


async def test_a_method_that_is_not_there_names_those_that_are():
    async with opened(App("memory://")) as web:
        response = await web.ask("DELETE", "/api/jobs", status=405)
        assert response.headers["allow"] == "GET, HEAD, POST"
        assert (await web.ask("TRACE", "/", status=405)).headers["allow"] == "GET, HEAD"
        head = await web.ask("HEAD", "/api/jobs", status=200)
        assert head.content == b""


async def test_a_full_queue_says_how_full(web: Web):
    await web.ask("PATCH", "/api/queues/line", {"max_depth": 1}, 200)
    await web.enqueue(queue="line")

    response = await web.ask("POST", "/api/jobs", {"task": "pack", "queue": "line"}, 429)
    assert response.headers["retry-after"] == "1"
    assert {name: response.json()[name] for name in ("code", "queue", "depth", "max_depth")} == {
        "code": "queue_full",
        "queue": "line",
        "depth": 1,
        "max_depth": 1,
    }


async def test_whoever_finds_no_place_to_wait_has_put_nothing_in():
    async with opened(App("memory://")) as web:
        web.server.waiting._most = 0
        refused = await web.post("/api/jobs", {"task": "pack", "id": "j"}, 503, wait=5)
        assert refused["code"] == "busy"
        await web.get("/api/jobs/j", 404)
        assert (await web.post("/api/jobs", {"task": "pack", "id": "j"}, 201))["outcome"] is None


async def test_a_job_that_is_in_is_told_of_although_the_wait_for_it_fails(monkeypatch: pytest.MonkeyPatch):
    async with opened(App("memory://")) as web:
        store = await web.app.connected()

        async def get(ids: Sequence[str]) -> list[Job | None]:
            raise StoreError("gone")

        monkeypatch.setattr(store, "get", get)
        made = await web.post("/api/jobs", {"task": "pack", "id": "j"}, 201, wait=5)
        assert (made["id"], made["outcome"]) == ("j", None)
        assert web.server.waiting.open == 0


async def test_a_wait_ends_when_the_server_is_to_stop():
    async with opened(App("memory://")) as web:
        putting = asyncio.create_task(web.post("/api/jobs", {"task": "pack", "id": "j"}, 201, wait=60))
        while web.server.waiting.open == 0:
            await asyncio.sleep(0.01)
        asking = asyncio.create_task(web.get("/api/jobs/j/result", 202, wait=60))
        while web.server.waiting.open < 2:
            await asyncio.sleep(0.01)
        web.server.shutdown.set()
        async with asyncio.timeout(50):
            assert (await putting)["outcome"]["finished"] is False
            assert (await asking)["finished"] is False


async def test_an_id_that_is_asked_for_twice_is_answered_once(web: Web):
    await web.enqueue(id="a")
    await web.enqueue(id="b")
    found = await web.get("/api/jobs", id=["b", "a", "b", "nowhere"])
    assert [job["id"] for job in found["jobs"]] == ["b", "a"]


async def test_headers_are_bounded(web: Web):
    refused = await web.post("/api/jobs", {"task": "pack", "headers": {"trace": "x" * 65_536}}, 400)
    assert "the limit is 65,536" in refused["detail"]


async def test_a_write_that_finds_the_store_locked_is_answered_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadline, "SECONDS", 0.3)
    monkeypatch.setattr(self_deadlock, "A_WHILE", 60)  # the lock is in this process, and stands for another's
    async with opened(App(f"sqlite:///{tmp_path}/jobs.db")) as web:
        await web.enqueue(id="j")
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            bodies = (
                ("/api/jobs", {"task": "pack", "id": "k"}),
                ("/api/jobs/j/cancel", None),
                ("/api/queues/default/pause", None),
                ("/api/bulk", {"action": "cancel", "ids": ["j"], "dry_run": False}),
            )
            for path, body in bodies:
                async with asyncio.timeout(15):
                    busy = await web.ask("POST", path, body, 503)
                assert busy.json()["code"] == "busy" and int(busy.headers["retry-after"]) > 0, path
            assert (await web.get("/api/jobs/j"))["state"] == "ready"
            other.execute("ROLLBACK")
        monkeypatch.setattr(deadline, "SECONDS", 30)
        again = await web.ask("POST", "/api/jobs", {"task": "pack", "id": "k"})
        assert again.json()["id"] == "k" and again.json()["status"] in ("queued", "duplicate")


async def test_a_history_is_read_page_by_page(app: App):
    async with opened(app) as web:
        job = await web.enqueue("charge", payload={"card": 1})
        for _ in range(3):
            await run_all(web)
            await web.post(web.job(job, "/replay"))
        whole = await web.get(web.job(job, "/history"))
        assert whole["cursor"] is None and len(whole["steps"]) == 10

        steps: list[Any] = []
        cursor: dict[str, str] | None = {}
        while cursor is not None:
            page = await web.get(web.job(job, "/history"), limit=4, **cursor)
            steps.append(page["steps"])
            cursor = None if page["cursor"] is None else {"cursor": page["cursor"]}
        assert [len(some) for some in steps] == [4, 4, 2]
        assert [step for some in steps for step in some] == whole["steps"]
        assert (await web.get(web.job(job, "/history"), cursor="9:9"))["steps"] == []
        await web.get(web.job(job, "/history"), 400, cursor="nonsense")


async def test_the_history_tells_each_step_and_what_it_changed(app: App):
    async with opened(app) as web:
        job = await web.enqueue("charge", payload={"card": 7})
        await run_all(web)
        await web.post(web.job(job, "/replay"))

        steps = (await web.get(web.job(job, "/history")))["steps"]
        assert [step["event"]["kind"] for step in steps] == ["enqueued", "claimed", "buried", "replayed"]
        changed = {one["fact"]: (one["before"], one["after"]) for one in steps[1]["changes"]}
        assert changed["state"] == ("waiting", "running") and changed["attempt"] == (0, 1)

        diff = await web.get(web.job(job, "/history/diff"), **{"from": "1", "to": "1:3"})
        assert diff["from"]["kind"] == "enqueued" and diff["to"]["kind"] == "buried"
        assert {"state", "attempt", "failures", "error", "reason"} <= {one["fact"] for one in diff["changes"]}
        assert "no such event" in (await web.get(web.job(job, "/history/diff"), 400, to="9"))["detail"]
        assert (await web.get(web.job("nowhere", "/history"), 404))["code"] == "not_found"


async def test_the_reasons_why_a_job_waits_are_the_command_lines_own(
    web: Web, url: str, monkeypatch: pytest.MonkeyPatch
):
    await web.enqueue(id="later", delay="1h")
    await web.enqueue(id="child", after=["later"])
    await web.post("/api/queues/default/pause", {})

    why = await web.get(web.job("child", "/why"))

    assert [reason["code"] for reason in why["reasons"]] == ["queue_paused", "blocked", "no_worker"]
    assert why["reasons"][0]["command"] == "millrace resume default"
    if not url.startswith("memory"):
        told = await asyncio.to_thread(Stage(monkeypatch), "--url", url, "status", "child", "--json")
        texts = [
            one["text"] if one["command"] is None else f"{one['text']}: {one['command']}" for one in why["reasons"]
        ]
        assert json.loads(told.out)["why"] == texts


async def test_what_the_api_shows_is_what_the_command_line_shows(web: Web, url: str, monkeypatch: pytest.MonkeyPatch):
    if url.startswith("memory"):
        return  # lives in one process, and the command would open another
    job = await web.enqueue(payload={"n": [1, {"a": None}]}, priority=3)
    shown = await web.get(web.job(job))
    told = json.loads((await asyncio.to_thread(Stage(monkeypatch), "--url", url, "status", job, "--json")).out)
    told.pop("why")
    assert told == shown
    listed = json.loads((await asyncio.to_thread(Stage(monkeypatch), "--url", url, "list", "--json")).out)
    assert listed["jobs"] == (await web.get("/api/jobs"))["jobs"]
