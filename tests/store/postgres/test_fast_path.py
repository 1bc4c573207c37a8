"""Jobs with groups, keys and expiry, and queues with limits, are on the fast path: no call of theirs runs as a step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millrace.domain.change import Change
from millrace.domain.request import Receipt
from millrace.store.postgres.step_connection import StepConnection
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from tests.servers.postgres import url_for
from tests.store.postgres.counted import Counted, counted_store

OPTIONS: dict[str, Any] = {
    "none": lambda n: {},
    "a key": lambda n: {"key": f"key-{n}"},
    "a key for a time": lambda n: {"key": f"key-{n}", "scope": "window", "window": 60_000},
    "a group each": lambda n: {"group": f"group-{n}"},
    "few groups": lambda n: {"group": f"group-{n % 3}"},
    "a group and a key": lambda n: {"group": f"group-{n}", "key": f"key-{n}"},
    "expiry": lambda n: {"expires": 3_600_000},
    "priorities": lambda n: {"priority": n % 3},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "max_running": {"max_running": 100},
    "rate": {"rate": 1000.0},
    "max_running and rate": {"max_running": 100, "rate": 1000.0},
}


@pytest.fixture
async def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counted]:
    async with counted_store(url_for(tmp_path), monkeypatch) as found:
        yield found


async def create_combinations(steps: Counted, queue: str = "default", task: str = "work") -> None:
    """Enqueue and cancel jobs of three priorities. The first job with a queue, task and priority needs a step."""
    specs = [a_spec(id=f"known-{queue}-{task}-{n}", queue=queue, task=task, priority=n) for n in range(3)]
    await steps.store.enqueue(specs)
    await steps.store.cancel([spec.id for spec in specs])


async def sent_by_a_life(steps: Counted, options: Any) -> int:
    """Enqueue twelve jobs, process all of them, and return how many statements steps have sent for that."""
    store = steps.store
    await create_combinations(steps)
    before, done = steps.sent, 0
    await store.enqueue([a_spec(**{"id": f"job-{n}"} | options(n)) for n in range(12)])
    while held := await store.claim(a_claim(5)):
        receipts = await store.settle([(job.lease, Change.completed(b"1")) for job in held])
        assert set(receipts) == {Receipt.OK}
        done += len(held)
    assert done == 12
    return steps.sent - before


@pytest.mark.parametrize("name", OPTIONS)
async def test_jobs_with_these_options_need_no_step(steps: Counted, name: str) -> None:
    assert await sent_by_a_life(steps, OPTIONS[name]) == 0


@pytest.mark.parametrize("name", SETTINGS)
async def test_jobs_of_queues_with_these_settings_need_no_step(steps: Counted, name: str) -> None:
    await steps.store.control("queue", "default", SETTINGS[name])

    assert await sent_by_a_life(steps, OPTIONS["none"]) == 0


async def test_a_fair_share_needs_a_step_only_if_jobs_differ_in_task_or_priority(steps: Counted) -> None:
    store = steps.store
    await store.control("queue", "default", {"fair_share": 0.2})
    await store.enqueue([a_spec(id="known")])
    await store.cancel(["known"])
    before = steps.sent
    await store.enqueue([a_spec(id="alone")])
    [job] = await store.claim(a_claim(5))
    await store.settle([(job.lease, Change.completed())])
    with_one_priority = steps.sent - before

    assert with_one_priority == 0
    assert await sent_by_a_life(steps, OPTIONS["priorities"]) > 0


async def test_a_fair_share_needs_no_step_if_only_jobs_of_other_tasks_differ_in_priority(steps: Counted) -> None:
    store = steps.store
    await store.control("queue", "default", {"fair_share": 0.2})
    await create_combinations(steps, task="other")
    await store.enqueue([a_spec(id="alone")])
    [job], sent = await steps.of(store.claim(a_claim(5, tasks=("work",))))

    assert (job.id, sent) == ("alone", 0)


async def test_a_key_that_is_free_needs_no_step_whatever_other_keys_are_held(steps: Counted) -> None:
    await create_combinations(steps)
    await create_combinations(steps, queue="other")
    await steps.store.enqueue([a_spec(key="held")])
    await steps.store.enqueue([a_spec(key="wanted", queue="other")])
    [enqueued], sent = await steps.of(steps.store.enqueue([a_spec(key="wanted")]))

    assert (enqueued.status, sent) == ("queued", 0)


async def test_parents_and_children_need_no_step(steps: Counted) -> None:
    store = steps.store
    await store.enqueue([a_spec(id="known"), a_spec(id="known-2", queue="other")])
    await store.cancel(["known", "known-2"])
    await store.enqueue([a_spec(id="first", queue="other"), a_spec(id="second", queue="other", after=("first",))])
    children = [a_spec(id="b", after=("a", "a")), a_spec(id="c", queue="other", after=("a", "b"))]
    _, enqueuing = await steps.of(store.enqueue([a_spec(id="a"), *children]))
    counted = {counts.queue: (counts.waiting, counts.blocked) for counts in await store.count()}
    before, order = steps.sent, []
    while held := await store.claim(a_claim(5, queues=("default", "other"))):
        order.append([job.id for job in held])
        await store.settle([(job.lease, Change.completed(b"1")) for job in held])

    assert (counted, order) == ({"default": (2, 1), "other": (3, 2)}, [["first", "a"], ["second", "b"], ["c"]])
    assert (enqueuing, steps.sent - before) == (0, 0)


async def test_jobs_that_a_child_already_waits_for_need_no_step(steps: Counted) -> None:
    await create_combinations(steps)
    await steps.store.enqueue([a_spec(id="child", after=("parent",), allow_missing=True)])
    _, sent = await steps.of(steps.store.enqueue([a_spec(id="parent"), a_spec(id="other")]))

    assert sent == 0


async def test_a_child_in_a_group_needs_a_step_and_runs_after_its_parent(steps: Counted) -> None:
    store = steps.store
    await store.enqueue([a_spec(id="parent"), a_spec(id="member", group="g"), a_spec(id="free")])
    await store.enqueue([a_spec(id="child", group="g", after=("parent",)), a_spec(id="other", after=("parent",))])
    order = []
    while held := await store.claim(a_claim(5)):
        order.append(sorted(job.id for job in held))
        await store.settle([(job.lease, Change.completed()) for job in held])

    assert order == [["free", "member", "parent"], ["child", "other"]]


async def test_a_claim_writes_no_job_that_neither_expires_nor_waits_after_a_failure(steps: Counted) -> None:
    await steps.store.enqueue([a_spec(group=f"group-{n}") for n in range(3)])
    connection = await asyncpg.connect(steps.store.address.dsn)
    try:
        places = f'SELECT array_agg(ctid::text ORDER BY seq) FROM "{steps.store.address.schema}".job'
        before = await connection.fetchval(places)
        claimed = await steps.store.claim(a_claim(5))
        after = await connection.fetchval(places)
    finally:
        await connection.close()

    assert (len(claimed), after) == (3, before)


async def test_a_claim_needs_no_step_after_the_expiry_of_a_job_that_was_claimed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    async with counted_store(url_for(tmp_path), monkeypatch, clock) as steps:
        await steps.store.enqueue([a_spec(id="expires", expires=60), a_spec(id="other")])
        [first] = await steps.store.claim(a_claim(1))
        clock.advance(60)
        [second], sent = await steps.of(steps.store.claim(a_claim(1)))

    assert (first.id, second.id, sent) == ("expires", "other", 0)


async def test_a_job_that_overtakes_the_open_job_of_its_group_is_claimed_first(steps: Counted) -> None:
    await create_combinations(steps)
    await steps.store.enqueue([a_spec(id="first", group="g")])
    await steps.store.enqueue([a_spec(id="second", group="g")])
    await steps.store.enqueue([a_spec(id="urgent", group="g", priority=2)])

    order = []
    while held := await steps.store.claim(a_claim(5)):
        order += [job.id for job in held]
        await steps.store.settle([(job.lease, Change.completed()) for job in held])

    assert order == ["urgent", "first", "second"]


async def test_a_claim_leaves_out_the_group_that_a_transaction_of_a_caller_has_locked(steps: Counted) -> None:
    store = steps.store
    await store.enqueue([a_spec(id="a", group="locked"), a_spec(id="b", group="free")])
    connection = await asyncpg.connect(store.address.dsn)
    try:
        async with connection.transaction():
            await store.within(connection).enqueue([a_spec(id="c", group="locked")])
            during = await store.claim(a_claim(5))
        after = await store.claim(a_claim(5))
    finally:
        await connection.close()

    assert ([job.id for job in during], [job.id for job in after]) == (["b"], ["a"])


@pytest.mark.parametrize("tasks", [None, ("work",)], ids=["all tasks", "one task"])
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_locked_groups_at_the_head_do_not_keep_other_jobs_from_a_claim(
    steps: Counted, limit: int, tasks: Sequence[str] | None
) -> None:
    store = steps.store
    heads = [a_spec(id=f"head-{n}", group=f"locked-{n}") for n in range(3)]
    await store.enqueue([*heads, *(a_spec(id=f"job-{n}", group=f"free-{n}") for n in range(2)), a_spec(id="job-2")])
    connection = await asyncpg.connect(store.address.dsn)
    try:
        async with connection.transaction():
            await store.within(connection).enqueue([a_spec(group=f"locked-{n}") for n in range(3)])
            claimed = await store.claim(a_claim(limit, tasks=tasks))
    finally:
        await connection.close()

    assert [job.id for job in claimed] == [f"job-{n}" for n in range(3)][:limit]
    assert await store.settle([(job.lease, Change.completed()) for job in claimed]) == [Receipt.OK] * len(claimed)


async def test_the_end_of_a_job_in_a_limited_queue_makes_room_for_the_next(steps: Counted) -> None:
    store = steps.store
    await store.control("queue", "default", {"max_running": 2})
    await store.enqueue([a_spec(id=f"job-{n}") for n in range(3)])

    held = await store.claim(a_claim(5))
    full = await store.claim(a_claim(5))
    await store.settle([(held[0].lease, Change.completed())])
    last = await store.claim(a_claim(5))

    assert (len(held), full, [job.id for job in last]) == (2, [], ["job-2"])


async def test_jobs_of_a_group_have_their_seqs_in_the_order_of_their_commits(
    steps: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One enqueue is stopped after it has drawn its seqs; the other one must not overtake it."""
    store, drawn, go_on = steps.store, threading.Event(), threading.Event()
    await store.enqueue([a_spec(id="parent")])
    rows = StepConnection.rows

    def stopping(self: StepConnection, sql: str, args: Sequence[Any]) -> Any:
        found = rows(self, sql, args)
        if sql == store.session().sql["next_seqs"]:
            drawn.set()
            go_on.wait(30)
        return found

    monkeypatch.setattr(StepConnection, "rows", stopping)
    by_a_step = asyncio.ensure_future(store.enqueue([a_spec(id="first", group="g", after=("parent",))]))
    await asyncio.to_thread(drawn.wait, 30)
    on_the_fast_path = asyncio.ensure_future(store.enqueue([a_spec(id="second", group="g")]))
    await asyncio.wait([on_the_fast_path], timeout=0.5)  # long enough to overtake, if it could
    go_on.set()
    await asyncio.gather(by_a_step, on_the_fast_path)

    events = [event for event in (await store.events(None, 100)).events if event.job in ("first", "second")]
    assert [event.job for event in sorted(events, key=lambda event: event.seq)] == [event.job for event in events]


async def test_the_end_of_a_job_makes_room_for_one_in_a_limited_queue(
    steps: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = steps.store
    await store.control("queue", "default", {"max_running": 2})
    await store.enqueue([a_spec(id=name) for name in "abc"])
    [job] = await store.claim(a_claim(1))
    announced: list[dict[Any, int]] = []
    monkeypatch.setattr(store, "announce", lambda opened, ended, replies: announced.append(dict(opened)))

    await store.settle([(job.lease, Change.completed())])

    assert announced == [{("default", None): 1}]
