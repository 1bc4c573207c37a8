"""What the document promises of an answer is what is answered: every field of it, and no other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millrace import App
from millrace.domain.request import WorkerInfo
from millrace.views.causes import CauseView
from millrace.views.job_view import AttemptView, ErrorView, JobSummary, JobView
from millrace.views.queue_view import CountsView, LaneView, PoolLaneView, PoolView, QueueView, SettingsView
from millrace.views.timeline import ChangeView, EventView
from millrace.views.worker_view import ScheduleView, WorkerView
from millrace.web import responses
from millrace.web.audit import AuditEntry
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
            JobView: await web.get(web.job(job)),
            responses.JobList: await web.get("/api/jobs"),
            JobSummary: (await web.get("/api/jobs"))["jobs"][0],
            AttemptView: (await web.get(web.job(job)))["attempts"][0],
            ErrorView: (await web.get(web.job(job)))["error"],
            responses.JobResult: await web.get("/api/jobs/j/result"),
            responses.WaitReasons: await web.get("/api/jobs/j/why"),
            responses.JobHistory: history,
            EventView: history["steps"][0]["event"],
            ChangeView: history["steps"][0]["changes"][0],
            responses.HistoryDifference: await web.get("/api/jobs/j/history/diff"),
            CountsView: (await web.get("/api/queues"))["queues"][0],
            QueueView: queue,
            SettingsView: queue["settings"],
            LaneView: queue["lanes"][0],
            PoolView: pool,
            PoolLaneView: pool["lanes"][0],
            responses.CauseList: dead,
            CauseView: dead["causes"][0],
            WorkerView: (await web.get("/api/workers"))["workers"][0],
            ScheduleView: await web.get("/api/schedules/nightly"),
            responses.Overview: await web.get("/api/overview"),
            responses.RedactionRule: await web.get("/api/redaction"),
            AuditEntry: (await web.get("/api/audit"))["entries"][0],
            responses.Health: await web.get("/health"),
            responses.CallerInfo: await web.get("/api/me"),
            responses.EnqueuedJob: await web.post("/api/jobs", {"task": "pack"}, 201),
            responses.BulkResult: await web.post("/api/bulk", {"action": "cancel", "filter": {"queue": "orders"}}),
            responses.ProblemDetails: await web.get("/api/jobs/nowhere", 404),
        }


async def test_every_field_is_told_of_and_every_one_told_of_is_there():
    for kind, answer in (await answers()).items():
        assert set(answer) == fields(kind), kind
        msgspec.convert(answer, kind)


def test_a_value_that_does_not_fit_would_be_found():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"role": "boss", "name": "x"}, responses.CallerInfo)
