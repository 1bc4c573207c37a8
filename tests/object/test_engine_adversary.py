"""Two clients, one of them stopped at a chosen request while the other acts: what SPEC part 1 promises holds.

Each test is one interleaving; in the end the shared checker of the invariants judges the whole store.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import LanesInUse
from millrace.domain.job import LIVE, State
from millrace.domain.request import Cancelled, Query, Receipt, Replayed
from millrace.domain.schedule import Move, Moved, Schedule
from millrace.testing.builders import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, an_extension, specs
from millrace.testing.clock import START
from tests.object.stopping import World, crashed, meanwhile, world

__all__ = ["world"]


# keys


async def test_a_replayed_job_and_a_new_one_do_not_both_hold_a_key(world: World) -> None:
    """I11: the key is free while its owner is dead, and only one of the two may take it."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="first", key="k")])
    [job] = await a.store.claim(a_claim())
    await a.store.settle([(job.lease, a_burial())])

    [replayed] = await meanwhile(
        a.store.replay(["first"]),
        a.stop("write", "tasks/"),
        lambda: b.store.enqueue([a_spec(id="second", key="k")]),
    )

    second = await b.job("second")
    assert (replayed is Replayed.REPLAYED) != (second.state in LIVE)


async def test_an_enqueue_meets_a_key_that_was_just_taken_back(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="first", key="k")])
    [job] = await a.store.claim(a_claim())
    await a.store.settle([(job.lease, a_burial())])

    [answer] = await meanwhile(
        a.store.enqueue([a_spec(id="second", key="k")]),
        a.stop("write", lambda key: key.startswith(("tasks/", "keys/"))),
        lambda: b.store.replay(["first"]),
    )

    assert answer.status == "duplicate"
    assert answer.id == "first"


# lines and limits whose job goes with its end


async def test_an_end_that_is_not_kept_still_moves_its_line_with_it(world: World) -> None:
    """`keep_completed=0`: the record is gone with the settle, and its line must go on in the same step."""
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"keep_completed": 0})
    await a.store.enqueue([a_spec(id="one", group="g"), a_spec(id="two", group="g")])
    [job] = await a.store.claim(a_claim())

    await meanwhile(
        a.store.settle([(job.lease, Change.completed())]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.cancel(["one"], running="request"),
    )

    [job] = await b.store.claim(a_claim(10))
    assert job.id == "two"
    assert await b.store.settle([(job.lease, Change.completed())]) == [Receipt.OK]


async def test_a_line_whose_write_was_lost_is_not_left_behind_by_an_end_that_is_not_kept(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"keep_completed": 0})
    await a.store.enqueue([a_spec(id="one", group="g")])
    [job] = await a.store.claim(a_claim())

    receipts = await meanwhile(
        a.store.settle([(job.lease, Change.completed())]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.enqueue([a_spec(id="two", group="g")]),
    )

    assert receipts == [Receipt.OK]
    assert [job.id for job in await b.store.claim(a_claim(10))] == ["two"]


async def test_obliterating_a_group_leaves_no_holder_behind(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="one", group="g")])
    await a.store.claim(a_claim())

    await meanwhile(
        a.store.obliterate("default"),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.enqueue([a_spec(id="two", group="g")]),
    )
    await a.store.obliterate("default")
    await b.store.enqueue([a_spec(id="three", group="g")])

    assert [job.id for job in await b.store.claim(a_claim(10))] == ["three"]


# what time brings about


