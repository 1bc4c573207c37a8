"""What the store of the shop says, asked beside the server, and what happens in it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from millrace import App
from millrace.domain.job import Job, Spec
from millrace.domain.settings import QueueSettings

T = TypeVar("T")


def asked(url: str, question: Callable[[App], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with App(url) as app:
            return await question(app)

    return asyncio.run(ask())


def job(url: str, job_id: str) -> Job:
    found = asked(url, lambda app: app.jobs.get(job_id))
    assert found is not None
    return found.record


def states(url: str, ids: Sequence[str]) -> list[str]:
    return [str(one.record.state) for one in asked(url, lambda app: app.jobs.get(ids)) if one is not None]


def jobs_of(url: str, *, queue: str, state: str) -> list[str]:
    async def found(app: App) -> list[str]:
        return sorted([one.id async for one in app.jobs.find(queue=queue, state=state)])

    return asked(url, found)


def settings(url: str, queue: str) -> QueueSettings:
    return asked(url, lambda app: app.queue(queue).settings())


def put(url: str, *ids: str, task: str = "send_mail", queue: str = "mail", tags: tuple[str, ...] = ()) -> None:
    specs = [Spec(job_id, task, queue, b"{}", token=f"put {job_id}", tags=tags) for job_id in ids]
    asked(url, lambda app: app.enqueue(specs))
