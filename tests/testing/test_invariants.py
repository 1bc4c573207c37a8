"""The checker finds every violation: healthy evidence passes, and each doctored one is named."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, State
from millrace.domain.settings import QueueSettings
from millrace.store.memory import MemoryStore
from millrace.testing import Evidence, VirtualClock, assert_holds, check, days, gather, seconds
from millrace.testing.builders import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, specs
from millrace.testing.clock import START
from millrace.testing.conformance.scenes import bury, complete, control, finish, put, put_completed, retry, take
from millrace.testing.invariants import Pause


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def evidence(clock: VirtualClock) -> Evidence:
    """A store in which a little of everything has happened, and all is well."""
    store = MemoryStore(clock=clock)
    await control(store, "pool", lanes=1)
    await put(store, id="parent")
    await put(store, id="child", after=("parent",))
    await complete(store, await take(store))
    await complete(store, await take(store))
    await put(store, id="retried", max_attempts=2)
    await retry(store, await take(store), delay=5)
    clock.advance(5)
    await bury(store, await take(store))
    await store.archive(["retried"])
    await put(store, id="lost")
    await take(store, lease=10)
    clock.advance(11)
    [lost] = await store.reclaim(a_reclaim())
    await finish(store, lost, a_retry_change())
    await finish(store, await take(store), Change.snooze(0))
    await finish(store, await take(store), Change.release())
    await complete(store, await take(store))
    await store.replay(["lost"])
    await complete(store, await take(store))
    await put(store, id="cancelled")
    await store.cancel(["cancelled"])
    for n in range(3):
        await put(store, id=f"lane-{n}", queue="pool")
    await complete(store, await take(store, queue="pool"))
    await take(store, queue="pool")
    await control(store, "brief", keep_completed=0)
    await put_completed(store, id="pruned", queue="brief")
    await put(store, id="key", key="k", queue="keys")
    await put(store, id="waiting", delay=60)
    return await gather(store, since=START)


def event(evidence: Evidence, job: str, kind: Kind, nth: int = 0) -> int:
    return [at for at, each in enumerate(evidence.events) if each.job == job and each.kind is kind][nth]


def change(evidence: Evidence, job: str, kind: Kind, nth: int = 0, /, **facts: object) -> None:
    at = event(evidence, job, kind, nth)
    evidence.events[at] = msgspec.structs.replace(evidence.events[at], **facts)


def drop(evidence: Evidence, job: str, kind: Kind, nth: int = 0) -> None:
    del evidence.events[event(evidence, job, kind, nth)]


def record(evidence: Evidence, job: str) -> Job:
    return next(each for each in evidence.jobs if each.id == job)


def later(evidence: Evidence, job: str, kind: Kind, **facts: object) -> None:
    """Put one more event at the end of a job's life, and bring its record in line with it."""
    last = next(each for each in reversed(evidence.events) if each.job == job)
    added = msgspec.structs.replace(last, kind=kind, n=last.n + 1, **facts)
    evidence.events.append(added)
    for each in evidence.jobs:
        if each.id == job:
            each.events, each.state, each.attempt = added.n, State(added.state), added.attempt
            if added.state == "running":
                each.lease_id = added.lease


def move_before(evidence: Evidence, one: tuple[str, Kind], other: tuple[str, Kind]) -> None:
    moved: Event = evidence.events.pop(event(evidence, *one))
    evidence.events.insert(event(evidence, *other), moved)


def count_up(evidence: Evidence, queue: str, **numbers: int) -> None:
    at = next(at for at, row in enumerate(evidence.counts) if row.queue == queue)
    row = evidence.counts[at]
    evidence.counts[at] = msgspec.structs.replace(
        row, **{name: getattr(row, name) + more for name, more in numbers.items()}
    )


async def test_a_healthy_store_violates_nothing(evidence: Evidence) -> None:
    assert check(evidence) == []
    assert_holds(evidence)


def start_again(name: str, **facts: object) -> Callable[[Evidence], None]:
    return lambda e: later(e, name, Kind.CLAIMED, state="running", lease="again", attempt=99, **facts)


def set_record(name: str, **facts: object) -> Callable[[Evidence], None]:
    def doctor(evidence: Evidence) -> None:
        for fact, value in facts.items():
            setattr(record(evidence, name), fact, value)

    return doctor


def set_max_running(evidence: Evidence) -> None:
    evidence.settings["pool"] = QueueSettings(max_running=0)


def most_that_ran(evidence: Evidence) -> None:
    evidence.fixed_limits = True
    evidence.settings["default"] = QueueSettings(max_running=1)
    at = event(evidence, "parent", Kind.COMPLETED)
    evidence.events.append(evidence.events.pop(at))


def second_owner(evidence: Evidence) -> None:
    other = copy.copy(record(evidence, "key"))
    other.spec = msgspec.structs.replace(other.spec, id="other")
    evidence.jobs.append(other)


def second_seq(evidence: Evidence) -> None:
    evidence.events.reverse()