async def test_a_member_whose_promotion_lost_a_race_is_let_in_by_the_next_look(world: World) -> None:
    """The promise to look at it again is kept until its record says that it is done."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="later", group="g", delay=10)])
    world.clock.advance(11)

    first = await meanwhile(
        a.store.claim(a_claim()),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.enqueue([a_spec(id="now", group="g")]),
    )

    taken = [job.id for job in first]
    for job in first:
        await a.store.settle([(job.lease, Change.completed())])
    for _ in range(2):
        for job in await b.store.claim(a_claim(10)):
            taken.append(job.id)
            await b.store.settle([(job.lease, Change.completed())])
    running = await b.store.find(Query(state="running"))
    assert sorted([*taken, *(job.id for job in running.jobs)]) == ["later", "now"]


async def test_a_delayed_job_that_enters_its_line_while_the_holder_ends_is_next(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="now", group="g"), a_spec(id="later", group="g", delay=10)])
    [job] = await a.store.claim(a_claim())
    world.clock.advance(11)

    await meanwhile(
        a.store.settle([(job.lease, Change.completed())]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.claim(a_claim()),
    )

    assert [job.id for job in await b.store.claim(a_claim(10))] == ["later"]


async def test_a_child_that_enters_its_line_while_the_holder_ends_is_next(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="holder", group="g"), a_spec(id="parent")])
    await a.store.enqueue([a_spec(id="child", group="g", after=("parent",))])
    jobs = {job.id: job for job in await a.store.claim(a_claim(2))}

    await meanwhile(
        a.store.settle([(jobs["holder"].lease, Change.completed())]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.settle([(jobs["parent"].lease, Change.completed())]),
    )

    assert [job.id for job in await b.store.claim(a_claim(10))] == ["child"]


async def test_a_promise_is_kept_while_the_job_it_is_about_is_still_being_written(world: World) -> None:
    """`due/` is written before the job: whoever looks in between must not take it for a leftover."""
    a, b = await world.client(), await world.client()

    async def look() -> None:
        world.clock.advance(2)
        assert await b.store.claim(a_claim()) == []

    await meanwhile(
        a.store.enqueue([a_spec(id="soon", group="g", delay=1)]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        look,
    )

    world.clock.advance(2)
    assert [job.id for job in await b.store.claim(a_claim())] == ["soon"]


# index keys that are written before their job


async def test_a_drain_does_not_take_a_key_for_stale_whose_job_is_being_written(world: World) -> None:
    """The key is older than the record it belongs to, for a moment; deleting it would hide the job (BO-03)."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="head", group="g"), a_spec(id="other")])
    await a.store.claim(a_claim(10))

    await meanwhile(
        a.store.enqueue([a_spec(id="member", group="g")]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.drain("default"),
    )

    page = await b.store.find(Query(queue="default", state="waiting"))
    assert [job.id for job in page.jobs] == ["member"]


async def test_an_operator_does_not_take_a_lease_for_stale_that_is_being_taken(world: World) -> None:
    """BO-04: the lease key comes first, so that a crash leaves a running job that the reaper finds."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="first", task="other"), a_spec(id="claimed")])

    [job] = await meanwhile(
        a.store.claim(a_claim(tasks=["work"])),
        a.stop("write", "tasks/"),
        lambda: b.store.obliterate("default", 1),
    )

    world.clock.advance(3_600)
    assert [taken.id for taken in await b.store.reclaim(a_reclaim())] == [job.id]


# pauses


async def test_a_lane_that_was_paused_while_its_holder_ended_opens_nobody(world: World) -> None:
    """I15: a pause of a lane and an end in it meet in the line."""
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"lanes": 1})
    await a.store.enqueue(specs(2))
    [job] = await a.store.claim(a_claim())

    await meanwhile(
        a.store.settle([(job.lease, Change.completed())]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.control("queue", "default", {"pause_lane": 0}),
    )

    assert await b.store.claim(a_claim(10)) == []


async def test_a_lane_that_was_paused_while_its_first_job_came_opens_nobody(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"lanes": 1})

    await meanwhile(
        a.store.enqueue([a_spec(id="first", group="p")]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        lambda: b.store.control("queue", "default", {"pause_lane": 0}),
    )

    assert await b.store.claim(a_claim(10)) == []


async def test_a_claim_that_waited_for_a_lock_looks_again_whether_the_queue_is_paused(world: World) -> None:
    """I15: no grant later than one round trip after the pause was acknowledged."""
    world.patience = 400
    a, b, c = await world.client(), await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="one", group="g")])

    # b stands between its pending writes and its commit: the job is locked
    stop = b.stop("write", "lines/")
    cancelling = asyncio.ensure_future(b.store.cancel(["one"]))
    await stop.reached()
    read = a.stop("read", "control/queues/", after=True)
    claiming = asyncio.ensure_future(a.store.claim(a_claim()))
    await read.reached()
    await c.store.control("queue", "default", {"paused": True})
    read.go()
    await asyncio.sleep(0.1)
    await asyncio.sleep(0.45)  # a gives b up
    taken = await claiming
    stop.go()
    await cancelling
    assert taken == []


# exact counters


async def test_a_limit_that_is_set_while_a_claim_is_under_way_counts_it(world: World) -> None:
    """Running never exceeds the limit for longer than what ran when it was set (E-09, I10)."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue(specs(5))

    [first] = await meanwhile(
        a.store.claim(a_claim()),
        a.stop("write", "tasks/"),
        lambda: b.store.control("queue", "default", {"max_running": 2}),
    )

    rest = await b.store.claim(a_claim(10))
    assert len(rest) <= 1
    await a.store.settle([(first.lease, Change.completed())])
    again = await b.store.claim(a_claim(10))
    assert len(rest) + len(again) <= 2


async def test_a_limit_on_a_task_that_is_set_while_a_claim_is_under_way_counts_it(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue(specs(5))

    [first] = await meanwhile(
        a.store.claim(a_claim()),
        a.stop("write", "tasks/"),
        lambda: b.store.control("task", "work", {"max_running": 2}),
    )

    rest = await b.store.claim(a_claim(10))
    await a.store.settle([(first.lease, Change.completed())])
    again = await b.store.claim(a_claim(10))
    assert len(rest) + len(again) <= 2


async def test_a_depth_that_is_set_while_an_enqueue_is_under_way_counts_it(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue(specs(1))

    await meanwhile(
        a.store.enqueue(specs(1)),
        a.stop("write", "tasks/"),
        lambda: b.store.control("queue", "default", {"max_depth": 10}),
    )

    [answer] = await b.store.enqueue(specs(1))
    assert answer.depth == 3


async def test_lanes_are_not_changed_under_an_enqueue(world: World) -> None:
    """A group whose jobs stand in two lanes would run two at once."""
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"lanes": 2})
    refused = False

    async def widen() -> None:
        nonlocal refused
        try:
            await b.store.control("queue", "default", {"lanes": 3})
        except LanesInUse:
            refused = True

    await meanwhile(
        a.store.enqueue([a_spec(id="one", group="customer 0")]),
        a.stop("write", lambda key: key.startswith(("tasks/", "lines/"))),
        widen,
    )

    await b.store.enqueue([a_spec(id="two", group="customer 0")])
    one, two = await b.job("one"), await b.job("two")
    assert one.lane == two.lane, f"lanes were {'not ' if refused else ''}changed"


# claims, settles, leases


async def test_of_two_claims_one_gets_the_job(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="only")])
    others: list[Any] = []

    async def claim() -> None:
        others.extend(await b.store.claim(a_claim()))

    mine = await meanwhile(a.store.claim(a_claim()), a.stop("write", "tasks/"), claim)

    assert len(mine) + len(others) == 1
    assert (await b.job("only")).attempt == 1
    assert len(await world.keys("leases/")) == 1


