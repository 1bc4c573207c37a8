"""What type checkers must see of `app.sync`, `task.sync` and `within`; see test_public_api.py for how it works."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, assert_type

from millrace import App, Cancelled, Context, Event, JobStatus, SyncJobHandle

ROOT = Path(__file__).resolve().parents[2]

app = App("memory://")


@app.task
async def send(to: str, copies: int = 1) -> str:
    return to * copies


@app.task
def watched(ctx: Context, name: str) -> list[int]:
    return [ctx.attempt, len(name)]


def a_task_keeps_its_types_without_an_event_loop(conn: sqlite3.Connection) -> None:
    assert_type(send.sync.enqueue("ada", copies=2), SyncJobHandle[str])
    assert_type(send.sync.call("ada"), str)
    assert_type(watched.sync.call(name="ada"), list[int])
    assert_type(send.sync.enqueue_many([("ada",), {"to": "bob"}]), list[SyncJobHandle[str]])
    assert_type(send.options(delay="1m", within=conn).sync.enqueue("ada"), SyncJobHandle[str])

    send.sync.enqueue(7)  # type: ignore[arg-type]
    send.sync.call()  # type: ignore[call-arg]
    watched.sync.enqueue("context", "ada")  # type: ignore[call-arg]
    send.sync.later("ada")  # type: ignore[attr-defined]


def operators_get_what_they_ask_for(conn: sqlite3.Connection) -> None:
    job = send.sync.enqueue("ada")
    assert_type(app.sync.jobs.get(job), JobStatus | None)
    assert_type(app.sync.jobs.get([job, "id"]), list[JobStatus | None])
    assert_type(app.sync.jobs.cancel(job), Cancelled)
    assert_type(app.sync.jobs.cancel(["id"], running="request"), list[Cancelled])
    assert_type(app.sync.queue("mail").pause().paused, bool)
    assert_type(app.sync.enqueue([send.spec("ada")], within=conn), list[SyncJobHandle[Any]])
    assert_type(app.sync.run(send.call("ada")), str)
    for found in app.sync.jobs.find(queue="mail", limit=3):
        assert_type(found, JobStatus)
    for event in app.sync.events(follow=False):
        assert_type(event, Event)

    app.sync.jobs.find(state=3)  # type: ignore[arg-type]
    app.sync.queue("mail").set(depth=3)  # type: ignore[call-arg]


async def a_handler_completes_within(ctx: Context, conn: sqlite3.Connection) -> None:
    assert_type(await ctx.complete("done", within=conn), None)
    ctx.complete_sync("done", within=conn)

    await ctx.complete("done")  # type: ignore[call-arg]


def test_mypy_agrees_with_this_file() -> None:
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(Path(__file__))]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
