"""What the model and the mutation runner found that no test had held: one sentence each.

Spoken on the memory store, which is the ledger and a lock.
"""

from __future__ import annotations

import random

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput
from millrace.domain.event import Kind
from millrace.domain.job import HOUR, MINUTE, Job, State
from millrace.domain.request import Receipt
from millrace.domain.retry import RetryPolicy
from millrace.domain.rules.order import QueueOrder, pick
from millrace.domain.rules.transition import recheck_after
from millrace.domain.tables import Range
from millrace.store.memory import MemoryStore
from millrace.testing.builders import a_burial, a_claim, a_retry_change, a_spec, specs
from millrace.testing.clock import VirtualClock
from tests.narrowing import the


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock=clock)


async def take(store, **claim):
    [job] = await store.claim(a_claim(**claim))
    return job


async def test_a_hook_that_somebody_enqueues_is_no_work_of_its_queue(store: MemoryStore):
    """`on_empty` looks at work alone, whichever way the hook came in."""
    await store.control("queue", "default", {"on_empty": "bell"})
    await store.enqueue([a_spec(id="hook", task="ring", hook=True)])
    await store.enqueue([a_spec(id="work")])
    await store.settle([((await take(store, tasks=frozenset({"work"}))).lease, Change.completed(b"1"))])

    [event] = [event for event in (await store.events(None, 100)).events if event.task == "bell"]
    assert event.kind is Kind.ENQUEUED


# ── jobs that a settle carries ────────────────────────────────────────────────────────────────────


async def test_a_dying_job_may_carry_the_next_generation_of_itself(store: MemoryStore):
    await store.enqueue([a_spec(id="phoenix")])
    job = await take(store)

    change = Change.bury(None, "explicit_fail")
    ashes = Change(change.verb, reason="explicit_fail", failed=1, jobs=(a_spec(id="phoenix"),))
    assert await store.settle([(job.lease, ashes)]) == [Receipt.OK]

    [found] = await store.get(["phoenix"])
    now = the(found)
    assert (now.state, now.generation) == (State.WAITING, 2)
    [row] = await store.count()
    assert (row.waiting, row.running, row.dead) == (1, 0, 0)


async def test_a_completed_job_may_carry_a_job_under_its_own_key(store: MemoryStore):
    """The key is free by the time the next one takes it: how a job that is to be unique goes on with itself."""
    await store.enqueue([a_spec(key="only one")])
    job = await take(store)

    await store.settle([(job.lease, Change.completed(jobs=(a_spec(id="next", key="only one"),)))])

    assert (await take(store)).id == "next"


async def test_a_retried_job_may_carry_a_job_that_replaces_it(store: MemoryStore):
    """It waits again by then, so it can be replaced, and every counter knows."""
    await store.enqueue([a_spec(id="old", key="k")])
    job = await take(store)

    retry = a_retry_change(60)
    change = Change(retry.verb, delay=retry.delay, failed=1, jobs=(a_spec(id="new", key="k", on_hit="replace"),))
    await store.settle([(job.lease, change)])

    [row] = await store.count()
    assert (row.waiting, row.running, row.cancelled) == (1, 0, 1)


async def test_who_waits_for_the_next_generation_is_not_told_of_the_last_ones_death(store: MemoryStore):
    await store.enqueue([a_spec(id="parent")])
    job = await take(store)

    again = a_spec(id="parent")
    child = a_spec(id="child", after=("parent",))
    await store.settle([(job.lease, Change(a_burial().verb, reason="explicit_fail", failed=1, jobs=(again, child)))])

    [found] = await store.get(["child"])
    waiting = the(found)
    assert (waiting.state, waiting.blocked) == (State.WAITING, 1)


async def test_a_thousand_deaths_with_a_hook_each_are_no_recursion(store: MemoryStore):
    parent = a_spec()
    children = specs(1_000, after=(parent.id,), on_dead_letter="bell")
    await store.enqueue([parent, *children])

    await store.cancel([parent.id])

    [row] = await store.count()
    assert (row.dead, row.waiting) == (1_000, 1_000)