async def test_a_settle_against_a_reclaim_is_lost(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="only")])
    [job] = await a.store.claim(a_claim())
    world.clock.advance(31)

    receipts = await meanwhile(
        a.store.settle([(job.lease, Change.completed(b"1"))]),
        a.stop("write", "tasks/"),
        lambda: b.store.reclaim(a_reclaim()),
    )

    assert receipts == [Receipt.LOST]
    assert (await b.job("only")).state is State.RUNNING


async def test_a_reclaim_against_a_settle_takes_nothing(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="only")])
    [job] = await a.store.claim(a_claim())
    world.clock.advance(31)

    taken = await meanwhile(
        b.store.reclaim(a_reclaim()),
        b.stop("write", "tasks/"),
        lambda: a.store.settle([(job.lease, Change.completed(b"1"))]),
    )

    assert taken == []
    assert (await b.job("only")).state is State.COMPLETED


async def test_an_extended_lease_is_not_reclaimed(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="only")])
    [job] = await a.store.claim(a_claim())
    world.clock.advance(31)

    taken = await meanwhile(
        b.store.reclaim(a_reclaim()),
        b.stop("write", "tasks/"),
        lambda: a.store.extend([an_extension(job)]),
    )

    assert taken == []
    assert await a.store.settle([(job.lease, Change.completed())]) == [Receipt.OK]


