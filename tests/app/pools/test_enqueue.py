"""W-47 and what belongs to it: an enqueue is checked, kept, given a lane, and answered with its place there."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from millrace import App, Context, InvalidInput, JobHandle, PayloadInvalid, QueueFull
from millrace.app.pools.task import MOST_AT_ONCE, PoolTask
from millrace.domain.rules.lanes import lane_of
from millrace.store.protocol import Store
from tests.app.pools.scene import a_key, burst, spread, until, worker
from tests.narrowing import the


@dataclass
class Order:
    customer: str
    amount: int = 1


Handle = PoolTask[[Order], None, [Order], Any]


@pytest.fixture
def handle(app: App):
    @app.pool("orders", lanes=4)
    async def handle(order: Order) -> None: ...

    return handle


@pytest.fixture
def keyed(app: App):
    @app.pool("keyed", lanes=4, partition_by=lambda order, urgent: order.customer)
    async def keyed(order: Order, urgent: bool = False) -> None: ...

    return keyed


async def test_w47_an_enqueue_is_kept_and_answered_with_its_sequence(app: App, handle: Handle):
    """W-11, W-12, W-19, W-34: one record per job; seqs only grow."""
    first = await handle.enqueue(Order("ada"))
    second = await handle.enqueue(Order("bob"))

    assert not first.is_duplicate and second.seq == first.seq + 1
    job = the(await app.jobs.get(first))
    assert job.args == {"order": Order("ada")}


async def test_w47_position_depth_lane_and_instance_are_answered_at_once(handle: Handle):
    """W-01, W-20, W-23: position 0 runs next."""
    answers = [await handle.options(partition="ada").enqueue(Order("ada")) for _ in range(3)]

    lane = lane_of("ada", 4)
    assert all(isinstance(answer, JobHandle) for answer in answers)
    assert [(a.lane, a.position, a.depth) for a in answers] == [(lane, n, n + 1) for n in range(3)]
    assert {answer.instance for answer in answers} == {f"workerPool:orders:{lane}"}


async def test_w47_a_job_is_ready_at_once_when_its_lane_was_empty(app: App, handle: Handle):
    """W-08, W-14: nothing has to be armed; a worker that waits is woken."""
    async with worker(app, poll_min=600, poll_max=600) as working:
        await until(lambda: working.stats.claims)
        answer = await handle.enqueue(Order("ada"))

        await until(lambda: working.stats.completed)
    assert the(await app.jobs.get(answer)).state == "completed"


@pytest.mark.parametrize("bad", [{"customer": 7}, {"nobody": "x"}, "ada", None])
async def test_w47_a_payload_that_does_not_fit_is_refused_and_nothing_is_stored(
    app: App, store: Store, handle: Handle, bad
):
    """W-19: the error says which pool and lane; nothing was written, not even the pool."""
    with pytest.raises(PayloadInvalid) as refusal:
        await handle.options(partition="ada").enqueue(bad)

    lane = lane_of("ada", 4)
    assert (refusal.value.pool, refusal.value.lane) == ("orders", lane)
    assert refusal.value.instance == f"workerPool:orders:{lane}"
    assert refusal.value.__cause__ is not None
    assert "'orders'" in str(refusal.value)
    assert await store.count() == []


async def test_one_bad_item_refuses_the_whole_batch(app: App, handle: Handle):
    with pytest.raises(PayloadInvalid, match="item 1") as refusal:
        await handle.enqueue_many([(Order("ada"),), ("bad",), (Order("bob"),)])

    assert (refusal.value.pool, refusal.value.lane) == ("orders", None)
    assert (await handle.pool.status()).pending == 0


async def test_w22_a_batch_is_one_step_with_positions_per_job(handle: Handle):
    answers = await handle.options(partition="ada").enqueue_many([(Order("ada", n),) for n in range(5)])

    assert [answer.seq for answer in answers] == list(range(answers[0].seq, answers[0].seq + 5))
    assert [answer.position for answer in answers] == [0, 1, 2, 3, 4]
    assert [answer.depth for answer in answers] == [1, 2, 3, 4, 5]
    assert await handle.enqueue_many([]) == []


async def test_a_batch_in_chunks_is_all_or_nothing_per_chunk(handle: Handle):
    answers = await handle.enqueue_many(({"order": Order("ada", n)} for n in range(7)), chunk=3)
    assert len(answers) == 7

    with pytest.raises(PayloadInvalid) as refusal:
        await handle.enqueue_many([(Order("ada"),), (Order("ada"),), ("bad",)], chunk=2)
    assert refusal.value.__notes__ == ["2 jobs of this call were enqueued before the chunk that failed."]
    assert (await handle.pool.status()).waiting == 9
    with pytest.raises(InvalidInput, match="chunk must be at least 1"):
        await handle.enqueue_many([(Order("ada"),)], chunk=0)


async def test_one_id_does_not_name_many_jobs(handle: Handle):
    with pytest.raises(InvalidInput, match="cannot share one id"):
        await handle.options(id="order-1").enqueue_many([(Order("ada"),)])


# ── partition keys ────────────────────────────────────────────────────────────────────────────


async def test_w03_partition_by_gets_the_arguments_as_the_handler_does(keyed):
    """Decoded and with defaults: also when the producer gave plain data, or left a parameter out."""
    assert (await keyed.enqueue(Order("ada"))).lane == lane_of("ada", 4)
    assert (await keyed.enqueue({"customer": "ada"}, urgent=True)).lane == lane_of("ada", 4)
    answers = await keyed.enqueue_many([(Order("bob"),), {"order": Order("cid"), "urgent": True}])
    assert [answer.lane for answer in answers] == [lane_of("bob", 4), lane_of("cid", 4)]


async def test_w10_the_partition_key_is_kept_for_inspection(app: App, keyed):
    answer = await keyed.enqueue(Order("ada"))

    assert (await app.jobs.get(answer)).group == "ada"
    assert [job.id async for job in app.jobs.find(group="ada")] == [answer.id]


@pytest.mark.parametrize("customer", ["", "x" * 201, "a\0b"])
async def test_every_partition_key_is_validated_not_only_the_first(app: App, keyed, customer: str):
    await keyed.enqueue(Order("ada"))

    with pytest.raises(InvalidInput, match="group"):
        await keyed.enqueue(Order(customer))
    [job] = [job async for job in app.jobs.find(queue="keyed")]
    assert job.group == "ada"


async def test_a_key_given_for_one_job_wins_over_partition_by(app: App, keyed):
    assert (await keyed.options(partition="zoe").enqueue(Order("ada"))).lane == lane_of("zoe", 4)
    dealt = await keyed.options(partition=None).enqueue(Order("ada"))
    assert the(await app.jobs.get(dealt)).group is None


async def test_numbers_and_uuids_are_keys_too(app: App, handle: Handle):
    number, uuid = 42, UUID(int=42)
    answers = [await handle.options(partition=key).enqueue(Order("ada")) for key in (number, "42", uuid)]

    assert [the(await app.jobs.get(answer)).group for answer in answers] == ["42", "42", str(uuid)]


@pytest.mark.parametrize("result", [1.5, ["a"], True])
async def test_a_partition_by_that_answers_nonsense_is_refused(app: App, result):
    @app.pool("odd", lanes=2, partition_by=lambda order: result)
    async def odd(order: str) -> None: ...

    with pytest.raises(InvalidInput, match="the key from partition_by of pool 'odd' must be text"):
        await odd.enqueue("a")


async def test_a_partition_by_that_fails_refuses_the_job_and_says_so(app: App):
    @app.pool("odd", lanes=2, partition_by=lambda order: order["customer"])
    async def odd(order: dict[str, str]) -> None: ...

    with pytest.raises(PayloadInvalid, match="partition_by failed for this job: KeyError: 'customer'") as refusal:
        await odd.enqueue({})
    assert refusal.value.pool == "odd"
    assert isinstance(refusal.value.__cause__, KeyError)


async def test_without_a_key_lanes_are_dealt_in_turn(handle: Handle):
    answers = [await handle.enqueue(Order("ada")) for _ in range(8)]

    assert spread(answers) == {0: 2, 1: 2, 2: 2, 3: 2}


# ── priority, ids, carried jobs ───────────────────────────────────────────────────────────────


async def test_w13_a_higher_priority_goes_before_and_its_position_says_so(app: App):
    ran = []

    @app.pool("one", lanes=1)
    async def one(name: str) -> None:
        ran.append(name)

    await one.enqueue_many([("a",), ("b",)])
    urgent = await one.options(priority=3).enqueue("urgent")
    late = await one.enqueue("c")
    await burst(app)

    assert (urgent.position, late.position) == (0, 3)
    assert ran == ["urgent", "a", "b", "c"]


async def test_a_duplicate_is_an_answer(handle: Handle):
    first = await handle.options(id="order-1").enqueue(Order("ada"))
    again = await handle.options(id="order-1").enqueue(Order("ada"))

    assert (again.is_duplicate, again.seq, again.position) == (True, first.seq, None)
    assert (await handle.pool.status()).pending == 1


async def test_a_pool_may_be_called_for_a_result(app: App):
    @app.pool("upper", lanes=2)
    async def upper(text: str) -> str:
        return text.upper()

    async with worker(app):
        assert await upper.options(partition="x").call("ada") == "ADA"


async def test_specs_of_a_pool_go_in_with_others_as_one_step(app: App, keyed):
    """app.enqueue writes the pool down before its first job."""

    @app.task
    async def notify() -> None: ...

    answers = await app.enqueue([keyed.spec(Order("ada")), notify.spec()])

    assert [answer.lane for answer in answers] == [lane_of("ada", 4), None]


async def test_a_handler_may_carry_jobs_into_a_pool(app: App, keyed):
    @app.task
    async def start(ctx: Context) -> None:
        ctx.enqueue(keyed, Order("ada"))

    await start.enqueue()
    await burst(app)

    assert (await keyed.pool.status()).lanes[lane_of("ada", 4)].processed == 1


# ── backpressure ──────────────────────────────────────────────────────────────────────────────


async def test_w23_a_full_lane_says_its_numbers(app: App):
    @app.pool("small", lanes=2, max_depth=2)
    async def small(order: str) -> None: ...

    hot = small.options(partition="ada")
    await hot.enqueue_many([("a",), ("b",)])
    with pytest.raises(QueueFull) as refusal:
        await hot.enqueue("c")

    full = refusal.value
    assert (full.queue, full.lane, full.depth, full.max_depth) == ("small", lane_of("ada", 2), 2, 2)
    assert (await small.pool.status()).pending == 2


async def test_w23_the_depth_of_a_lane_is_ten_thousand_unless_set(app: App, handle: Handle):
    await handle.enqueue(Order("ada"))
    assert (await handle.pool.queue.settings()).max_depth == 10_000

    unbounded = app.pool("unbounded", lanes=1, max_depth=None)
    await unbounded.status()
    assert (await unbounded.queue.settings()).max_depth is None


async def test_an_operator_may_set_another_depth_and_it_stays(app: App, store: Store, handle: Handle):
    await handle.enqueue(Order("ada"))
    await handle.pool.queue.set(max_depth=5)

    elsewhere = App(store).pool("orders", lanes=4)
    await elsewhere.declare()
    assert (await elsewhere.queue.settings()).max_depth == 5


async def test_a_producer_may_wait_for_room(app: App):
    @app.pool("small", lanes=1, max_depth=1)
    async def small(order: str) -> None: ...

    patient = small.options(wait_for_room=60)
    async with worker(app):
        answers = [await patient.enqueue(str(n)) for n in range(20)]
        batch = await patient.enqueue_many([(str(n),) for n in range(5)], chunk=1)
        await until(lambda: _all_done(small.pool))

    assert len({answer.seq for answer in (*answers, *batch)}) == 25
    assert (await small.pool.status()).processed == 25


async def _all_done(pool):
    return (await pool.status()).pending == 0


async def test_a_producer_waits_no_longer_than_it_said(app: App):
    @app.pool("small", lanes=1, max_depth=1)
    async def small(order: str) -> None: ...

    await small.enqueue("a")
    with pytest.raises(QueueFull) as refusal:
        await small.options(wait_for_room="50ms").enqueue("b")

    assert refusal.value.__notes__ == ["Waited 0.05 s for room."]
    assert (await small.pool.status()).pending == 1


async def test_who_waits_for_ever_is_told_when_there_can_never_be_room(app: App):
    @app.pool("small", lanes=2, max_depth=3)
    async def small(order: str) -> None: ...

    patient = small.options(wait_for_room=None)
    with pytest.raises(QueueFull):
        await patient.enqueue_many([(str(n),) for n in range(7)])
    with pytest.raises(QueueFull):
        await small.options(partition=a_key(1, 2), wait_for_room=None).enqueue_many([(str(n),) for n in range(4)])

    assert len(await patient.enqueue_many([(str(n),) for n in range(6)])) == 6


async def test_w35_a_hot_partition_fills_its_own_lane_only(app: App):
    """Jobs without a key pass over the full lane."""

    @app.pool("small", lanes=3, max_depth=2)
    async def small(order: str) -> None: ...

    await small.options(partition=a_key(1, 3)).enqueue_many([("a",), ("b",)])
    answers = await small.enqueue_many([(str(n),) for n in range(4)])

    assert spread(answers) == {0: 2, 2: 2}


async def test_w05_a_payload_that_is_too_large_is_refused(app: App):
    @app.pool("blobs", lanes=1)
    async def blobs(text: str) -> None: ...

    with pytest.raises(PayloadInvalid, match="the limit is 1,048,576") as refusal:
        await blobs.enqueue("x" * 1_100_000)
    assert refusal.value.pool == "blobs"


def test_the_largest_batch_is_what_the_documentation_says():
    assert MOST_AT_ONCE == 10_000


async def test_a_wait_for_room_is_taken_back_by_zero(app: App):
    @app.pool("narrow", lanes=1, max_depth=1)
    async def handle() -> None: ...

    await handle.enqueue()
    with pytest.raises(QueueFull) as full:
        await handle.options(wait_for_room=0.01).options(wait_for_room=0).enqueue()
    assert not hasattr(full.value, "__notes__")  # which would say how long it has waited


async def test_nobody_waits_for_room_inside_a_transaction_that_keeps_everybody_else_waiting(app: App):
    @app.pool("narrow", lanes=1, max_depth=1)
    async def handle() -> None: ...

    both: list[dict[str, Any]] = [
        {"within": object(), "wait_for_room": 30},
        {"wait_for_room": None, "within": object()},
    ]
    for given in both:
        with pytest.raises(InvalidInput, match="wait_for_room does not work.*before you commit"):
            handle.options(**given)
    with pytest.raises(InvalidInput, match="wait_for_room does not work"):
        handle.options(wait_for_room=30).options(within=object())
    handle.options(wait_for_room=30, within=None)
    handle.options(within=object(), wait_for_room=0)


async def test_a_source_that_breaks_off_says_how_many_jobs_are_in(app: App, handle: Handle):
    def broken():
        yield from [(Order("ada"),)] * 5
        raise OSError("the file ended early")

    for task in (handle, handle.options(wait_for_room=1)):
        with pytest.raises(OSError, match="early") as error:
            await task.enqueue_many(broken(), chunk=2)
        assert error.value.__notes__ == ["4 jobs of this call were enqueued before the chunk that failed."]
