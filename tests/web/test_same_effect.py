"""Each action over HTTP leaves a store as its command leaves it: the two are tried on stores that are alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace import App
from millrace.web.routes import OPERATIONS
from tests.cli.stage import Stage
from tests.web.stage import opened

LINES = '{"n": 1}\n{"n": 2}\n'
# route: what is sent, what is typed, and what is typed into it
ACTIONS: dict[str, tuple[tuple[str, str, Any], list[str], str]] = {
    "enqueueJob": (
        ("POST", "/api/jobs", {"task": "pack", "id": "new", "payload": {"n": 1}, "queue": "line", "delay": "1h"}),
        ["submit", "pack", '{"n": 1}', "--id", "new", "--queue", "line", "--delay", "1h"],
        "",
    ),
    "enqueueJobs": (
        (
            "POST",
            "/api/batch",
            {"jobs": [{"task": "pack", "payload": {"n": 1}}, {"task": "pack", "payload": {"n": 2}}]},
        ),
        ["submit", "pack", "-", "--many"],
        LINES,
    ),
    "cancelJob": (("POST", "/api/jobs/one/cancel", None), ["cancel", "one"], ""),
    "replayJob": (("POST", "/api/jobs/gone/replay", None), ["replay", "gone"], ""),
    "archiveJob": (("POST", "/api/jobs/gone/archive", None), ["archive", "gone"], ""),
    "unarchiveJob": (("POST", "/api/jobs/hidden/unarchive", None), ["unarchive", "hidden"], ""),
    "deleteJob": (("POST", "/api/jobs/gone/delete", None), ["delete", "gone"], ""),
    "actOnJobs": (
        ("POST", "/api/bulk", {"action": "cancel", "filter": {"queue": "line"}, "dry_run": False, "expect": 3}),
        ["cancel", "--queue", "line", "--yes"],
        "",
    ),
    "cancelFlow": (("POST", "/api/flows/summer/cancel", None), ["flow", "summer", "--cancel"], ""),
    "replayFlow": (("POST", "/api/flows/winter/replay", None), ["flow", "winter", "--replay"], ""),
    "changeQueue": (
        ("PATCH", "/api/queues/line", {"max_running": 3, "keep_dead": "2d", "rate": None}),
        ["queues", "line", "--set", "max_running=3", "--set", "keep_dead=2d", "--set", "rate=none"],
        "",
    ),
    "pauseQueue": (("POST", "/api/queues/line/pause", None), ["pause", "line"], ""),
    "resumeQueue": (("POST", "/api/queues/stopped/resume", None), ["resume", "stopped"], ""),
    "drainQueue": (("POST", "/api/queues/line/drain", {"dry_run": False}), ["drain", "line", "--yes"], ""),
    "obliterateQueue": (
        ("POST", "/api/queues/line/obliterate", {"dry_run": False, "confirm": "line"}),
        ["obliterate", "line", "--force"],
        "",
    ),
    "pauseSchedule": (("POST", "/api/schedules/nightly/pause", None), ["schedules", "nightly", "--pause"], ""),
    "resumeSchedule": (("POST", "/api/schedules/weekly/resume", None), ["schedules", "weekly", "--resume"], ""),
    "putSchedule": (
        ("PUT", "/api/schedules/new", {"task": "pack", "payload": {"n": 7}, "every": "1h", "queue": "line"}),
        ["schedule", "new", "pack", '{"n": 7}', "--every", "1h", "--queue", "line"],
        "",
    ),
    "removeSchedule": (("DELETE", "/api/schedules/weekly", None), ["schedules", "weekly", "--remove", "--yes"], ""),
}


def an_app(url: str) -> App:
    app = App(url)

    @app.task(name="pack", queue="line")
    async def pack(n: int = 0) -> int:
        return n

    app.cron("0 3 * * *", name="nightly")(pack)
    app.cron("0 3 * * 0", name="weekly")(pack)
    return app


async def prepare(app: App) -> None:
    pack = app.tasks["pack"]
    for job_id in ("one", "two", "gone", "hidden"):
        await pack.options(id=job_id).enqueue()
    await pack.options(id="other", queue="stopped").enqueue()
    await app.jobs.cancel(["gone", "hidden"])
    await app.jobs.archive("hidden")
    await app.chain(pack.options(queue="flows").spec(n=1), pack.options(queue="flows")).enqueue(id="summer")
    await app.chain(pack.options(queue="flows").spec(n=2), pack.options(queue="flows")).enqueue(id="winter")
    await app.flows.handle("winter").cancel()
    await app.queue("stopped").pause()
    await app.queue("line").set(rate=5)
    for name in ("nightly", "weekly"):
        await app.schedules.pause(name)
    await app.schedules.resume("nightly")


async def facts(app: App) -> Any:
    """What both must agree on; generated ids and instants differ."""
    jobs = [job.record async for job in app.jobs.find(archived=None)]
    kinds: list[str] = []
    async for event in app.events(follow=False):
        kinds.append(f"{event.kind} {event.queue}")
    return {
        "jobs": sorted(
            (job.id if len(job.id) < 30 else "", job.queue, job.state, job.archived, job.payload, job.spec.delay)
            for job in jobs
        ),
        "settings": [await app.queue(name).settings() for name in ("line", "stopped")],
        "schedules": [(one.name, one.paused, one.digest) for one in await app.schedules.page()],
        "events": sorted(kinds),
    }


def test_every_action_is_tried():
    assert set(ACTIONS) == {route.name for route in OPERATIONS if route.changes}


@pytest.mark.parametrize("name", ACTIONS)
async def test_the_route_and_the_command_do_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (method, path, body), typed, stdin = ACTIONS[name]
    found = []
    for way in ("sent", "typed"):
        url = f"sqlite:///{tmp_path}/{way}.db"
        app = an_app(url)
        async with opened(app) as web:
            await prepare(app)
            before = await facts(app)
            if way == "sent":
                response = await web.ask(method, path, body)
                assert response.status_code in (200, 201), response.text
            else:
                cli = Stage(monkeypatch)
                ran = await asyncio.to_thread(cli, *typed, "--url", url, stdin=stdin, ok=False)
                assert ran.code == 0, ran
            after = await facts(app)
        assert after != before
        found.append(after)
    sent, done = found
    if name in ("enqueueJobs", "enqueueJob"):  # the command has no code at hand here, so its jobs go to `default`
        sent, done = (_without_place(one) for one in (sent, done))
    assert sent == done


def _without_place(found: Any) -> Any:
    return {**found, "jobs": [(job_id, *rest) for job_id, _, *rest in found["jobs"]], "events": len(found["events"])}
