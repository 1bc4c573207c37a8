"""What the document promises of an answer is what is answered: every field of it, and no other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace import App
from millrace.domain.request import WorkerInfo
from millrace.web import given
from tests.web.stage import opened


def fields(kind: type[Any]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


async def answers() -> dict[type[Any], Any]:
    app = App("memory://")

    @app.task(name="pack", queue="line", max_attempts=1)
    async def pack() -> None:
        raise ValueError("no")

    @app.pool("orders", lanes=2)
    async def take(order: int) -> None: ...

    app.cron("0 3 * * *", name="nightly")(pack)
    async with opened(app) as web:
        await app.prepared()
        store = await app.connected()
        await store.beat(WorkerInfo("w-1"), 60_000)
        await web.post("/api/schedules/nightly/pause")
        job = await web.enqueue("pack", id="j")
        await app.worker(["line"], burst=True).run(handle_signals=False)
        await take.enqueue(order=1)
        history = await web.get("/api/jobs/j/history")
        queue = await web.get("/api/queues/orders")
        pool = await web.get("/api/pools/orders")
        dead = await web.get("/api/dead")
        return {
            given.Job: await web.get(web.job(job)),
            given.Jobs: await web.get("/api/jobs"),
            given.ListedJob: (await web.get("/api/jobs"))["jobs"][0],
            given.Attempt: (await web.get(web.job(job)))["attempts"][0],
            given.Failure: (await web.get(web.job(job)))["error"],
            given.Outcome: await web.get("/api/jobs/j/result"),
            given.Why: await web.get("/api/jobs/j/why"),
            given.History: history,
            given.Event: history["steps"][0]["event"],
            given.Changed: history["steps"][0]["changes"][0],
            given.Difference: await web.get("/api/jobs/j/history/diff"),
            given.Counts: (await web.get("/api/queues"))["queues"][0],
            given.Queue: queue,
            given.Settings: queue["settings"],
            given.Lane: queue["lanes"][0],
            given.Pool: pool,
            given.PoolLane: pool["lanes"][0],
            given.Dead: dead,
            given.Cause: dead["causes"][0],
            given.Worker: (await web.get("/api/workers"))["workers"][0],
            given.Schedule: await web.get("/api/schedules/nightly"),
            given.Overview: await web.get("/api/overview"),
            given.Redaction: await web.get("/api/redaction"),
            given.AuditEntry: (await web.get("/api/audit"))["entries"][0],
            given.Health: await web.get("/health"),
            given.Who: await web.get("/api/me"),
            given.Enqueued: await web.post("/api/jobs", {"task": "pack"}, 201),
            given.Bulk: await web.post("/api/bulk", {"action": "cancel", "filter": {"queue": "orders"}}),
            given.Problem: await web.get("/api/jobs/nowhere", 404),
        }


async def test_every_field_is_told_of_and_every_one_told_of_is_there():
    for kind, answer in (await answers()).items():
        assert set(answer) == fields(kind), kind
        msgspec.convert(answer, kind)


def test_a_value_that_does_not_fit_would_be_found():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"role": "boss", "name": "x"}, given.Who)
