"""Every operation of a store that writes, each on a stage where it has much to do.

A scenario is chosen so that asking again for the same thing, after its effect, changes nothing more: then a store
that was interrupted anywhere and asked again must look exactly as if nothing had happened to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.domain.change import Change
from millrace.domain.job import Lease
from millrace.domain.schedule import Move, Schedule
from millrace.store.protocol import Store
from millrace.testing.builders import (
    a_burial,
    a_claim,
    a_failure,
    a_reclaim,
    a_retry_change,
    a_spec,
    a_worker,
    an_extension,
    hours,
    minutes,
)
from millrace.testing.clock import START, VirtualClock

Leases = list[Lease]
Prepare = Callable[[Store, VirtualClock], Awaitable[Leases]]
Act = Callable[[Store, Leases], Awaitable[Any]]


@dataclass(frozen=True)
class Scenario:
    """`prepare` sets the stage and answers the leases it holds, `act` is the one call under test."""

    name: str
    prepare: Prepare
    act: Act


SCENARIOS: dict[str, Scenario] = {}


def scenario(prepare: Prepare) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        SCENARIOS[act.__name__] = Scenario(act.__name__, prepare, act)
        return act

    return register


def spec(name: str, **more: Any) -> Any:
    return a_spec(id=name, token=f"token-{name}", **more)


# ── stages ────────────────────────────────────────────────────────────────────────────────────


async def empty(store: Store, clock: VirtualClock) -> Leases:
    return []


async def busy(store: Store, clock: VirtualClock) -> Leases:
    """A bit of everything that waits, and nothing that runs."""
    await store.control("queue", "pool", {"lanes": 3})
    await store.control("queue", "slow", {"max_running": 2, "rate": 5.0, "burst": 2})
    await store.control("queue", "default", {"on_empty": "sweep"})
    await store.control("task", "work", {"max_running": 100})
    jobs = [
        spec("parent", on_dead_letter="mourn"),
        spec("child", after=("parent",), on_dead_letter="mourn"),
        spec("grandchild", after=("child",)),
        spec("first", group="g", key="once"),
        spec("second", group="g", priority=2),
        spec("third", group="g", delay=30),
        spec("plain", priority=5, expires=120),
        *(spec(f"lane{number}", queue="pool", group=f"key{number}") for number in range(4)),
        *(spec(f"slow{number}", queue="slow") for number in range(4)),
    ]
    await store.enqueue(jobs)
    clock.advance(1)
    return []


async def running(store: Store, clock: VirtualClock) -> Leases:
    """The same, with everything that can be claimed claimed, in a known order."""
    await busy(store, clock)
    await store.beat(a_worker("worker", slots=20), minutes(1))
    jobs = await store.claim(a_claim(20, queues=("default", "pool", "slow"), lease=10))
    clock.advance(1)
    return [job.lease for job in sorted(jobs, key=lambda job: job.seq)]


async def running_unwatched(store: Store, clock: VirtualClock) -> Leases:
    """Without the hook that tells of an empty queue, which is a job of that queue itself."""
    leases = await running(store, clock)
    await store.control("queue", "default", {"on_empty": None})
    return leases


async def lapsed(store: Store, clock: VirtualClock) -> Leases:
    leases = await running(store, clock)
    clock.advance(15)
    return leases


async def ended(store: Store, clock: VirtualClock) -> Leases:
    """Jobs in every final state, some of them past their retention, their windows and their auto-retry."""
    await store.control("queue", "default", {"dead_cap": 2, "keep_completed": hours(1), "keep_dead": hours(3)})
    await store.control("queue", "again", {"auto_retries": 2, "auto_retry_delay": minutes(1)})
    await store.control("store", "", {"keep_events": hours(2)})
    await store.enqueue([spec(f"old{number}", window=60, key=f"k{number}", scope="window") for number in range(6)])
    await store.enqueue([spec("back", queue="again"), spec("late", expires=60, delay=30)])
    jobs = await store.claim(a_claim(20, queues=("default", "again")))
    ends = [Change.completed(b"1"), a_burial(), a_burial(), a_burial(), Change.completed(b"2"), Change.cancel()]
    await store.settle([(job.lease, change) for job, change in zip(jobs, [*ends, a_burial()], strict=True)])
    clock.advance(hours(2) / 1000 + 60)
    await store.enqueue([spec("parent"), spec("child", after=("parent",)), spec("keyed", key="k", group="g")])
    await store.cancel(["keyed"])
    await store.archive(["old1"])
    return []


# ── producers ─────────────────────────────────────────────────────────────────────────────────


@scenario(empty)
async def enqueue_one(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec("one")])


@scenario(busy)
async def enqueue_many(store: Store, leases: Leases) -> Any:
    return await store.enqueue(
        [
            spec("new-child", after=("new-parent", "parent")),
            spec("new-parent"),
            spec("kept", key="once"),
            spec("taker", key="once", on_hit="replace", group="g"),
            spec("member", group="g", priority=3),
            spec("laned", queue="pool"),
            spec("later", delay=60, expires=90, queue="another"),
            *(spec(f"bulk{number}", priority=number % 3) for number in range(30)),
        ]
    )


@scenario(ended)
async def enqueue_a_new_generation(store: Store, leases: Leases) -> Any:
    return await store.enqueue(
        [a_spec(id="old1", token="again"), a_spec(id="keyed", token="again", key="k", group="g")]
    )


# ── consumers ─────────────────────────────────────────────────────────────────────────────────


@scenario(busy)
async def claim(store: Store, leases: Leases) -> Any:
    return await store.claim(a_claim(20, queues=("default", "pool", "slow"), lease=10))


@scenario(running)
async def complete(store: Store, leases: Leases) -> Any:
    return await store.settle([(leases[0], Change.completed(b'"done"'))])


@scenario(running)
async def retry(store: Store, leases: Leases) -> Any:
    return await store.settle([(leases[1], a_retry_change(delay=5))])


@scenario(running)
async def bury_with_hook_and_dependents(store: Store, leases: Leases) -> Any:
    return await store.settle([(leases[0], a_burial())])


@scenario(running)
async def complete_with_carried_jobs(store: Store, leases: Leases) -> Any:
    carried = (spec("carried", group="g"), spec("carried-after", after=("carried", "child")), spec("first"))
    return await store.settle([(leases[0], Change.completed(b"1", jobs=carried))])


@scenario(running)
async def settle_many(store: Store, leases: Leases) -> Any:
    changes = [Change.completed(b"1"), Change.snooze(5_000), Change.release(), a_retry_change(1), a_burial()]
    return await store.settle([(lease, changes[number % 5]) for number, lease in enumerate(leases)])


@scenario(running)
async def extend(store: Store, leases: Leases) -> Any:
    return await store.extend([an_extension(lease, by=60, progress=b"50") for lease in leases])


@scenario(lapsed)
async def reclaim(store: Store, leases: Leases) -> Any:
    return await store.reclaim(a_reclaim(lease=30))


@scenario(lapsed)
async def settle_after_the_end_of_the_lease(store: Store, leases: Leases) -> Any:
    return await store.settle([(leases[0], Change.retry(a_failure(), delay=0, stalled=1))])


# ── operators ─────────────────────────────────────────────────────────────────────────────────


@scenario(running)
async def cancel(store: Store, leases: Leases) -> Any:
    return await store.cancel(["child", "second", "third", "plain", "parent", "nobody"], running="request")


@scenario(ended)
async def replay(store: Store, leases: Leases) -> Any:
    return await store.replay(["old1", "old0", "keyed", "back", "nobody"])


@scenario(ended)
async def archive(store: Store, leases: Leases) -> Any:
    return await store.archive(["old0", "old2", "keyed", "parent"])


@scenario(ended)
async def unarchive(store: Store, leases: Leases) -> Any:
    return await store.archive(["old1"], archived=False)


@scenario(running)
async def control_a_queue(store: Store, leases: Leases) -> Any:
    return await store.control("queue", "pool", {"paused_lanes": [0, 1], "max_running": 7})


@scenario(running)
async def control_a_task(store: Store, leases: Leases) -> Any:
    return await store.control("task", "work", {"max_running": 30, "rate": 2.0})


@scenario(empty)
async def control_the_store(store: Store, leases: Leases) -> Any:
    return await store.control("store", "", {"keep_events": hours(1)})


@scenario(running)
async def drain(store: Store, leases: Leases) -> Any:
    return await store.drain("default")


@scenario(running_unwatched)
async def obliterate(store: Store, leases: Leases) -> Any:
    return await store.obliterate("default")


@scenario(ended)
async def maintain(store: Store, leases: Leases) -> Any:
    return await store.maintain()


@scenario(running)
async def beat(store: Store, leases: Leases) -> Any:
    return await store.beat(a_worker("newcomer", queues=("default",), slots=3), minutes(1))


@scenario(running)
async def leave(store: Store, leases: Leases) -> Any:
    return await store.beat(a_worker("worker"), 0)


# ── schedules ─────────────────────────────────────────────────────────────────────────────────


def schedule(name: str, mark: int) -> Schedule:
    template = msgspec.structs.replace(spec("tick"), token="")
    next_tick = mark + 30_000
    made = Schedule(name, "every 30s", "UTC", "work", "default", "all", 60_000, "digest", mark)
    return msgspec.structs.replace(made, next_tick=next_tick, template=template)


async def scheduled(store: Store, clock: VirtualClock) -> Leases:
    await store.advance([Move(name, 0, schedule(name, clock())) for name in ("due", "dropped")])
    clock.advance(60)
    return []


@scenario(scheduled)
async def advance(store: Store, leases: Leases) -> Any:
    """The first revision of a schedule is the instant at which it was declared."""
    jobs = (spec("tick-1", reuse=False), spec("tick-2", reuse=False, group="g"))
    return await store.advance(
        [
            Move("due", START, schedule("due", START + 60_000), jobs),
            Move("declared", 0, schedule("declared", START)),
            Move("dropped", START, None),
        ]
    )