# ── jobs whose record goes at once ────────────────────────────────────────────────────────────────


async def test_a_job_that_dies_on_arrival_is_answered_as_dead_though_its_record_is_gone(store: MemoryStore):
    await store.control("queue", "default", {"keep_dead": 0})
    await store.enqueue([a_spec(id="parent")])
    await store.cancel(["parent"])

    [answer] = await store.enqueue([a_spec(id="child", after=("parent",))])

    assert answer.state is State.DEAD
    assert await store.get(["child"]) == [None]


async def test_a_completion_is_answered_ok_though_somebody_wished_to_cancel_and_the_record_is_gone(store: MemoryStore):
    await store.control("queue", "default", {"keep_completed": 0})
    spec = a_spec()
    await store.enqueue([spec])
    job = await take(store)
    await store.cancel([spec.id], "request")

    assert await store.settle([(job.lease, Change.completed())]) == [Receipt.OK]

    kinds = [event.kind for event in await store.history(spec.id)]
    assert kinds == [Kind.ENQUEUED, Kind.CLAIMED, Kind.COMPLETED, Kind.PRUNED]


# ── conditions that could be turned round without anybody noticing ────────────────────────────────


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(None, 2, "has no lanes and 1 live jobs.* to 2 lanes"), (2, None, "has 2 lanes and 1 live jobs.* to no lanes")],
)
async def test_the_error_about_lanes_says_from_what_to_what(store: MemoryStore, before, after, said):
    await store.control("queue", "default", {"lanes": before})
    await store.enqueue([a_spec()])

    with pytest.raises(InvalidInput, match=said):
        await store.control("queue", "default", {"lanes": after})


async def test_only_a_change_of_its_rate_fills_the_bucket_of_a_task_again(store: MemoryStore):
    await store.control("task", "work", {"rate": 0.001, "burst": 1})
    await store.enqueue(specs(3))
    assert len(await store.claim(a_claim(3))) == 1

    await store.control("task", "work", {"max_running": 10})
    assert await store.claim(a_claim(3)) == []

    await store.control("task", "work", {"rate": 0.002})
    assert len(await store.claim(a_claim(3))) == 1


def test_a_delay_just_below_the_cap_does_not_spread_over_it():
    policy = RetryPolicy(initial=59_000, maximum=60_000)

    assert policy.delay(0, 0.99) == 60_000


class Given:
    """A range that is a list of (available_at, seq)."""

    queue, task = "q", "t"

    def __init__(self, priority: int, heads: list[tuple[int, int]]) -> None:
        self.priority = priority
        self._heads = sorted(heads)

    def peek(self) -> tuple[int, int] | None:
        return self._heads[0] if self._heads else None

    def advance(self) -> None:
        self._heads.pop(0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("period", [0, 2, 3])
def test_many_ranges_are_merged_in_order_also_when_turns_alternate(seed, period):
    chance = random.Random(seed)
    jobs = [(chance.randrange(4), chance.randrange(100), seq) for seq in range(60)]
    ranges: list[Range] = [
        Given(priority, [(at, seq) for p, at, seq in jobs if p == priority and seq % 3 == task])
        for priority in range(4)
        for task in range(3)
    ]

    picked = list(pick([QueueOrder(ranges, 0, period)], lambda source, seq: True, len(jobs)))

    left = list(jobs)
    expected: list[int] = []
    while left:
        fair = period > 0 and (len(expected) + 1) % period == 0
        first = min(left, key=lambda job: job[1:] if fair else (-job[0], *job[1:]))
        left.remove(first)
        expected.append(first[2])
    assert picked == expected


@pytest.mark.parametrize(("finished_at", "wait"), [(599 * MINUTE, MINUTE), (5 * HOUR, 30 * MINUTE), (None, MINUTE)])
def test_a_result_that_is_needed_is_looked_at_again_after_a_tenth_of_its_age(finished_at, wait):
    job = Job(a_spec(), 1, 1, State.COMPLETED, 0, 0, finished_at=finished_at)

    assert recheck_after(job, 10 * HOUR) == wait
