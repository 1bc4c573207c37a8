"""A store with something of everything in it: jobs in every state, errors, workers, odd characters."""

from __future__ import annotations

from millrace.domain.change import Change
from millrace.domain.event import Event
from millrace.domain.job import Job, Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim, WorkerInfo
from millrace.store.protocol import Store

ERROR = Failure("ValueError", "no such address: 'ä'\n\t\"x\"", "Traceback …\n  line 1")


async def fill(store: Store, jobs: int = 20) -> None:
    """Of every five: one completed, one dead, one in backoff, one cancelled, one that waits."""
    specs = [
        Spec(
            f"job-{number}",
            "send" if number % 2 else "pack",
            "mail" if number % 3 else "parcels",
            payload=f'{{"n": {number}, "to": "ä"}}'.encode(),
            priority=number % 4,
            group=f"customer {number % 3}" if number % 7 == 0 else None,
            headers={"trace": f"t{number}"} if number % 5 == 0 else None,
        )
        for number in range(jobs)
    ]
    await store.enqueue(specs)
    await store.beat(
        WorkerInfo("w-1", ("mail", "parcels"), ("send", "pack"), 4, host="here", pid=7, version="1"), 60_000
    )
    await store.cancel([spec.id for spec in specs if int(spec.id[4:]) % 5 == 3])
    claimed = await store.claim(Claim(("mail", "parcels"), "w-1", limit=jobs))
    while claimed:
        await store.settle([(job.lease, _end(job)) for job in claimed])
        claimed = await store.claim(Claim(("mail", "parcels"), "w-1", limit=jobs))
    await store.enqueue([Spec("later", "send", "mail", delay=3_600_000, after=("job-0",))])
    await store.archive(["job-0"])


def _end(job: Job) -> Change:
    match int(job.id[4:]) % 5:
        case 1:
            return Change.bury(ERROR, "explicit_fail")
        case 2:
            return Change.retry(ERROR, delay=3_600_000)
        case _:
            return Change.completed(b'{"ok": true}')


async def all_events(store: Store) -> list[Event]:
    found: list[Event] = []
    for span in await store.event_spans(None, 1):
        async for events in store.scan_events(span):
            found += events
    return found


async def all_jobs(store: Store) -> list[Job]:
    return [job for part in await store.partitions(4) async for jobs in store.scan(part) for job in jobs]
