"""Hooks: jobs that the store enqueues to report a dead job (`on_dead_letter`) or an empty queue (`on_empty`).

The store enqueues a hook in the same step as the transition that it reports.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    finish,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    retry,
    show,
    take,
)


async def hook_payloads(store: Store, task: str, queue: str = "default") -> list[dict[str, Any]]:
    """Claim and complete the waiting hook jobs of a task, and return their decoded payloads."""
    jobs = await store.claim(a_claim(100, queue=queue, tasks=[task]))
    await store.settle([(job.lease, Change.completed()) for job in jobs])
    return [json.loads(job.payload) for job in jobs]


async def test_a_death_is_told_by_a_job(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, on_dead_letter="mourn", payload=b"[1]", group="g")
    job = await take(store)
    await bury(store, job, "explicit_fail")

    [payload] = await hook_payloads(store, "mourn")
    letter = payload["letter"]
    assert (letter["id"], letter["seq"], letter["queue"], letter["task"]) == (spec.id, job.seq, "default", "work")
    assert base64.b64decode(letter["payload"]) == b"[1]"
    assert (letter["reason"], letter["error"]) == ("explicit_fail", "RuntimeError: it broke")
    assert (letter["attempts"], letter["failures"], letter["failed_at"], letter["group"]) == (1, 1, clock(), "g")


async def test_a_hook_that_fails_loses_no_dead_letter(store: Store, clock: VirtualClock) -> None:
    """If a hook fails, it is retried like any job, and the dead job stays stored."""
    spec = await put_dead(store, on_dead_letter="mourn")
    hook = await take(store, tasks=["mourn"])
    await retry(store, hook)

    assert (await show(store, spec)).state is State.DEAD
    again = await take(store, tasks=["mourn"])
    assert (again.id, again.failures) == (hook.id, 1)
    await bury(store, again)
    assert await hook_payloads(store, "mourn") == []  # the death of a hook enqueues no hook


async def test_every_kind_of_death_is_told(store: Store, clock: VirtualClock) -> None:
    parent = await put(store, expires=5, on_dead_letter="mourn")
    child = await put(store, after=(parent.id,), on_dead_letter="mourn")
    clock.advance(6)
    await store.maintain()

    letters = [each["letter"] for each in await hook_payloads(store, "mourn")]
    assert [(letter["id"], letter["reason"]) for letter in letters] == [
        (parent.id, "ttl_expired"),
        (child.id, "dependency_failed"),
    ]


async def test_each_death_of_a_replayed_job_is_told(store: Store, clock: VirtualClock) -> None:
    spec = await put_dead(store, on_dead_letter="mourn")
    assert len(await hook_payloads(store, "mourn")) == 1
    await store.replay([spec.id])
    await bury(store, await take(store))

    assert len(await hook_payloads(store, "mourn")) == 1


async def test_completion_and_cancellation_are_no_death(store: Store, clock: VirtualClock) -> None:
    await put_completed(store, on_dead_letter="mourn")
    await put_cancelled(store, on_dead_letter="mourn")

    assert await hook_payloads(store, "mourn") == []


async def test_the_last_job_to_end_tells_that_the_queue_is_empty(store: Store, clock: VirtualClock) -> None:
    """The `on_empty` hook is enqueued only when the last waiting or running job of the queue ends."""
    await control(store, on_empty="notify")
    await put_completed(store)
    assert await hook_payloads(store, "notify") == [{"queue": "default", "lane": None, "finished": 1}]

    await store.enqueue(specs(2))
    first, second = await take(store), await take(store)
    await complete(store, first)
    assert await hook_payloads(store, "notify") == []
    await complete(store, second)
    assert len(await hook_payloads(store, "notify")) == 1


async def test_a_queue_that_waits_for_a_retry_is_not_empty(store: Store, clock: VirtualClock) -> None:
    await control(store, on_empty="notify")
    await put(store)
    await retry(store, await take(store), delay=60)

    assert await hook_payloads(store, "notify") == []


async def test_every_way_to_end_can_empty_a_queue(store: Store, clock: VirtualClock) -> None:
    await control(store, on_empty="notify")
    await put_dead(store)
    assert len(await hook_payloads(store, "notify")) == 1
    await put_cancelled(store)
    assert len(await hook_payloads(store, "notify")) == 1
    await put(store, expires=5)
    clock.advance(6)
    await store.maintain()

    assert len(await hook_payloads(store, "notify")) == 1


async def test_a_drained_queue_is_told_empty_once(store: Store, clock: VirtualClock) -> None:
    """A drain enqueues one `on_empty` hook, regardless of the number of drained jobs."""
    await control(store, on_empty="notify")
    await store.enqueue(specs(5))
    await store.drain("default")

    assert len(await hook_payloads(store, "notify")) == 1


async def test_a_chain_that_dies_tells_of_the_empty_queue_once(store: Store, clock: VirtualClock) -> None:
    await control(store, on_empty="notify")
    first = await put(store)
    second = await put(store, after=(first.id,))
    await put(store, after=(second.id,))
    await store.cancel([first.id])

    assert len(await hook_payloads(store, "notify")) == 1


async def test_a_job_that_carries_another_leaves_no_empty_queue(store: Store, clock: VirtualClock) -> None:
    await control(store, on_empty="notify")
    await put(store)
    carried = (a_spec(queue="other"), a_spec())
    await finish(store, await take(store), Change.completed(jobs=carried))

    assert await hook_payloads(store, "notify") == []


async def test_a_replaced_job_leaves_no_empty_queue(store: Store, clock: VirtualClock) -> None:
    await control(store, on_empty="notify")
    await put(store, key="k")
    await put(store, key="k", on_hit="replace")

    assert await hook_payloads(store, "notify") == []


async def test_each_lane_tells_when_it_is_empty(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=2, on_empty="notify")
    await store.enqueue(specs(3))
    first, second = await store.claim(a_claim(2))
    await complete(store, second)
    assert await hook_payloads(store, "notify") == [{"queue": "default", "lane": 1, "finished": 1}]
    await complete(store, first)
    assert await hook_payloads(store, "notify") == []
    await complete(store, await take(store))

    assert await hook_payloads(store, "notify") == [{"queue": "default", "lane": 0, "finished": 2}]


async def test_a_hook_is_taken_by_a_full_pool_and_stands_in_no_lane(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=1, max_depth=2)
    await store.enqueue(specs(2, on_dead_letter="mourn"))
    job = await take(store)
    await put(store)
    await bury(store, job)

    hook = await take(store, tasks=["mourn"])
    assert (hook.lane, hook.spec.hook) == (None, True)


async def test_without_a_task_to_tell_nothing_is_told(store: Store, clock: VirtualClock) -> None:
    await put_dead(store)
    await put_completed(store)

    assert await store.claim(a_claim(10)) == []


async def test_a_queue_that_is_wiped_out_leaves_no_hook_behind(store: Store, clock: VirtualClock) -> None:
    await control(store, on_empty="notify")
    await store.enqueue(specs(3))
    while await store.obliterate("default", 2):
        pass

    assert (await count(store)).waiting == 0


async def test_wiping_out_a_queue_still_tells_of_deaths_elsewhere(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    await put(store, queue="other", after=(parent.id,), on_dead_letter="mourn")
    await store.obliterate("default")

    assert (await take(store, queue="other", tasks=["mourn"])).spec.hook
