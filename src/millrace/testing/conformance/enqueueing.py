"""Enqueue: what the store keeps and answers, enqueues of many jobs, and repeated calls.

The token of a spec identifies one enqueue. If a client repeats a call after a lost reply, the store recognizes the
token.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from millrace.domain.change import Change
from millrace.domain.errors import QueueFull
from millrace.domain.job import Spec, State, word
from millrace.domain.request import Query
from millrace.domain.retry import RetryPolicy
from millrace.domain.rules.precedence import NAMES, is_explicit, with_origin
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    complete,
    control,
    count,
    found,
    gone,
    kinds,
    put,
    put_cancelled,
    put_dead,
    show,
    take,
    take_ids,
)


async def test_an_enqueued_job_is_kept_as_it_was_asked_for(store: Store, clock: VirtualClock) -> None:
    """The stored job has the spec that was enqueued, and the initial values of a waiting job."""
    spec = await put(store, payload=b'{"to": "ada"}', priority=3, headers={"trace": "7"}, group="ada", timeout=9)

    job = await show(store, spec)

    assert job.spec == spec
    assert (job.state, job.attempt, job.failures, job.generation) == (State.WAITING, 0, 0, 1)
    assert job.enqueued_at == job.available_at == clock()
    assert (job.worker, job.lease_id, job.lease_until, job.started_at, job.finished_at) == (None,) * 5


async def test_a_job_keeps_every_field_that_it_was_given(store: Store, clock: VirtualClock) -> None:
    """Get and find return every field of the spec unchanged."""
    await put(store, id="parent")
    spec = Spec(
        id="full",
        task="work",
        queue="its-own",
        payload=b"\x00\xff",
        serde="msgpack",
        token="asked once",
        priority=7,
        delay=60_000,
        expires=3_600_000,
        group="ada",
        retry_blocks=False,
        key="unique",
        scope="window",
        window=5_000,
        on_hit="replace",
        reuse=False,
        rerun_expired=True,
        after=("parent", "missing"),
        on_dependency="run",
        allow_missing=True,
        max_attempts=9,
        max_stalls=2,
        retry=RetryPolicy(initial=2_000, factor=3, maximum=90_000, jitter=0.5),
        timeout=9_000,
        on_timeout="bury",
        lease=7_000,
        keep_result=60_000,
        on_dead_letter="tell",
        hook=True,
        headers={"trace": "7"},
        origin=5,
        tags=("import", "eu"),
    )
    unchanged = [field.name for field in structs.fields(Spec) if getattr(spec, field.name) == field.default]
    assert unchanged == []  # add new fields above

    await store.enqueue([spec])

    job = await show(store, spec)
    assert job.spec == spec
    page = await store.find(Query(queue=spec.queue))
    assert [one.spec for one in page.jobs] == [spec]


async def test_a_new_job_is_ready_scheduled_or_blocked_by_its_facts(store: Store, clock: VirtualClock) -> None:
    """A new job is shown as scheduled if it has a delay, as blocked if it waits for parents, and otherwise as ready."""
    ready = await put(store)
    scheduled = await put(store, delay=5)
    blocked = await put(store, after=(ready.id,))

    words = [word(await show(store, spec), clock()) for spec in (ready, scheduled, blocked)]

    assert words == ["ready", "scheduled", "blocked"]


async def test_enqueue_answers_once_per_spec_in_order(store: Store, clock: VirtualClock) -> None:
    """Enqueue returns one answer for each spec, in the same order, with increasing seqs."""
    asked = specs(5)

    answers = await store.enqueue(asked)

    assert [answer.id for answer in answers] == [spec.id for spec in asked]
    assert {answer.status for answer in answers} == {"queued"}
    seqs = [answer.seq for answer in answers]
    assert seqs == sorted(set(seqs))


async def test_enqueueing_nothing_answers_nothing(store: Store, clock: VirtualClock) -> None:
    assert await store.enqueue([]) == []
    assert await found(store, archived=None) == []


async def test_seq_only_grows_also_over_pruned_jobs(store: Store, clock: VirtualClock) -> None:
    """A new job has a higher seq than all earlier jobs, even if those were pruned."""
    await control(store, keep_completed=0)
    [first] = await store.enqueue([a_spec()])
    await complete(store, await take(store))
    [second] = await store.enqueue([a_spec()])

    assert second.seq > first.seq


async def test_jobs_of_one_call_go_to_their_own_queues(store: Store, clock: VirtualClock) -> None:
    mail, video = a_spec(queue="mail"), a_spec(queue="video")
    await store.enqueue([mail, video])

    assert await take_ids(store, queue="video") == [video.id]
    assert await take_ids(store, queue="mail") == [mail.id]


async def test_a_thousand_jobs_in_one_call_are_all_there(store: Store, clock: VirtualClock) -> None:
    """One call can enqueue 1,000 jobs, and they are claimed in the same order."""
    asked = specs(1_000)
    await store.enqueue(asked)

    assert (await count(store)).waiting == 1_000
    assert await take_ids(store, 1_000) == [spec.id for spec in asked]


async def test_the_same_enqueue_asked_again_gets_the_same_answer(store: Store, clock: VirtualClock) -> None:
    """A client that lost the reply repeats the call: it gets the same answer, and no second job is created."""
    spec = a_spec()
    [first] = await store.enqueue([spec])
    [again] = await store.enqueue([spec])

    assert (again.status, again.id, again.seq, again.generation) == ("queued", spec.id, first.seq, first.generation)
    assert (await count(store)).waiting == 1


@pytest.mark.parametrize("fate", ["running", "completed", "dead", "cancelled", "pruned"])
async def test_the_same_token_gets_the_same_answer_whatever_has_become_of_the_job(
    store: Store, clock: VirtualClock, fate: str
) -> None:
    spec = a_spec()
    [first] = await store.enqueue([spec])
    await _let(store, spec.id, fate)

    [again] = await store.enqueue([spec])

    assert (again.status, again.seq, again.generation) == ("queued", first.seq, first.generation)
    assert (await kinds(store, spec)).count("enqueued") == 1
    assert await take_ids(store) == []


async def test_the_token_of_an_older_generation_gets_its_own_answer(store: Store, clock: VirtualClock) -> None:
    """Repeating the enqueue of an older generation returns the seq and generation of that older job."""
    spec = a_spec()
    [first] = await store.enqueue([spec])
    await store.cancel([spec.id])
    await store.enqueue([a_spec(id=spec.id)])
    [again] = await store.enqueue([spec])

    assert (again.status, again.seq, again.generation) == ("queued", first.seq, 1)
    assert (await show(store, spec)).generation == 2


async def test_a_batch_asked_again_enqueues_nothing_twice(store: Store, clock: VirtualClock) -> None:
    """A client that repeats an enqueue of many jobs gets the same seqs, and no job is created again."""
    asked = specs(10)
    first = await store.enqueue(asked)
    again = await store.enqueue(asked)

    assert [answer.seq for answer in again] == [answer.seq for answer in first]
    assert (await count(store)).waiting == 10


async def test_a_spec_repeated_within_one_call_becomes_one_job(store: Store, clock: VirtualClock) -> None:
    spec = a_spec()
    first, again = await store.enqueue([spec, spec])

    assert (first.status, again.status, again.seq) == ("queued", "queued", first.seq)
    assert (await count(store)).waiting == 1


async def test_two_specs_of_one_id_within_one_call_are_a_job_and_a_duplicate(store: Store, clock: VirtualClock) -> None:
    first, second = await store.enqueue([a_spec(id="a", payload=b"1"), a_spec(id="a", payload=b"2")])

    assert (first.status, second.status, second.by, second.payload_differs) == ("queued", "duplicate", "id", True)
    assert (await show(store, "a")).payload == b"1"


async def test_without_a_token_asking_again_is_a_duplicate(store: Store, clock: VirtualClock) -> None:
    spec = a_spec(token="")
    await store.enqueue([spec])
    [again] = await store.enqueue([spec])

    assert (again.status, again.by) == ("duplicate", "id")


async def test_a_full_queue_refuses_and_says_how_full_it_is(store: Store, clock: VirtualClock) -> None:
    """An enqueue above `max_depth` raises QueueFull with the queue's depth and limit."""
    await control(store, max_depth=2)
    await store.enqueue(specs(2))

    with pytest.raises(QueueFull) as refusal:
        await store.enqueue([a_spec()])

    assert (refusal.value.queue, refusal.value.depth, refusal.value.max_depth) == ("default", 2, 2)
    assert (await count(store)).waiting == 2


