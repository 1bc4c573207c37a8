"""Scenes for crash points of the object store: those that every store has, and what only objects have in them."""

from __future__ import annotations

from typing import Any

from millrace.domain.change import Change
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_worker, minutes
from millrace.testing.clock import VirtualClock
from proof.programs.crash_scenarios import SCENARIOS as SHARED
from proof.programs.crash_scenarios import Leases, Scenario, busy, empty, running, spec

LARGE = b'"' + b"x" * 2_000 + b'"'  # beyond the inline limit of these tests
SCENES: dict[str, Scenario] = dict(SHARED)
MANY = SCENES.pop("enqueue_many")  # forty jobs in one batch: every night


def scene(prepare: Any) -> Any:
    def register(act: Any) -> Any:
        SCENES[act.__name__] = Scenario(act.__name__, prepare, act)
        return act

    return register


async def full(store: Store, clock: VirtualClock) -> Leases:
    await store.control("queue", "default", {"max_depth": 5})
    await store.enqueue([spec("there")])
    return []


async def large(store: Store, clock: VirtualClock) -> Leases:
    await store.enqueue([spec("large", payload=LARGE)])
    [job] = await store.claim(a_claim(lease=10))
    return [job.lease]


async def outside(store: Store, clock: VirtualClock) -> Leases:
    """Members of a group that are due by now and still outside their line, and one that has expired."""
    await store.enqueue([spec(f"late{number}", group="g", delay=number) for number in range(1, 4)])
    await store.enqueue([spec("mortal", expires=2), spec("heir", after=("mortal",), on_dependency="run")])
    clock.advance(10)
    return []


async def orphans(store: Store, clock: VirtualClock) -> Leases:
    """Many who wait for one that runs."""
    await store.enqueue([spec("parent")])
    await store.enqueue([spec(f"child{number}", after=("parent",)) for number in range(6)])
    jobs = await store.claim(a_claim(lease=10))
    return [job.lease for job in jobs]


@scene(empty)
async def enqueue_a_batch(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec(f"plain{number}") for number in range(6)])


@scene(busy)
async def enqueue_a_bit_of_everything(store: Store, leases: Leases) -> Any:
    return await store.enqueue(
        [
            spec("new-child", after=("new-parent", "parent")),
            spec("new-parent"),
            spec("kept", key="once"),
            spec("taker", key="once", on_hit="replace", group="g"),
            spec("member", group="g", priority=3),
            spec("laned", queue="pool"),
            spec("later", delay=60, expires=90, queue="another"),
        ]
    )


@scene(busy)
async def enqueue_keyed(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec("keyed", key="only")])


@scene(busy)
async def enqueue_in_a_group(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec("member", group="g")])


@scene(busy)
async def enqueue_in_a_pool(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec("laned", queue="pool")])


@scene(busy)
async def enqueue_after_parents(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec("waiting", after=("parent", "unheard-of"), allow_missing=True)])


@scene(full)
async def enqueue_up_to_a_depth(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec("more"), spec("even-more")])


@scene(empty)
async def enqueue_large(store: Store, leases: Leases) -> Any:
    return await store.enqueue([spec("large", payload=LARGE)])


@scene(large)
async def complete_with_a_large_result(store: Store, leases: Leases) -> Any:
    return await store.settle([(leases[0], Change.completed(LARGE))])


@scene(busy)
async def claim_from_a_line(store: Store, leases: Leases) -> Any:
    return await store.claim(a_claim(2, queue="pool", lease=10))


@scene(busy)
async def claim_under_a_limit(store: Store, leases: Leases) -> Any:
    return await store.claim(a_claim(3, queue="slow", lease=10))


@scene(outside)
async def claim_what_was_outside_its_line(store: Store, leases: Leases) -> Any:
    return await store.claim(a_claim(1, lease=10))


@scene(orphans)
async def complete_what_many_wait_for(store: Store, leases: Leases) -> Any:
    return await store.settle([(leases[0], Change.completed(b"1"))])


@scene(running)
async def beat_again(store: Store, leases: Leases) -> Any:
    return await store.beat(a_worker("worker", slots=20), minutes(1))
