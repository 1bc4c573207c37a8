"""Admission: what an enqueue comes to, decided before the first job is written. On the ledger itself."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.change import Change
from millrace.domain.errors import DeadLettersFull, DependencyCycle, DuplicateKey, QueueFull, UnknownDependency
from millrace.domain.job import Job, Spec, State
from millrace.domain.ledger import Ledger
from millrace.domain.request import Cancelled, Enqueued
from millrace.domain.rules import admission, operate
from millrace.store.memory.tables import MemoryTables
from millrace.testing import a_burial, a_claim, a_spec, specs

NOW = 1_000_000


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryTables())


def put(ledger: Ledger, *asked: Spec, now: int = NOW) -> list[Enqueued]:
    return ledger.enqueue(asked, now)


def run(ledger: Ledger, change: Change, now: int = NOW) -> Job:
    [job] = ledger.claim(a_claim(), f"claim-{now}", now)
    ledger.settle([(job.lease, change)], now)
    return job


def control(ledger: Ledger, **changes: object) -> None:
    operate.control(ledger, "queue", "default", changes, NOW)


def job(ledger: Ledger, job_id: str) -> Job:
    [found] = ledger.get([job_id], NOW)
    assert found is not None
    return found


def test_a_refused_batch_writes_nothing_at_all(ledger: Ledger) -> None:
    control(ledger, max_depth=2)
    before = ledger.tables.feed_bounds(), ledger.tables.next_seqs(1)[0]
    for bad in (
        [a_spec(), a_spec(after=("nobody",))],
        [a_spec(id="a", after=("b",)), a_spec(id="b", after=("a",))],
        specs(3),
    ):
        with pytest.raises((UnknownDependency, DependencyCycle, QueueFull)):
            ledger.enqueue(bad, NOW)

    assert (ledger.tables.feed_bounds(), ledger.tables.next_seqs(1)[0]) == (before[0], before[1] + 1)
    assert ledger.tables.queue("default").waiting == 0


def test_round_robin_counts_new_jobs_only(ledger: Ledger) -> None:
    control(ledger, lanes=3)
    spec = a_spec()
    lanes = [answer.lane for answer in put(ledger, spec, spec, a_spec(group="g"), a_spec(), a_spec(), a_spec())]

    assert [lanes[0], *lanes[3:]] == [0, 1, 2, 0]
    assert ledger.tables.queue("default").next_lane == 1


def test_a_hook_takes_no_lane_and_no_room(ledger: Ledger) -> None:
    control(ledger, lanes=2, max_depth=0)
    [answer] = put(ledger, a_spec(hook=True, group="g"))

    assert (answer.status, answer.lane) == ("queued", None)
    assert job(ledger, answer.id).line is None


@pytest.mark.parametrize(("dead", "cap", "refused"), [(1, 1, True), (1, 2, False), (2, 1, True), (0, 0, True)])
def test_with_reject_a_queue_full_of_dead_letters_takes_no_more(
    ledger: Ledger, dead: int, cap: int, refused: bool
) -> None:
    for _ in range(dead):
        put(ledger, a_spec())
        run(ledger, a_burial())
    control(ledger, dead_cap=cap, dead_overflow="reject")

    if not refused:
        put(ledger, a_spec())
        return
    with pytest.raises(DeadLettersFull) as refusal:
        put(ledger, a_spec())
    assert (refusal.value.depth, refusal.value.max_depth) == (dead, cap)
    put(ledger, a_spec(hook=True))
    control(ledger, dead_cap=None)
    put(ledger, a_spec())


def test_with_evict_dead_letters_refuse_nothing(ledger: Ledger) -> None:
    control(ledger, dead_cap=0)
    put(ledger, a_spec())
    run(ledger, a_burial())

    put(ledger, a_spec())


def test_a_batch_is_refused_for_what_came_before_in_it_and_told_what_waits_without_it(ledger: Ledger) -> None:
    control(ledger, max_depth=3)
    put(ledger, a_spec())
    with pytest.raises(QueueFull) as refusal:
        put(ledger, *specs(3))
    assert (refusal.value.depth, refusal.value.lane) == (1, None)

    put(ledger, *specs(2))


def test_replacements_within_a_batch_take_one_place(ledger: Ledger) -> None:
    control(ledger, max_depth=1)
    put(ledger, a_spec(key="k"), a_spec(key="k", on_hit="replace"), a_spec(key="k", on_hit="replace"))

    assert ledger.tables.queue("default").waiting == 1
    with pytest.raises(QueueFull):
        put(ledger, a_spec(key="other", on_hit="replace"))


def test_a_lapsed_window_has_no_owner_at_its_very_end(ledger: Ledger) -> None:
    put(ledger, a_spec(key="k", scope="window", window=1))
    [inside] = put(ledger, a_spec(key="k"), now=NOW + 999)
    [outside] = put(ledger, a_spec(key="k"), now=NOW + 1_000)

    assert (inside.status, outside.status) == ("duplicate", "queued")


def test_a_window_remembers_its_owner_when_nobody_else_does(ledger: Ledger) -> None:
    control(ledger, keep_completed=0)
    put(ledger, a_spec(id="gone", key="k", scope="window", window=100))
    run(ledger, Change.completed())
    for past in list(ledger.tables.past("gone")):
        ledger.tables.drop_past(past)
    [answer] = put(ledger, a_spec(key="k"))

    assert answer == Enqueued("duplicate", "gone", 0, 0, State.COMPLETED, "key")


def test_a_replaced_owner_that_has_begun_to_run_is_kept(ledger: Ledger) -> None:
    put(ledger, a_spec(id="owner", key="k"))
    ledger.claim(a_claim(), "c", NOW)
    [answer] = put(ledger, a_spec(key="k", on_hit="replace"))

    assert (answer.status, answer.id) == ("duplicate", "owner")
    with pytest.raises(DuplicateKey):
        put(ledger, a_spec(key="k", on_hit="raise"))


def test_an_answer_by_key_says_nothing_of_results(ledger: Ledger) -> None:
    put(ledger, a_spec(id="owner", key="k", scope="retained", payload=b"1"))
    run(ledger, Change.completed(b"2"))
    [by_key] = put(ledger, a_spec(key="k", payload=b"3"))
    [by_id] = put(ledger, a_spec(id="owner", payload=b"3"))

    assert (by_key.status, by_key.result, by_key.payload_differs, by_key.result_expired) == (
        "duplicate",
        None,
        True,
        False,
    )
    assert (by_id.status, by_id.result, by_id.payload_differs) == ("completed", b"2", True)


def test_the_generation_after_pruned_ones_is_the_highest_plus_one(ledger: Ledger) -> None:
    control(ledger, keep_completed=0, keep_dead=0)
    for expected in (1, 2, 3):
        [answer] = put(ledger, a_spec(id="a"))
        assert answer.generation == expected
        run(ledger, Change.completed() if expected % 2 else a_burial())
    [duplicate] = put(ledger, a_spec(id="a", reuse=False))

    assert (duplicate.status, duplicate.generation, duplicate.state) == ("duplicate", 3, State.COMPLETED)


def test_the_token_of_an_older_generation_gets_its_own_answer(ledger: Ledger) -> None:
    first = a_spec(id="a")
    [original] = put(ledger, first)
    operate.cancel(ledger, ["a"], "refuse", NOW)
    [second] = put(ledger, a_spec(id="a"))
    [again] = put(ledger, first)

    assert (again.status, again.seq, again.generation) == ("queued", original.seq, 1)
    assert (second.generation, job(ledger, "a").generation) == (2, 2)


def test_an_empty_token_is_nobodys(ledger: Ledger) -> None:
    put(ledger, a_spec(id="a", token=""))
    operate.cancel(ledger, ["a"], "refuse", NOW)
    [reused] = put(ledger, a_spec(id="a", token=""))
    [duplicate, twice] = put(ledger, a_spec(id="a", token=""), a_spec(id="a", token=""))

    assert (reused.status, reused.generation) == ("queued", 2)
    assert (duplicate.status, twice.status) == ("duplicate", "duplicate")


def test_without_reuse_a_cancelled_id_is_answered_from_its_record(ledger: Ledger) -> None:
    put(ledger, a_spec(id="a"))
    assert operate.cancel(ledger, ["a"], "refuse", NOW) == [Cancelled.CANCELLED]
    [answer] = put(ledger, a_spec(id="a", reuse=False))

    assert (answer.status, answer.state, answer.generation) == ("duplicate", State.CANCELLED, 1)


def test_the_first_failed_parent_is_named_and_the_job_waits_for_nobody(ledger: Ledger) -> None:
    put(ledger, a_spec(id="bad"), a_spec(id="worse"), a_spec(id="open", delay=9))
    run(ledger, a_burial())
    operate.cancel(ledger, ["worse"], "refuse", NOW)
    put(ledger, a_spec(id="child", after=("open", "worse", "bad")))

    child = job(ledger, "child")
    assert (child.state, child.reason, child.blocked) == (State.DEAD, "dependency_failed", 0)
    assert child.error is not None and "'worse'" in child.error.message and "was cancelled" in child.error.message
    assert ledger.tables.children("open") == []


def test_a_child_in_the_same_batch_as_the_next_generation_of_its_parent_waits_for_it(ledger: Ledger) -> None:
    put(ledger, a_spec(id="p"))
    run(ledger, a_burial())
    put(ledger, a_spec(id="child", after=("p",)), a_spec(id="p"))

    assert (job(ledger, "child").state, job(ledger, "child").blocked) == (State.WAITING, 1)
    run(ledger, Change.completed())
    assert job(ledger, "child").blocked == 0


def test_a_batch_of_dead_ends_dies_whatever_its_order(ledger: Ledger) -> None:
    put(ledger, a_spec(id="p"))
    run(ledger, a_burial())
    put(ledger, a_spec(id="c", after=("b",)), a_spec(id="b", after=("p",)), a_spec(id="d", after=("c",)))

    assert [job(ledger, name).state for name in "bcd"] == [State.DEAD] * 3
    row = ledger.tables.queue("default")
    assert (row.waiting, row.blocked, row.dead, row.live) == (0, 0, 4, 0)


def test_a_cycle_over_stored_jobs_is_seen_only_if_it_closes(ledger: Ledger) -> None:
    put(ledger, a_spec(id="a", after=("x",), allow_missing=True), a_spec(id="b", after=("a",)))
    put(ledger, a_spec(id="free", after=("b",)))
    with pytest.raises(DependencyCycle) as refusal:
        put(ledger, a_spec(id="x", after=("free",)))

    assert refusal.value.path[0] == refusal.value.path[-1]
    assert set(refusal.value.path) == {"x", "free", "b", "a"}
    put(ledger, a_spec(id="x"))


@settings(deadline=None)
@given(st.integers(2, 8), st.data())
def test_a_cycle_is_refused_exactly_when_there_is_one(size: int, data: st.DataObject) -> None:
    parents = [tuple(sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=3)))) for _ in range(size)]
    order = data.draw(st.permutations(range(size)))
    left = set(range(size))
    while done := {n for n in left if not set(parents[n]) & left}:
        left -= done
    ledger = Ledger(MemoryTables())
    asked = [a_spec(id=f"n-{n}", after=tuple(f"n-{p}" for p in parents[n])) for n in order]

    if not left:
        ledger.enqueue(asked, NOW)
        return
    with pytest.raises(DependencyCycle) as refusal:
        ledger.enqueue(asked, NOW)
    path = [int(name[2:]) for name in refusal.value.path]
    assert path[0] == path[-1]
    assert all(after in parents[before] for before, after in pairwise(path))


@st.composite
def a_wish(draw: st.DrawFn, number: int) -> Spec:
    """A spec that may have a group, a key, a delay, a priority, an expiry, and parents that are stored or earlier."""
    known = ["dead", "completed", "running", "waiting", *(f"new-{n}" for n in range(number))]
    return a_spec(
        id=f"new-{number}",
        queue=draw(st.sampled_from(["default", "other"])),
        group=draw(st.sampled_from([None, "stored", "held", "g", "h"])),
        key=draw(st.sampled_from([None, None, None, f"key-{number}", "key"])),
        scope=draw(st.sampled_from(["live", "window"])),
        window=60,
        priority=draw(st.integers(0, 2)),
        delay=draw(st.sampled_from([0, 0, 0, 5])),
        expires=draw(st.sampled_from([None, None, 9])),
        after=tuple(draw(st.sets(st.sampled_from(known), max_size=2))) if draw(st.booleans()) else (),
        on_dependency=draw(st.sampled_from(["run", "wait", "bury"])),
        allow_missing=True,  # a parent may turn out to be a duplicate
    )


def in_use() -> Ledger:
    """Both queues have a group `stored` with an open job and a group `held` with a running one, and there are parents
    of several states.
    """
    ledger = Ledger(MemoryTables())
    put(ledger, a_spec(id="dead"))
    run(ledger, a_burial())
    put(ledger, a_spec(id="completed"))
    run(ledger, Change.completed(b"1"))
    put(ledger, a_spec(id="running", group="held"), a_spec(id="elsewhere", queue="other", group="held"))
    assert len(ledger.claim(a_claim(2, queues=("default", "other")), "held", NOW)) == 2
    put(ledger, a_spec(id="waiting", group="stored", priority=1), a_spec(queue="other", group="stored", priority=1))
    return ledger


def contents(ledger: Ledger) -> list[object]:
    tables = ledger.tables
    queues = [tables.queue(name) for name in tables.queues()]
    places = [(row.name, f"g:{group}") for row in queues for group in ("stored", "held", "g", "h")]
    jobs = tables.scan(0, 1_000, 1_000)
    return [
        queues,
        [tables.line(*place) for place in places],
        [tables.members(*place, 100) for place in places],
        [(job, tables.children(job.id), tables.parents(job.seq)) for job in jobs],
        [tables.key(job.queue, job.spec.key) for job in jobs if job.spec.key is not None],
        tables.feed(0, 1_000),
    ]


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 6), st.data())
def test_the_specs_of_a_call_become_what_each_would_become_alone(size: int, data: st.DataObject) -> None:
    """A carried enqueue writes one job after the other. Whether the jobs of a call are written together is not seen."""
    wishes = [data.draw(a_wish(number)) for number in range(size)]
    together = in_use()
    control(together, max_depth=data.draw(st.sampled_from([None, None, 99])))
    alone = Ledger(deepcopy(together.tables))
    step = alone.step(NOW)

    answers = together.enqueue(wishes, NOW)
    expected = [answer for wish in wishes for answer in admission.enqueue(step, [wish], carried=True)]
    step.carry_out()

    assert answers == expected
    assert contents(together) == contents(alone)
    later = NOW + 6_000
    claims = [each.claim(a_claim(99, queues=("default", "other")), "after", later) for each in (together, alone)]
    assert claims[0] == claims[1]


def test_a_position_in_a_lane_counts_who_runs_before(ledger: Ledger) -> None:
    control(ledger, lanes=1)
    answers = [put(ledger, a_spec(priority=p))[0] for p in (0, 5, 5, 9, 0)]

    assert [(a.position, a.depth) for a in answers] == [(0, 1), (0, 2), (1, 3), (0, 4), (4, 5)]


def test_depth_is_answered_only_where_it_is_limited(ledger: Ledger) -> None:
    assert [(a.lane, a.position, a.depth) for a in put(ledger, a_spec())] == [(None, None, None)]
    control(ledger, max_depth=9)
    assert [(a.lane, a.position, a.depth) for a in put(ledger, a_spec())] == [(None, None, 2)]