async def test_an_extension_that_meets_the_end_of_its_run_is_lost(world: World) -> None:
    a = await world.client()
    await a.store.enqueue([a_spec(id="only")])
    [job] = await a.store.claim(a_claim())

    receipts = await meanwhile(
        a.store.extend([an_extension(job)]),
        a.stop("write", "tasks/"),
        lambda: a.store.settle([(job.lease, Change.completed())]),
    )

    assert receipts == [Receipt.LOST]
    assert (await a.job("only")).state is State.COMPLETED


async def test_a_settle_that_meets_its_own_extension_is_written(world: World) -> None:
    """BO-06: the tag moved for a reason that does not matter."""
    a = await world.client()
    await a.store.enqueue([a_spec(id="only")])
    [job] = await a.store.claim(a_claim())

    receipts = await meanwhile(
        a.store.settle([(job.lease, Change.completed(b"1"))]),
        a.stop("write", "tasks/"),
        lambda: a.store.extend([an_extension(job)]),
    )

    assert receipts == [Receipt.OK]
    assert (await a.job("only")).result == b"1"


# dependencies


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_child_that_arrives_while_its_parent_ends_is_told(world: World, awaited: bool) -> None:
    """The enqueue stands before its swap while the parent ends."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="parent")])
    if awaited:
        await a.store.enqueue([a_spec(id="elder", after=("parent",))])
    [job] = await a.store.claim(a_claim())

    await meanwhile(
        a.store.enqueue([a_spec(id="child", after=("parent",))]),
        a.stop("write", "tasks/"),
        lambda: b.store.settle([(job.lease, Change.completed())]),
    )

    child = await b.job("child")
    assert child.blocked == 0
    assert child.open


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("where", ["tasks/", "feed/"])
async def test_a_parent_that_ends_while_its_child_arrives_tells_it(world: World, awaited: bool, where: str) -> None:
    """The settle stands before its swap, or before it tells its dependents, while the child is enqueued."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="parent")])
    if awaited:
        await a.store.enqueue([a_spec(id="elder", after=("parent",))])
    [job] = await a.store.claim(a_claim())

    await meanwhile(
        a.store.settle([(job.lease, Change.completed())]),
        a.stop("write", where),
        lambda: b.store.enqueue([a_spec(id="child", after=("parent",))]),
    )

    child = await b.job("child")
    assert child.blocked == 0
    assert child.open