def resurrect(evidence: Evidence) -> None:
    seq = evidence.events[event(evidence, "pruned", Kind.PRUNED)].seq
    back = copy.copy(record(evidence, "parent"))
    back.spec, back.seq = msgspec.structs.replace(back.spec, id="pruned", queue="brief"), seq
    evidence.jobs.append(back)


DOCTORED: dict[str, tuple[str, Callable[[Evidence], None]]] = {
    "a transition without an event": ("events", lambda e: drop(e, "lost", Kind.SNOOZED)),
    "an event told twice": ("events", lambda e: change(e, "child", Kind.COMPLETED, n=2)),
    "a life that begins in the middle": ("events", lambda e: drop(e, "lost", Kind.ENQUEUED)),
    "a first event that is not the first": ("events", lambda e: change(e, "cancelled", Kind.ENQUEUED, n=2)),
    "a seq that is another job": ("events", lambda e: change(e, "child", Kind.CLAIMED, job="other")),
    "a record without events": ("events", lambda e: drop(e, "waiting", Kind.ENQUEUED)),
    "seqs drawn out of order": ("seq", second_seq),
    "an illegal step": ("transition", lambda e: change(e, "child", Kind.COMPLETED, kind=Kind.UNBLOCKED)),
    "a step to the wrong state": ("transition", lambda e: change(e, "cancelled", Kind.CANCELLED, state="dead")),
    "enqueued twice": ("transition", lambda e: later(e, "waiting", Kind.ENQUEUED)),
    "life after pruning": ("transition", lambda e: later(e, "pruned", Kind.ARCHIVED)),
    "archived twice": ("transition", lambda e: later(e, "retried", Kind.ARCHIVED)),
    "an eviction of what is not dead": ("transition", lambda e: later(e, "parent", Kind.EVICTED)),
    "an attempt that shrinks": ("attempt", lambda e: change(e, "retried", Kind.CLAIMED, 1, attempt=1)),
    "an attempt counted without a claim": ("attempt", lambda e: change(e, "retried", Kind.BURIED, attempt=3)),
    "more failures than the budget": ("failures", lambda e: change(e, "retried", Kind.BURIED, failures=3)),
    "a retry that is not counted": ("failures", lambda e: change(e, "retried", Kind.RETRIED, failures=0)),
    "a snooze that is counted": ("failures", lambda e: change(e, "lost", Kind.SNOOZED, failures=2)),
    "a replay that keeps failures": ("failures", lambda e: change(e, "lost", Kind.REPLAYED, failures=1)),
    "more runs than allowed": ("runs", set_record("retried", attempt=3)),
    "two leases at once": ("two_leases", start_again("lane-1")),
    "a takeover of a live lease": ("two_leases", lambda e: change(e, "lost", Kind.RECLAIMED, at=START)),
    "a finished job that runs": ("finished_runs", start_again("parent")),
    "a cancelled job that starts": ("cancelled_starts", start_again("cancelled")),
    "a start before its time": ("too_early", lambda e: change(e, "retried", Kind.CLAIMED, 1, at=START + 4_999)),
    "a settle without the lease": ("fence", lambda e: change(e, "child", Kind.COMPLETED, lease="stale")),
    "a run under another lease": ("fence", set_record("lane-1", lease_id="other")),
    "a finished job with a worker": ("fence", set_record("parent", worker="w")),
    "a lease given out twice": ("lease", lambda e: change(e, "child", Kind.CLAIMED, lease=e.events[2].lease)),
    "a claim without a lease": ("lease", lambda e: change(e, "child", Kind.CLAIMED, lease=None)),
    "a child before its parent": (
        "before_parent",
        lambda e: move_before(e, ("child", Kind.CLAIMED), ("parent", Kind.COMPLETED)),
    ),
    "a job that is lost": ("lost", lambda e: e.jobs.remove(record(e, "waiting"))),
    "a pruned job that is still there": ("lost", resurrect),
    "a record that says otherwise": ("record", set_record("waiting", state=State.CANCELLED)),
    "a flag that says otherwise": ("record", set_record("retried", archived=False)),
    "two running in one lane": (
        "two_in_line",
        lambda e: later(e, "lane-2", Kind.CLAIMED, state="running", lease="x", attempt=1),
    ),
    "a lane out of order": (
        "line_order",
        lambda e: e.events.append(e.events.pop(event(e, "lane-0", Kind.CLAIMED))) or drop(e, "lane-0", Kind.COMPLETED),
    ),
    "too many running now": ("max_running", set_max_running),
    "too many ran at once": ("max_running", most_that_ran),
    "a claim from a paused queue": (
        "claimed_while_paused",
        lambda e: setattr(e, "pauses", (Pause("default", START - 1, START + 1),)),
    ),
    "two owners of one key": ("key", second_owner),
    "a wrong count": ("counts", lambda e: count_up(e, "default", waiting=1)),
    "a wrong word": ("counts", lambda e: count_up(e, "default", scheduled=1)),
    "a wrong count of what was done": ("counts", lambda e: count_up(e, "pool", processed=1)),
    "too few deaths": ("counts", lambda e: count_up(e, "default", died=-1)),
}


