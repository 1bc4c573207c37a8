"""A store with jobs in all states, and a second store to move them to or from."""

from __future__ import annotations

import msgspec

from millrace.domain.change import Change
from millrace.domain.export import Exported, ExportedHold, comparable, identity
from millrace.domain.request import Extension
from millrace.domain.schedule import Move, Schedule
from millrace.domain.settings import Closing
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_claim, a_failure, a_retry_change, a_spec, seconds
from millrace.testing.clock import VirtualClock

SOURCE = Closing("a-move", "source", "frozen", "memory://target", ("paused",))
TARGET = Closing("a-move", "target", "empty", "memory://source")


async def close(store: Store, why: Closing | None) -> None:
    await store.control("store", "", {"closed": why})


async def change_stage(store: Store, was: Closing | None, why: Closing | None) -> None:
    await store.control("store", "", {"closed": why, "closed_was": was})


async def exported(store: Store, batch: int = 100) -> list[Exported]:
    """Return all records of a store."""
    found: list[Exported] = []
    cursor: str | None = None
    while True:
        page = await store.export(cursor, batch)
        found += page.records
        if page.cursor is None:
            return found
        cursor = page.cursor


async def compared(store: Store) -> list[Exported]:
    """Return all records of a store without seqs, as two stores with the same jobs have them. The order of keys is not
    defined.
    """
    found = [comparable(record) for record in await exported(store)]
    holds = sorted([record for record in found if isinstance(record, ExportedHold)], key=identity)
    return [*(record for record in found if not isinstance(record, ExportedHold)), *holds]


async def move(source: Store, target: Store, batch: int = 100) -> int:
    """Copy everything and open the target. Return how many records were new."""
    await close(source, SOURCE)
    await close(target, TARGET)
    new = 0
    cursor: str | None = None
    while True:
        page = await source.export(cursor, batch)
        new += await target.import_records(page.records, TARGET.move)
        if page.cursor is None:
            break
        cursor = page.cursor
    await close(target, None)
    return new


async def fill(store: Store, clock: VirtualClock, rounds: int = 1) -> None:
    """Fill a store with jobs in all states and of all kinds, `rounds` times. No job runs at the end."""
    await _settings(store)
    for number in range(rounds):
        await _fill_once(store, clock, f"{number}-")


async def _settings(store: Store) -> None:
    await store.control("queue", "pool", {"lanes": 3})
    await store.control("queue", "pool", {"paused_lanes": (2,)})
    await store.control("queue", "paused", {"paused": True})
    await store.control("queue", "limited", {"max_running": 5, "rate": 100.0, "keep_dead": None, "auto_retries": 2})
    await store.control("queue", "fair", {"fair_share": 0.25})
    await store.control("task", "work", {"max_running": 50})
    await store.control("store", "", {"keep_events": seconds(86_400)})
    record = Schedule("nightly", "0 3 * * *", "UTC", "work", "default", "skip", 0, "digest", 0, next_tick=10)
    of_customer = msgspec.structs.replace(record, name="of-customer", template=a_spec(id="tick", token=""))
    await store.advance([Move("nightly", 0, record), Move("of-customer", 0, of_customer)])


async def _fill_once(store: Store, clock: VirtualClock, name: str) -> None:
    await _ended(store, clock, name)
    await _retried(store, clock, name)
    await _lines(store, clock, name)
    await _dependent(store, clock, name)
    await store.enqueue(
        [
            a_spec(id=f"{name}plain-{n}", queue=queue, priority=n % 3, payload=b'{"n":1}')
            for n, queue in enumerate(("default", "paused", "limited", "fair", "default", "default"))
        ]
    )
    clock.advance(1)
    await store.enqueue(
        [a_spec(id=f"{name}later", delay=3600, expires=7200), a_spec(id=f"{name}binary", payload=b"\xff")]
    )
    clock.advance(1)