async def test_a_child_carried_by_one_settle_waits_when_the_settle_of_its_parent_was_lost(world: World) -> None:
    """Both settles are decided in one run; what the second decided by the first falls with it."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="parent"), a_spec(id="carrier")])
    held = {job.id: job for job in await a.store.claim(a_claim(2))}
    world.clock.advance(31)
    child = a_spec(id="child", after=("parent",))

    receipts = await meanwhile(
        a.store.settle(
            [
                (held["parent"].lease, Change.completed()),
                (held["carrier"].lease, Change.completed(jobs=(child,))),
            ]
        ),
        a.stop("write", "tasks/"),
        lambda: b.store.reclaim(a_reclaim(1)),
    )

    parent = await b.job("parent")
    assert (parent.state, receipts[0]) == (State.RUNNING, Receipt.LOST)
    if receipts[1] is Receipt.OK:
        assert (await b.job("child")).blocked == 1


# ids


async def test_a_pruned_id_that_is_enqueued_at_that_moment_is_there_once(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"keep_dead": 1_000})
    await a.store.enqueue([a_spec(id="again")])
    [job] = await a.store.claim(a_claim())
    await a.store.settle([(job.lease, a_burial())])
    world.clock.advance(2)

    await meanwhile(
        a.store.maintain(),
        a.stop("write", "tasks/"),
        lambda: b.store.enqueue([a_spec(id="again")]),
    )

    again = await b.job("again")
    assert (again.generation, again.state) == (2, State.WAITING)
    assert [job.id for job in await b.store.claim(a_claim(5))] == ["again"]


async def test_an_enqueue_meets_the_prune_of_its_id(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"keep_dead": 1_000})
    await a.store.enqueue([a_spec(id="again")])
    [job] = await a.store.claim(a_claim())
    await a.store.settle([(job.lease, a_burial())])
    world.clock.advance(2)

    [answer] = await meanwhile(
        a.store.enqueue([a_spec(id="again")]),
        a.stop("write", "tasks/"),
        b.store.maintain,
    )

    assert (answer.status, answer.generation) == ("queued", 2)


async def test_a_cancelled_job_is_not_started_by_a_claim_that_had_seen_it(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue([a_spec(id="only")])
    answers: list[Cancelled] = []

    async def cancel() -> None:
        answers.extend(await b.store.cancel(["only"]))

    taken = await meanwhile(a.store.claim(a_claim()), a.stop("write", "tasks/"), cancel)

    assert (taken, answers) == ([], [Cancelled.CANCELLED])


# large data


async def test_a_reader_meets_a_result_that_is_just_being_replaced(world: World) -> None:
    """The record names an object that is gone by the time it is read: then the record has changed too."""
    a, b = await world.client(), await world.client()
    large = b'"' + b"x" * 100_000 + b'"'
    await a.store.enqueue([a_spec(id="large", payload=large)])
    [job] = await a.store.claim(a_claim())
    await a.store.settle([(job.lease, Change.completed(large))])

    found = await meanwhile(
        a.store.get(["large"]),
        a.stop("read", "data/"),
        lambda: b.store.obliterate("default"),
    )

    assert found == [None]


async def test_a_queue_that_becomes_a_pool_under_an_enqueue_takes_the_job_into_a_lane(world: World) -> None:
    """BW-15: a job without a lane would run beside the lane of its own partition key."""
    a, b = await world.client(), await world.client()

    await meanwhile(
        a.store.enqueue([a_spec(id="early", group="customer")]),
        a.stop("write", "ready/"),
        lambda: b.store.control("queue", "default", {"lanes": 3}),
    )

    [late] = await b.store.enqueue([a_spec(id="late", group="customer")])
    [early] = await b.store.get(["early"])
    assert early is not None
    assert early.lane == late.lane
    assert len(await b.store.claim(a_claim(10))) == 1


# numbers and the feed


async def test_events_of_a_job_keep_their_order_in_the_feed_when_clocks_disagree(world: World) -> None:
    """Two processes whose clocks are a little apart: what happened later to a job is told later."""
    a, b = await world.client(), await world.client(apart=-0.2)
    await a.store.enqueue([a_spec(id="only")])
    [job] = await b.store.claim(a_claim()) or await a.store.claim(a_claim())
    await a.store.settle([(job.lease, a_retry_change())])
    world.clock.advance(0.1)
    [job] = await a.store.claim(a_claim())
    await b.store.settle([(job.lease, Change.completed())])

    page = await a.store.events(None, 100)
    assert [event.n for event in page.events if event.job == "only"] == [1, 2, 3, 4, 5]


async def test_two_writers_never_draw_the_same_number(world: World) -> None:
    """Also when more than 1,024 have connected since the store was made."""
    first = await world.client(own_numbers=True)
    for _ in range(1_023):
        await (await world.client(own_numbers=True)).store.close()
    last = await world.client(own_numbers=True)
    answers = [*await first.store.enqueue(specs(5)), *await last.store.enqueue(specs(5))]

    assert len({answer.seq for answer in answers}) == 10
    page = await first.store.events(None, 100)
    assert len(page.events) == 10


# more about counters


@pytest.mark.parametrize("target", ["queue", "task"])
async def test_a_limit_that_is_set_before_the_claim_has_written_anything_counts_it(world: World, target: Any) -> None:
    a, b = await world.client(), await world.client()
    await a.store.enqueue(specs(6))

    claimed = await meanwhile(
        a.store.claim(a_claim()),
        a.stop("write", "leases/"),
        lambda: b.store.control(target, "default" if target == "queue" else "work", {"max_running": 2}),
    )

    taken = await b.store.claim(a_claim(10))
    await a.store.settle([(job.lease, Change.completed()) for job in claimed])
    more = await b.store.claim(a_claim(10))
    assert len(taken) + len(more) <= 2


async def test_the_key_of_a_claim_that_never_happened_does_not_count_as_running(world: World) -> None:
    """A crash between the lease key and the swap leaves a key that tells of the future."""
    a, b = await world.client(), await world.client()
    await a.store.enqueue(specs(3))
    await crashed(a.store.claim(a_claim()), a.stop("write", "tasks/"))

    await b.store.control("queue", "default", {"max_running": 2})

    assert len(await b.store.claim(a_claim(10))) == 2


async def test_two_claims_together_take_no_more_than_the_limit(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"max_running": 3})
    await a.store.enqueue(specs(9))
    others: list[Any] = []

    async def claim() -> None:
        others.extend(await b.store.claim(a_claim(2)))

    mine = await meanwhile(a.store.claim(a_claim(2)), a.stop("write", "control/queues/"), claim)

    assert len(mine) + len(others) == 3


async def test_of_two_ends_one_tells_that_the_queue_is_empty(world: World) -> None:
    a, b = await world.client(), await world.client()
    await a.store.control("queue", "default", {"on_empty": "emptied"})
    await a.store.enqueue(specs(2))
    first, second = await a.store.claim(a_claim(2))

    await meanwhile(
        a.store.settle([(first.lease, Change.completed())]),
        a.stop("write", "control/queues/"),
        lambda: b.store.settle([(second.lease, Change.completed())]),
    )

    page = await b.store.find(Query(queue="default"))
    assert [job.task for job in page.jobs if job.spec.hook] == ["emptied"]


# what only one may do


async def test_of_two_enqueues_of_one_id_one_makes_the_job(world: World) -> None:
    a, b = await world.client(), await world.client()
    others: list[Any] = []

    async def enqueue() -> None:
        others.extend(await b.store.enqueue([a_spec(id="same", payload=b'"b"')]))

    [mine] = await meanwhile(a.store.enqueue([a_spec(id="same", payload=b'"a"')]), a.stop("write", "tasks/"), enqueue)

    assert [mine.status, others[0].status] == ["duplicate", "queued"]
    assert mine.payload_differs


async def test_an_enqueue_that_is_asked_again_after_its_answer_was_lost_gives_the_same_answer(world: World) -> None:
    """BW-14: the client hears nothing after the commit; it asks again with the same token."""
    a, b = await world.client(), await world.client()
    batch = specs(3, group="g")
    answers: list[Any] = []

    async def ask_again() -> None:
        answers.extend(await b.store.enqueue(batch))

    first = await meanwhile(a.store.enqueue(batch), a.stop("write", "feed/"), ask_again)

    assert [answer.status for answer in answers] == ["queued"] * 3
    assert [(answer.seq, answer.generation) for answer in answers] == [(one.seq, one.generation) for one in first]


async def test_of_two_clocks_one_moves_a_schedule(world: World) -> None:
    a, b = await world.client(), await world.client()
    schedule = Schedule("tick", "every 30s", "UTC", "work", "default", "skip", 0, "digest", START)
    moved: list[Moved] = []

    async def move() -> None:
        moved.extend(await b.store.advance([Move("tick", 0, schedule, (a_spec(id="tick 1"),))]))

    [mine] = await meanwhile(
        a.store.advance([Move("tick", 0, schedule, (a_spec(id="tick 1"),))]), a.stop("write", "schedules/"), move
    )

    assert sorted([mine.status, moved[0].status]) == ["ok", "stale"]
    assert (await b.job("tick 1")).generation == 1
