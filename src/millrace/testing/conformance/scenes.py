"""Helpers of the conformance tests: short functions for common operations on any store."""

from __future__ import annotations

from typing import Any

from millrace.domain.change import Change
from millrace.domain.job import Job, Spec
from millrace.domain.request import Query, QueueCounts, Receipt
from millrace.domain.settings import QueueSettings
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_claim, a_retry_change, a_spec, settings_in_seconds


async def put(store: Store, **spec: Any) -> Spec:
    """Enqueue one job and return its spec. Fails if the job is a duplicate."""
    made = a_spec(**spec)
    [answer] = await store.enqueue([made])
    assert answer.status == "queued"
    return made


async def take(store: Store, **claim: Any) -> Job:
    """Claim one job and return it. Fails if the claim returns none."""
    [job] = await store.claim(a_claim(**claim))
    return job


async def take_ids(store: Store, limit: int = 100, **claim: Any) -> list[str]:
    """Claim up to `limit` jobs and return their ids, in the order of the claim."""
    return [job.id for job in await store.claim(a_claim(limit, **claim))]


async def settle(store: Store, job: Job, change: Change) -> Receipt:
    [receipt] = await store.settle([(job.lease, change)])
    return receipt


async def finish(store: Store, job: Job, change: Change) -> None:
    assert await settle(store, job, change) is Receipt.OK


async def complete(store: Store, job: Job, result: bytes | None = None) -> None:
    await finish(store, job, Change.completed(result))


async def retry(store: Store, job: Job, delay: float = 0) -> None:
    await finish(store, job, a_retry_change(delay))


async def bury(store: Store, job: Job, reason: str = "explicit_fail") -> None:
    await finish(store, job, a_burial(reason))


async def put_running(store: Store, **spec: Any) -> Job:
    made = await put(store, **spec)
    return await take(store, queue=made.queue)


async def put_completed(store: Store, result: bytes | None = None, **spec: Any) -> Spec:
    made = await put(store, **spec)
    await complete(store, await take(store, queue=made.queue), result)
    return made


async def put_dead(store: Store, **spec: Any) -> Spec:
    made = await put(store, **spec)
    await bury(store, await take(store, queue=made.queue))
    return made


async def put_cancelled(store: Store, **spec: Any) -> Spec:
    made = await put(store, **spec)
    await store.cancel([made.id])
    return made


async def show(store: Store, job: Spec | Job | str) -> Job:
    """Return the current record of a job. Fails if there is none."""
    [found] = await store.get([job if isinstance(job, str) else job.id])
    assert found is not None
    return found


async def gone(store: Store, job: Spec | Job | str) -> bool:
    return await store.get([job if isinstance(job, str) else job.id]) == [None]


async def kinds(store: Store, job: Spec | Job | str) -> list[str]:
    """Return the kinds of a job's events, oldest first."""
    events = await store.history(job if isinstance(job, str) else job.id)
    return [event.kind.value for event in events]


async def control(store: Store, queue: str = "default", **changes: Any) -> QueueSettings:
    """Change settings of a queue and return all of its settings. Durations in `changes` are in seconds."""
    settings = await store.control("queue", queue, settings_in_seconds(changes))
    assert isinstance(settings, QueueSettings)
    return settings


async def count(store: Store, queue: str = "default") -> QueueCounts:
    found = {counts.queue: counts for counts in await store.count()}
    return found.get(queue, QueueCounts(queue))


async def found(store: Store, **query: Any) -> list[str]:
    """Return the ids of all jobs that match a query, from all pages."""
    ids: list[str] = []
    cursor = None
    while True:
        page = await store.find(Query(cursor=cursor, **query))
        ids += [job.id for job in page.jobs]
        if page.cursor is None:
            return ids
        cursor = page.cursor