async def test_a_batch_that_does_not_fit_leaves_nothing(store: Store, clock: VirtualClock) -> None:
    """If one queue of a call has no room for its jobs, no job of the call is stored, in any queue."""
    await control(store, "small", max_depth=2)
    elsewhere = a_spec()

    with pytest.raises(QueueFull):
        await store.enqueue([elsewhere, *specs(3, queue="small")])

    assert await found(store) == []
    assert (await store.events(None, 100)).events == ()
    assert await gone(store, elsewhere)


@pytest.mark.parametrize("there", [0, 3])
async def test_a_batch_that_does_not_fit_is_told_how_many_wait_without_it(
    store: Store, clock: VirtualClock, there: int
) -> None:
    """The depth in QueueFull does not include the refused jobs."""
    await control(store, max_depth=5)
    await control(store, "pool", lanes=1, max_depth=5)
    await store.enqueue([*specs(there), *specs(there, queue="pool")])

    with pytest.raises(QueueFull, match=rf"has {there} waiting jobs, .* has more than {5 - there} jobs\.") as of_queue:
        await store.enqueue(specs(6 - there))
    with pytest.raises(QueueFull) as of_lane:
        await store.enqueue(specs(6 - there, queue="pool", group="g"))

    assert (of_queue.value.depth, of_queue.value.max_depth, of_queue.value.lane) == (there, 5, None)
    assert (of_lane.value.depth, of_lane.value.max_depth, of_lane.value.lane) == (there, 5, 0)