@pytest.mark.parametrize("what", DOCTORED)
async def test_doctored_evidence_is_found_out(evidence: Evidence, what: str) -> None:
    name, doctor = DOCTORED[what]
    doctor(evidence)

    assert name in {violation.name for violation in check(evidence)}


async def test_the_error_names_what_was_violated(evidence: Evidence) -> None:
    count_up(evidence, "default", dead=1)

    with pytest.raises(AssertionError, match="1 violations.*\n.*counts: default: dead is 2, a recount gives 1"):
        assert_holds(evidence)


async def test_what_may_have_been_trimmed_is_excused(evidence: Evidence) -> None:
    del evidence.events[:7]
    assert check(evidence) != []
    evidence.keep_events, evidence.now = days(7), START + days(8)
    evidence.steady = False

    assert check(evidence) == []


async def test_where_steps_overlap_seqs_may_be_told_of_out_of_order_but_not_within_a_line(evidence: Evidence) -> None:
    move_before(evidence, ("key", Kind.ENQUEUED), ("cancelled", Kind.ENQUEUED))
    assert [violation.name for violation in check(evidence)] == ["seq"] * 5  # each that was told of after it
    evidence.steps_overlap = True
    assert check(evidence) == []

    move_before(evidence, ("lane-2", Kind.ENQUEUED), ("lane-1", Kind.ENQUEUED))

    assert [violation.name for violation in check(evidence)] == ["seq"]


async def test_a_member_in_backoff_that_is_passed_is_found_out(clock: VirtualClock) -> None:
    store = MemoryStore(clock=clock)
    await put(store, id="held", group="g")
    await put(store, id="next", group="g")
    await retry(store, await take(store), delay=60)
    evidence = await gather(store, since=START)
    assert check(evidence) == []
    later(evidence, "next", Kind.CLAIMED, state="running", lease="x", attempt=1)

    assert "line_order" in {violation.name for violation in check(evidence)}


async def test_a_group_out_of_order_is_found_out_and_delayed_members_are_excused(clock: VirtualClock) -> None:
    store = MemoryStore(clock=clock)
    await put(store, id="delayed", group="g", delay=5, priority=9)
    await put(store, id="first", group="g")
    await put(store, id="second", group="g")
    clock.advance(10)
    evidence = await gather(store, since=START)
    healthy, doctored = copy.deepcopy(evidence), copy.deepcopy(evidence)
    later(healthy, "first", Kind.CLAIMED, state="running", lease="x", attempt=1, at=clock())
    later(doctored, "second", Kind.CLAIMED, state="running", lease="x", attempt=1, at=clock())

    assert "line_order" not in {violation.name for violation in check(healthy)}
    assert "line_order" in {violation.name for violation in check(doctored)}


async def test_a_replayed_member_that_waits_for_its_parent_again_is_no_reason_to_wait_for_it(
    clock: VirtualClock,
) -> None:
    store = MemoryStore(clock=clock)
    await put(store, id="parent")
    await put(store, id="child", group="g", after=("parent",))
    await put(store, id="other", group="g")
    for job in await store.claim(a_claim(5)):
        if job.id == "parent":
            await store.settle([(job.lease, a_burial())])
        else:
            await store.settle([(job.lease, Change.release())])
    await store.replay(["parent"])
    await store.replay(["child"])
    [child] = await store.get(["child"])
    assert child is not None and child.blocked == 1

    claimed = {job.id for job in await store.claim(a_claim(5))}

    assert claimed == {"parent", "other"}
    assert check(await gather(store, since=START)) == []


async def test_ten_thousand_jobs_are_checked_in_two_seconds(clock: VirtualClock) -> None:
    store = MemoryStore(clock=clock)
    await control(store, "pool", lanes=10)
    await store.enqueue([*specs(5_000), *(a_spec(queue="pool", group=str(n % 99)) for n in range(5_000))])
    while jobs := await store.claim(a_claim(1_000, queues=("default", "pool"))):
        await store.settle([(job.lease, Change.completed()) for job in jobs])
    evidence = await gather(store, since=START)
    begun = time.perf_counter()

    assert check(evidence) == []
    assert time.perf_counter() - begun < 2
    assert (len(evidence.jobs), len(evidence.events)) == (10_000, 30_000)


async def test_gathering_reads_everything_over_many_pages(clock: VirtualClock) -> None:
    store = MemoryStore(clock=clock)
    await store.enqueue(specs(2_500))
    evidence = await gather(store)

    assert (len(evidence.jobs), len(evidence.events), evidence.steady) == (2_500, 2_500, True)
    assert evidence.whole is False
    assert msgspec.structs.replace(evidence, keep_events=None).whole
    assert msgspec.structs.replace(evidence, since=START, now=START + days(7)).whole is False
    assert msgspec.structs.replace(evidence, since=START, now=START + days(7) - seconds(1)).whole
