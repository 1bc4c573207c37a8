"""The checker finds every violation: healthy evidence passes, and each doctored one is named."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import msgspec
import pytest

from millrace.domain.audit import ReportedRun
from millrace.domain.change import Change
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, State
from millrace.domain.request import Enqueued
from millrace.domain.settings import QueueSettings
from millrace.store.memory import MemoryStore
from millrace.testing import Evidence, VirtualClock, assert_holds, check, days, gather, seconds
from millrace.testing.builders import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, specs
from millrace.testing.clock import START
from millrace.testing.conformance.scenes import bury, complete, control, finish, put, put_completed, retry, take
from millrace.testing.invariants import Pause
from tests.narrowing import the


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
    counts = the(evidence.counts)
    at = next(at for at, row in enumerate(counts) if row.queue == queue)
    row = counts[at]
    counts[at] = msgspec.structs.replace(row, **{name: getattr(row, name) + more for name, more in numbers.items()})


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


def out_of_order(evidence: Evidence) -> None:
    evidence.events.append(evidence.events.pop(event(evidence, "lane-0", Kind.CLAIMED)))
    drop(evidence, "lane-0", Kind.COMPLETED)


DOCTORED: dict[str, tuple[str, Callable[[Evidence], None]]] = {
    "a transition without an event": ("numbering", lambda e: drop(e, "lost", Kind.SNOOZED)),
    "an event told twice": ("numbering", lambda e: change(e, "child", Kind.COMPLETED, n=2)),
    "a life that begins in the middle": ("beginning", lambda e: drop(e, "lost", Kind.ENQUEUED)),
    "a first event that is not the first": ("beginning", lambda e: change(e, "cancelled", Kind.ENQUEUED, n=2)),
    "a seq that is another job": ("identity", lambda e: change(e, "child", Kind.CLAIMED, job="other")),
    "a record without events": ("without_events", lambda e: drop(e, "waiting", Kind.ENQUEUED)),
    "seqs drawn out of order": ("seq", second_seq),
    "an illegal step": ("transition", lambda e: change(e, "child", Kind.COMPLETED, kind=Kind.UNBLOCKED)),
    "a step to the wrong state": ("transition", lambda e: change(e, "cancelled", Kind.CANCELLED, state="dead")),
    "enqueued twice": ("transition", lambda e: later(e, "waiting", Kind.ENQUEUED)),
    "life after pruning": ("after_the_end", lambda e: later(e, "pruned", Kind.ARCHIVED)),
    "archived twice": ("archived_twice", lambda e: later(e, "retried", Kind.ARCHIVED)),
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
    "a start before its retry": ("too_early", lambda e: change(e, "lost", Kind.CLAIMED, 1, at=START + 15_999)),
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
        out_of_order,
    ),
    "too many running now": ("max_running", set_max_running),
    "too many ran at once": ("max_running", most_that_ran),
    "a claim from a paused queue": (
        "claimed_while_paused",
        lambda e: setattr(e, "pauses", (Pause("default", 0, len(e.events)),)),
    ),
    "two owners of one key": ("key", second_owner),
    "a wrong count": ("counts", lambda e: count_up(e, "default", waiting=1)),
    "a wrong word": ("counts", lambda e: count_up(e, "default", scheduled=1)),
    "a wrong count of what was done": ("counts", lambda e: count_up(e, "pool", processed=1)),
    "too few deaths": ("counts", lambda e: count_up(e, "default", died=-1)),
}


def set_event(name: str, kind: Kind, nth: int = 0, /, **facts: object) -> Callable[[Evidence], None]:
    return lambda e: change(e, name, kind, nth, **facts)


def set_fact(**facts: object) -> Callable[[Evidence], None]:
    def doctor(evidence: Evidence) -> None:
        for fact, value in facts.items():
            setattr(evidence, fact, value)

    return doctor


def set_run(at: int, **facts: object) -> Callable[[Evidence], None]:
    def doctor(evidence: Evidence) -> None:
        assert evidence.runs is not None
        evidence.runs = list(evidence.runs)
        evidence.runs[at] = msgspec.structs.replace(evidence.runs[at], **facts)

    return doctor


def one_more_run(evidence: Evidence) -> None:
    assert evidence.runs is not None
    evidence.runs = [*evidence.runs, evidence.runs[0]]


def one_answer_more(**facts: object) -> Callable[[Evidence], None]:
    def doctor(evidence: Evidence) -> None:
        token, answer = evidence.answers[0]
        evidence.answers = [*evidence.answers, (token, msgspec.structs.replace(answer, **facts))]

    return doctor


def same_id_again(evidence: Evidence) -> None:
    first = evidence.events[event(evidence, "waiting", Kind.ENQUEUED)]
    evidence.events.append(msgspec.structs.replace(first, seq=first.seq + 1, at=evidence.events[-1].at))


def key_taken_and_left(evidence: Evidence) -> None:
    """Two had the key at once; at the end neither is live, so that only the history tells of it."""
    first = evidence.events[event(evidence, "key", Kind.ENQUEUED)]
    other = msgspec.structs.replace(first, job="other", seq=99, at=evidence.events[-1].at)
    ended = msgspec.structs.replace(other, kind=Kind.CANCELLED, state="cancelled", n=2)
    evidence.specs = {"other": msgspec.structs.replace(record(evidence, "key").spec, id="other")}
    evidence.events += [other, ended]


def too_fast(evidence: Evidence) -> None:
    evidence.settings["default"] = QueueSettings(rate=0.1, burst=1)


def ticks_that_skip(evidence: Evidence) -> None:
    evidence.ticks = {"cron:t:": 1_000}
    for second, at in ((0, 0), (2, 1)):
        tick = msgspec.structs.replace(evidence.events[at], job=f"cron:t:2024-01-01T00:00:0{second}+00:00")
        evidence.events[at] = msgspec.structs.replace(tick, kind=Kind.ENQUEUED)


def extend_the_lost_lease(evidence: Evidence) -> None:
    evidence.leases = {the(evidence.events[event(evidence, "lost", Kind.CLAIMED)].lease): START + 60_000}


TOLD_BY_OTHERS: dict[str, tuple[str, Callable[[Evidence], None]]] = {
    "a feed that goes back in time": ("time", set_event("waiting", Kind.ENQUEUED, at=START)),
    "an id that is still live": ("id", same_id_again),
    "a key that two had at once": ("key", key_taken_and_left),
    "an unblocking without a parent": (
        "unblocked",
        lambda e: move_before(e, ("child", Kind.UNBLOCKED), ("parent", Kind.CLAIMED)),
    ),
    "a start without an unblocking": ("before_parent", lambda e: drop(e, "child", Kind.UNBLOCKED)),
    "a takeover of a lease that was extended": (
        "two_leases",
        extend_the_lost_lease,
    ),
    "a retry with the last failure": ("failures", set_event("retried", Kind.RETRIED, failures=2)),
    "a run that is cut off without a lease": (
        "fence",
        set_event("child", Kind.COMPLETED, kind=Kind.CANCELLED, state="cancelled", lease=None),
    ),
    "more starts than the rate": ("rate", too_fast),
    "a tick that is left out": ("schedule", ticks_that_skip),
    "an answer for a job that is nowhere": ("lost", one_answer_more(id="nowhere")),
    "an answer for another seq": ("lost", one_answer_more(seq=99)),
    "two answers to one token": ("answer", one_answer_more(seq=2)),
    "a run that was never granted": ("run_not_granted", set_run(0, attempt=7)),
    "a run twice": ("run_twice", one_more_run),
    "a run by another worker": ("two_leases", set_run(0, worker="another")),
    "a run before its grant": ("too_early", set_run(0, began=START - 1)),
    "a completion that no run earned": ("completed_without_run", set_run(0, how="raised")),
    "a job of a dead worker": ("abandoned", set_fact(lost_workers=("worker",))),
    "a job that is left": ("unfinished", set_fact(all_ended=True)),
}


@pytest.mark.parametrize("what", TOLD_BY_OTHERS)
async def test_what_others_wrote_down_is_compared(evidence: Evidence, what: str) -> None:
    """Nothing is wrong with the evidence as it is; the doctored one is found out."""
    claims = [each for each in evidence.events if each.kind is Kind.CLAIMED]
    evidence.ordered_to, evidence.fixed_limits, evidence.leases = 0, True, {}
    evidence.answers = [(each.job, a_queued(each)) for each in evidence.events if each.kind is Kind.ENQUEUED]
    evidence.runs = [ReportedRun(e.job, e.seq, e.attempt, e.worker or "", e.at, e.at, "returned") for e in claims]
    assert check(evidence) == []
    name, doctor = TOLD_BY_OTHERS[what]
    doctor(evidence)

    assert name in {violation.name for violation in check(evidence)}


@pytest.fixture
async def in_turn(clock: VirtualClock) -> Evidence:
    """Three runs, one after the other: two jobs of a group, and a child of the second one."""
    store = MemoryStore(clock=clock)
    await put(store, id="job-0", group="g")
    await put(store, id="job-1", group="g")
    await put(store, id="job-2", after=("job-1",))
    for _ in range(3):
        job = await take(store)
        clock.advance(1)
        await complete(store, job)
    evidence = await gather(store, since=START)
    claims = [each for each in evidence.events if each.kind is Kind.CLAIMED]
    evidence.runs = [
        ReportedRun(e.job, e.seq, e.attempt, e.worker or "", e.at, e.at + 1_000, "returned") for e in claims
    ]
    return evidence


@pytest.mark.parametrize("late_events", [False, True])
@pytest.mark.parametrize(("nth", "name"), [(0, "two_in_line"), (1, "before_parent")])
async def test_runs_that_overlap_are_found_whatever_the_order_of_the_feed(
    in_turn: Evidence, nth: int, name: str, late_events: bool
) -> None:
    in_turn.late_events = late_events
    assert check(in_turn) == []
    assert in_turn.runs is not None
    set_run(nth, ended=in_turn.runs[nth + 1].began + 1)(in_turn)

    assert [violation.name for violation in check(in_turn)] == [name]


async def test_late_events_may_be_repeated_and_may_follow_those_of_other_jobs(in_turn: Evidence) -> None:
    in_turn.events.append(in_turn.events[event(in_turn, "job-0", Kind.CLAIMED)])
    move_before(in_turn, ("job-1", Kind.CLAIMED), ("job-0", Kind.CLAIMED))
    assert {violation.name for violation in check(in_turn)} >= {"numbering", "finished_runs", "two_in_line"}

    in_turn.late_events = True
    assert check(in_turn) == []

    change(in_turn, "job-0", Kind.CLAIMED, 1, worker="another")
    assert "numbering" in {violation.name for violation in check(in_turn)}


def a_queued(event: Event) -> Enqueued:
    return Enqueued("queued", event.job, event.seq, event.generation, State.WAITING)


async def test_a_delayed_member_that_is_passed_when_it_is_due_is_found_out_where_the_feed_is_in_order(
    clock: VirtualClock,
) -> None:
    store = MemoryStore(clock=clock)
    await put(store, id="delayed", group="g", delay=5, priority=9)
    await put(store, id="other", group="g")
    clock.advance(10)
    evidence = await gather(store, since=START)
    later(evidence, "other", Kind.CLAIMED, state="running", lease="x", attempt=1, at=clock())

    assert "line_order" not in {violation.name for violation in check(evidence)}
    evidence.ordered_to = 0
    assert "line_order" in {violation.name for violation in check(evidence)}


async def test_a_removed_member_counts_where_its_spec_is_known(clock: VirtualClock) -> None:
    store = MemoryStore(clock=clock)
    await put(store, id="first", group="g")
    await put(store, id="second", group="g")
    specs_by_id = {job.id: job.spec for job in (await gather(store)).jobs}
    for name in ("first", "second"):
        await complete(store, await take(store))
        await store.delete([name])
    evidence = await gather(store, since=START)
    assert check(evidence) == []
    move_before(evidence, ("second", Kind.CLAIMED), ("first", Kind.COMPLETED))

    assert "two_in_line" not in {violation.name for violation in check(evidence)}
    evidence.specs = specs_by_id
    assert "two_in_line" in {violation.name for violation in check(evidence)}


@pytest.mark.parametrize("what", DOCTORED)
async def test_doctored_evidence_is_found_out(evidence: Evidence, what: str) -> None:
    name, doctor = DOCTORED[what]
    doctor(evidence)

    assert name in {violation.name for violation in check(evidence)}


async def test_a_released_job_may_be_claimed_at_an_earlier_instant_but_not_before_its_delay(
    clock: VirtualClock,
) -> None:
    """A released job keeps its place, so that a concurrent claim with an earlier instant may take it."""
    store = MemoryStore(clock=clock)
    await put(store, id="job")
    for delay in (0, 5):
        await finish(store, await take(store), Change.release(seconds(delay)))
        clock.advance(delay)
    await take(store)
    evidence = await gather(store, since=START)

    change(evidence, "job", Kind.CLAIMED, 1, at=START - 1)
    assert check(evidence) == []
    change(evidence, "job", Kind.CLAIMED, 2, at=START + 4_999)
    assert [violation.name for violation in check(evidence)] == ["too_early"]


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


async def test_with_concurrent_writes_seqs_may_be_told_of_out_of_order_but_not_within_a_line(
    evidence: Evidence,
) -> None:
    move_before(evidence, ("key", Kind.ENQUEUED), ("cancelled", Kind.ENQUEUED))
    assert [violation.name for violation in check(evidence)] == ["seq"] * 5  # each that was told of after it
    evidence.concurrent_writes = True
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
    begun = time.process_time()  # not the time that others had

    assert check(evidence) == []
    assert time.process_time() - begun < 2
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