async def _ended(store: Store, clock: VirtualClock, name: str) -> None:
    """Completed, dead, cancelled, archived and deleted jobs, an id that was used twice, and unique keys."""
    queue = f"{name}ended"
    ids = ["done", "forever", "dead", "shown", "gone", "again", "kept"]
    keys = {"kept": {"key": f"{name}kept", "scope": "retained"}, "forever": {"keep_result": None}}
    await store.enqueue([a_spec(id=name + each, queue=queue, **keys.get(each, {})) for each in ids])  # type: ignore[arg-type]
    logged = Change.completed(b"7", log=b'[{"text":"kept"}]')
    changes = {"dead": a_burial(), "shown": a_burial("timeout"), "again": a_burial(), "forever": logged}
    for job in await store.claim(a_claim(len(ids), queue=queue)):
        clock.advance(1)
        change = changes.get(job.id.removeprefix(name), Change.completed(b'{"sum":3}'))
        await store.settle([(job.lease, change)])
    await store.archive([f"{name}shown"])
    await store.delete([f"{name}gone"])
    await store.enqueue([a_spec(id=f"{name}again", queue=queue, headers={"trace": "1"})])
    await store.enqueue([a_spec(id=f"{name}cancelled", queue=queue, key=f"{name}free")])
    await store.cancel([f"{name}cancelled"])
    window = {"key": f"{name}window", "scope": "window", "window": 3600}
    await store.enqueue([a_spec(id=f"{name}window", queue=queue, **window), a_spec(id=f"{name}held", key=f"{name}k")])
    await store.cancel([f"{name}window"])
    await store.delete([f"{name}window"])


async def _retried(store: Store, clock: VirtualClock, name: str) -> None:
    """Jobs in backoff, snoozed, released and replayed, which have reported progress."""
    await store.enqueue(
        [a_spec(id=name + each, queue=f"{name}tried") for each in ("retried", "snoozed", "released", "replayed")]
    )
    for job in await store.claim(a_claim(10, queue=f"{name}tried")):
        clock.advance(1)
        await store.settle([(job.lease, a_retry_change(600, f"broken {job.id}"))])
    clock.advance(601)
    changes = {
        "retried": a_retry_change(1200),
        "snoozed": Change.snooze(seconds(900)),
        "released": Change.release(0),
        "replayed": Change.bury(a_failure("bad"), "explicit_fail"),
    }
    for job in await store.claim(a_claim(10, queue=f"{name}tried")):
        clock.advance(1)
        await store.extend([Extension(job.lease, progress=b"50%")])
        await store.settle([(job.lease, changes[job.id.removeprefix(name)])])
    await store.replay([f"{name}replayed"])


async def _lines(store: Store, clock: VirtualClock, name: str) -> None:
    """Groups and lanes with waiting, delayed, ended and blocking members."""
    for group in ("a", "b"):
        await store.enqueue([a_spec(id=f"{name}{group}-{n}", queue="grouped", group=name + group) for n in range(4)])
    await store.enqueue([a_spec(id=f"{name}a-first", queue="grouped", group=f"{name}a", priority=5)])
    await store.enqueue([a_spec(id=f"{name}a-late", queue="grouped", group=f"{name}a", delay=5000)])
    for job in await store.claim(a_claim(2, queue="grouped")):
        change = Change.completed() if job.id.startswith(f"{name}a") else a_retry_change(7200)
        await store.settle([(job.lease, change)])
    await store.enqueue([a_spec(id=f"{name}lane-{n}", queue="pool", group=f"customer {n % 5}") for n in range(10)])
    for job in await store.claim(a_claim(2, queue="pool")):
        await store.settle([(job.lease, Change.completed())])
    clock.advance(1)


async def _dependent(store: Store, clock: VirtualClock, name: str) -> None:
    """Jobs that wait for others, that died with them, and whose parents have ended."""
    queue = f"{name}family"
    await store.enqueue(
        [
            a_spec(id=f"{name}parent", queue=queue),
            a_spec(id=f"{name}second", queue=queue, delay=600),
            a_spec(id=f"{name}child", queue=queue, after=(f"{name}parent", f"{name}second")),
            a_spec(id=f"{name}grandchild", queue=queue, after=(f"{name}child",)),
            a_spec(id=f"{name}missing", queue=queue, after=(f"{name}nobody",), allow_missing=True),
        ]
    )
    [parent] = await store.claim(a_claim(1, queue=queue))
    carried = (a_spec(id=f"{name}carried", queue=queue, delay=60),)
    await store.settle([(parent.lease, Change.completed(b"[1]", jobs=carried))])
    await store.enqueue([a_spec(id=f"{name}failing", queue=queue), a_spec(id=f"{name}victim", queue=queue)])
    await store.enqueue([a_spec(id=f"{name}dies", queue=queue, after=(f"{name}failing",))])
    await store.enqueue([a_spec(id=f"{name}patient", queue=queue, after=(f"{name}failing",), on_dependency="wait")])
    [failing] = await store.claim(a_claim(1, queue=queue))
    await store.settle([(failing.lease, a_burial())])
    clock.advance(1)