async def test_a_batch_that_just_fits_is_taken(store: Store, clock: VirtualClock) -> None:
    await control(store, max_depth=3)
    answers = await store.enqueue(specs(3))

    assert [answer.depth for answer in answers] == [1, 2, 3]


async def test_running_jobs_take_no_room_and_a_claim_makes_some(store: Store, clock: VirtualClock) -> None:
    await control(store, max_depth=1)
    await put(store)
    await take(store)

    await put(store)

    assert (await count(store)).running == (await count(store)).waiting == 1


async def test_a_duplicate_takes_no_room(store: Store, clock: VirtualClock) -> None:
    await control(store, max_depth=1)
    spec = await put(store)

    [by_token] = await store.enqueue([spec])
    [by_id] = await store.enqueue([a_spec(id=spec.id)])

    assert (by_token.status, by_id.status) == ("queued", "duplicate")


async def test_depth_is_answered_where_a_limit_is_set(store: Store, clock: VirtualClock) -> None:
    [plain] = await store.enqueue([a_spec()])
    await control(store, max_depth=10)
    [limited] = await store.enqueue([a_spec()])

    assert (plain.depth, limited.depth) == (None, 2)


async def test_a_dead_or_cancelled_id_may_be_enqueued_again_as_a_new_generation(
    store: Store, clock: VirtualClock
) -> None:
    for made in (await put_dead(store), await put_cancelled(store)):
        [again] = await store.enqueue([a_spec(id=made.id)])

        assert (again.status, again.generation, again.state) == ("queued", 2, State.WAITING)
        assert await kinds(store, made) == [*(await kinds(store, made))[:-2], "pruned", "enqueued"]
        job = await show(store, made)
        assert (job.attempt, job.failures, job.attempts, job.error) == (0, 0, (), None)


async def test_a_pruned_id_may_be_enqueued_again_as_a_new_generation(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=60)
    spec = await put(store)
    await complete(store, await take(store))
    clock.advance(61)
    assert (await store.maintain()).pruned == 1

    [again] = await store.enqueue([a_spec(id=spec.id)])

    assert (again.status, again.generation) == ("queued", 2)


async def test_the_lease_of_an_older_generation_cannot_settle_the_newer(store: Store, clock: VirtualClock) -> None:
    """A settle under the lease of an older generation is LOST, and does not affect the newer job with the same id."""
    spec = await put(store)
    old = await take(store)
    await store.obliterate("default")
    await store.enqueue([a_spec(id=spec.id)])
    new = await take(store)

    assert new.seq != old.seq
    assert new.fence > old.fence
    [receipt] = await store.settle([(old.lease, Change.completed())])
    assert receipt == "lost"
    assert (await show(store, spec)).state is State.RUNNING


async def test_a_delay_counts_from_the_enqueue(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, delay=10)

    assert (await show(store, spec)).available_at == clock() + seconds(10)


async def _let(store: Store, job_id: str, fate: str) -> None:
    if fate == "cancelled":
        await store.cancel([job_id])
        return
    if fate == "pruned":
        await control(store, keep_completed=0)
    [job] = await store.claim(a_claim())
    if fate == "dead":
        await store.settle([(job.lease, Change.bury(None, "explicit_fail"))])
    elif fate != "running":
        await complete(store, job)


async def test_what_a_job_says_of_its_policy_is_told_apart_from_what_was_filled_in(
    store: Store, clock: VirtualClock
) -> None:
    """The store keeps which options the caller set explicitly. A worker's defaults apply only to options that were not
    set.
    """
    said = with_origin(a_spec(id="said"), NAMES)
    filled_in = with_origin(a_spec(id="filled in", lease=9, timeout=None, max_attempts=2, group="g"), ())
    by_hand = a_spec(id="by hand", lease=9)
    await store.enqueue([said, filled_in, by_hand])

    found = await store.get(["said", "filled in", "by hand"])
    claimed = await store.claim(a_claim(3))

    for jobs in (found, claimed):
        names = {job.id: [name for name in NAMES if is_explicit(job.spec, name)] for job in jobs if job is not None}
        assert names == {"said": list(NAMES), "filled in": [], "by hand": ["lease"]}
