"""One atomic step: lines elect, counters follow, keys are freed, dependents go free. On the ledger itself."""

from __future__ import annotations

import pytest

from millrace.domain.change import Change
from millrace.domain.job import DAY, Job, State
from millrace.domain.ledger import Ledger
from millrace.domain.request import Query, Receipt
from millrace.domain.rules import operate, replaying, upkeep
from millrace.domain.tables import Line, QueueRow
from millrace.store.memory.tables import MemoryTables
from millrace.testing import a_burial, a_claim, a_reclaim, a_retry_change, a_spec, a_worker, an_extension, specs

NOW = 1_000_000


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryTables())


def control(ledger: Ledger, **changes: object) -> None:
    operate.control(ledger, "queue", "default", changes, NOW)


def take(ledger: Ledger, limit: int = 1, now: int = NOW) -> list[Job]:
    return ledger.claim(a_claim(limit, lease=30), f"c-{ledger.tables.queue('default').taken}", now)


def line(ledger: Ledger, name: str) -> Line:
    found = ledger.tables.line("default", name)
    assert found is not None
    return found


def row(ledger: Ledger) -> QueueRow:
    return ledger.tables.queue("default")


def test_a_line_opens_its_best_member_and_only_that(ledger: Ledger) -> None:
    first, better = a_spec(group="g"), a_spec(group="g", priority=5)
    [one] = ledger.enqueue([first], NOW)
    assert (line(ledger, "g:g").open, line(ledger, "g:g").holder) == (one.seq, None)
    [two] = ledger.enqueue([better], NOW)

    assert line(ledger, "g:g").open == two.seq
    opened = {job.id: job.open for job in ledger.get([first.id, better.id], NOW) if job}
    assert opened == {first.id: False, better.id: True}
    [running] = take(ledger)
    assert (line(ledger, "g:g").open, line(ledger, "g:g").holder) == (None, running.seq)
    assert (line(ledger, "g:g").waiting, line(ledger, "g:g").live) == (1, 2)


def test_a_group_without_live_members_is_forgotten_and_a_lane_is_not(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(group="g")], NOW)
    ledger.settle([(take(ledger)[0].lease, Change.completed())], NOW)
    assert ledger.tables.line("default", "g:g") is None
    control(ledger, lanes=1)
    ledger.enqueue([a_spec()], NOW)
    ledger.settle([(take(ledger)[0].lease, a_burial())], NOW)

    assert (line(ledger, "l:0").live, line(ledger, "l:0").processed, line(ledger, "l:0").died) == (0, 0, 1)


def test_a_paused_lane_opens_nobody(ledger: Ledger) -> None:
    control(ledger, lanes=1, paused_lanes=[0])
    [one] = ledger.enqueue([a_spec()], NOW)
    assert line(ledger, "l:0").open is None
    control(ledger, paused_lanes=[])

    assert line(ledger, "l:0").open == one.seq


def test_counters_of_a_queue_follow_every_step(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(id="p"), a_spec(after=("p",)), a_spec(hook=True)], NOW)
    assert (row(ledger).waiting, row(ledger).blocked, row(ledger).live) == (3, 1, 2)
    one, hook = take(ledger, 5)
    assert (row(ledger).waiting, row(ledger).running, row(ledger).taken) == (1, 2, 2)
    ledger.settle([(one.lease, a_retry_change(5)), (hook.lease, Change.completed())], NOW)
    assert (row(ledger).waiting, row(ledger).running, row(ledger).live, row(ledger).completed) == (2, 0, 2, 1)
    [one] = take(ledger, now=NOW + 5_000)
    ledger.settle([(one.lease, a_burial())], NOW + 5_000)

    assert (row(ledger).waiting, row(ledger).blocked, row(ledger).live) == (0, 0, 0)
    assert (row(ledger).dead, row(ledger).died, row(ledger).processed) == (2, 2, 1)


def test_a_key_is_freed_by_its_owner_and_its_scope(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(key="l"), a_spec(key="r", scope="retained"), a_spec(key="w", scope="window", window=9)], NOW)
    jobs = take(ledger, 3)
    ledger.settle([(job.lease, Change.completed()) for job in jobs], NOW)
    held = [ledger.tables.key("default", key) is not None for key in "lrw"]
    assert held == [False, True, True]
    upkeep.maintain(ledger, NOW + DAY, 100)

    assert [ledger.tables.key("default", key) is not None for key in "lrw"] == [False, False, False]


def test_a_finished_job_waits_for_nobody(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(id="p", delay=5), a_spec(id="q", delay=5), a_spec(id="c", after=("p", "q"))], NOW)
    operate.cancel(ledger, ["c"], "refuse", NOW)

    assert (ledger.tables.children("p"), ledger.tables.children("q")) == ([], [])
    [child] = ledger.get(["c"], NOW)
    assert child is not None and child.blocked == 0


def test_the_end_of_a_run_wakes_only_where_a_limit_makes_it_matter(ledger: Ledger) -> None:
    tables = ledger.tables
    assert isinstance(tables, MemoryTables)
    ledger.enqueue(specs(4), NOW)
    jobs = take(ledger, 4)
    tables.take_wakeups()
    ledger.settle([(jobs[0].lease, Change.completed())], NOW)
    assert dict(tables.take_wakeups()[0]) == {}
    control(ledger, max_running=9)
    tables.take_wakeups()
    ledger.settle([(jobs[1].lease, Change.completed())], NOW)
    assert dict(tables.take_wakeups()[0]) == {("default", None): 1}
    control(ledger, max_running=None)
    operate.control(ledger, "task", "work", {"max_running": 9}, NOW)
    tables.take_wakeups()
    ledger.settle([(jobs[2].lease, Change.completed())], NOW)

    assert dict(tables.take_wakeups()[0]) == {(None, "work"): 1}


def test_a_takeover_keeps_the_place_of_the_run(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(group="g"), a_spec(group="g")], NOW)
    [lost] = take(ledger)
    [rescued] = ledger.reclaim(a_reclaim(), "r", NOW + 30_001)

    assert line(ledger, "g:g").holder == lost.seq == rescued.seq
    assert (row(ledger).running, rescued.lost_worker) == (1, True)
    assert ledger.reclaim(a_reclaim(), "r", NOW + 30_001) == []


@pytest.mark.parametrize(("after", "gone"), [(60_000, False), (60_001, True)])
def test_a_holder_is_gone_when_its_time_is_over(ledger: Ledger, after: int, gone: bool) -> None:
    ledger.enqueue([a_spec()], NOW)
    operate.beat(ledger, a_worker("worker"), 60_000, NOW)
    take(ledger)
    [lost] = ledger.reclaim(a_reclaim(), "r", NOW + after)

    assert lost.lost_worker is gone


def test_the_fence_looks_at_seq_state_and_lease(ledger: Ledger) -> None:
    ledger.enqueue(specs(2), NOW)
    [job] = take(ledger)
    assert ledger.extend([an_extension(job)], NOW + 5) == [Receipt.OK]
    ledger.settle([(job.lease, a_retry_change())], NOW)

    assert ledger.extend([an_extension(job)], NOW) == [Receipt.LOST]
    assert ledger.settle([(job.lease, Change.completed())], NOW) == [Receipt.LOST]


def test_the_next_due_job_is_known(ledger: Ledger) -> None:
    def due(*queues: str, tasks: frozenset[str] | None = None, now: int = NOW) -> int | None:
        return ledger.next_due(queues or ("default",), tasks, now)

    assert due() is None
    ledger.enqueue([a_spec(delay=9), a_spec(delay=5, task="other"), a_spec(delay=1, queue="q")], NOW)
    assert (due(), due(tasks=frozenset({"work"})), due("default", "q")) == (NOW + 5_000, NOW + 9_000, NOW + 1_000)
    control(ledger, paused=True)
    assert (due(), due("default", "q")) == (None, NOW + 1_000)
    control(ledger, paused=False, max_running=0)
    assert due() is None
    control(ledger, max_running=1, rate=0.1)
    assert due() == NOW + 5_000
    [_] = take(ledger, now=NOW + 5_000)
    assert due(now=NOW + 5_000) is None
    control(ledger, max_running=None)
    assert due(now=NOW + 5_000) == NOW + 15_000


def test_the_next_due_job_of_a_limited_task_is_known(ledger: Ledger) -> None:
    operate.control(ledger, "task", "work", {"rate": 0.1}, NOW)
    ledger.enqueue([*specs(2), a_spec(task="other", delay=60)], NOW)
    assert ledger.next_due(["default"], None, NOW) == NOW
    [job] = take(ledger)
    assert ledger.next_due(["default"], None, NOW) == NOW + 10_000
    assert ledger.next_due(["default"], frozenset({"other"}), NOW) == NOW + 60_000
    operate.control(ledger, "task", "work", {"rate": None, "max_running": 1}, NOW)
    assert ledger.next_due(["default"], None, NOW) == NOW + 60_000
    ledger.settle([(job.lease, Change.completed())], NOW)

    assert ledger.next_due(["default"], None, NOW) == NOW


def test_members_outside_their_line_are_let_in_when_due_and_so_many_at_a_time(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(group=f"g{n}", delay=5) for n in range(5)], NOW)
    assert ledger.promote(ledger.step(NOW + 4_999), 9) == 0
    assert ledger.promote(ledger.step(NOW + 5_000), 3) == 3
    assert ledger.promote(ledger.step(NOW + 5_000), 3) == 2
    assert ledger.promote(ledger.step(NOW + 5_000), 3) == 0


def test_upkeep_says_what_it_did_and_whether_there_is_more(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(group="g", delay=1), *specs(2, expires=1)], NOW)
    full = upkeep.maintain(ledger, NOW + 1_000, 2)
    assert (full.expired, full.more) == (2, True)

    quiet = upkeep.maintain(ledger, NOW + 1_000, 2)
    assert (quiet.expired, quiet.more) == (0, False)
    ledger.enqueue([a_spec(group="h", delay=1)], NOW + 1_000)
    assert upkeep.maintain(ledger, NOW + 2_000, 1).more  # it let one member into its line: there may be another


def test_a_page_resumes_where_it_ended(ledger: Ledger) -> None:
    ledger.enqueue(specs(3), NOW)
    page = operate.find(ledger, Query(limit=2), NOW)
    assert (len(page.jobs), page.cursor, page.scanned) == (2, str(page.jobs[-1].seq), 2)
    rest = operate.find(ledger, Query(limit=2, cursor=page.cursor), NOW)

    assert (len(rest.jobs), rest.cursor) == (1, None)


def test_a_death_within_a_death_is_carried_out_in_a_loop(ledger: Ledger) -> None:
    control(ledger, keep_dead=0)
    chain = [a_spec(id="0", on_dead_letter="mourn")]
    chain += [a_spec(id=str(n), after=(str(n - 1),), on_dead_letter="mourn") for n in range(1, 2_000)]
    ledger.enqueue(chain, NOW)
    [first] = take(ledger)
    assert ledger.settle([(first.lease, a_burial())], NOW) == [Receipt.OK]

    assert (row(ledger).dead, row(ledger).died, row(ledger).waiting) == (0, 2_000, 2_000)
    assert [past.state for past in ledger.tables.past("1999")] == [State.DEAD]


# ── the end of a parent, applied to one child in a step of its own ────────────────────────────────


def waiting_child(ledger: Ledger, *parents: str) -> Job:
    child = a_spec(after=parents, allow_missing=True)
    ledger.enqueue([child], NOW)
    return by_id(ledger, child.id)


def by_id(ledger: Ledger, job_id: str) -> Job:
    found = ledger.tables.by_id(job_id)
    assert found is not None
    return found


@pytest.mark.parametrize("known", [True, False], ids=["is kept", "was pruned"])
def test_the_end_of_a_parent_frees_its_child_whether_its_record(ledger: Ledger, known: bool) -> None:
    [parent] = ledger.enqueue([a_spec(id="parent")], NOW) if known else [None]
    child = waiting_child(ledger, "parent")

    ledger.parent_ended("parent", parent.seq if parent else 1, State.COMPLETED, child.seq, NOW)

    assert (child.blocked, child.open) == (0, True)


def test_the_end_of_a_parent_frees_only_children_that_came_before_its_next_generation(ledger: Ledger) -> None:
    before = waiting_child(ledger, "parent")
    [successor] = ledger.enqueue([a_spec(id="parent")], NOW)
    after = waiting_child(ledger, "parent")

    for child in (before, after):
        ledger.parent_ended("parent", successor.seq - 100, State.COMPLETED, child.seq, NOW)

    assert (before.blocked, after.blocked) == (0, 1)


def test_the_end_of_a_parent_that_is_applied_twice_counts_once(ledger: Ledger) -> None:
    child = waiting_child(ledger, "one", "other")

    for _ in range(2):
        ledger.parent_ended("one", 1, State.COMPLETED, child.seq, NOW)

    assert (child.blocked, ledger.tables.parents(child.seq)) == (1, ["other"])


def test_the_end_of_a_parent_whose_child_is_gone_changes_nothing(ledger: Ledger) -> None:
    ledger.parent_ended("parent", 1, State.COMPLETED, 999, NOW)

    assert ledger.tables.by_seq(999) is None


# ── the replay of a parent, applied to one child in a step of its own ─────────────────────────────


def test_a_child_that_returns_with_its_parent_brings_its_own_children_back(ledger: Ledger) -> None:
    ledger.enqueue([a_spec(id="parent")], NOW)
    child = waiting_child(ledger, "parent")
    grandchild = waiting_child(ledger, child.id)
    ledger.settle([(take(ledger)[0].lease, a_burial())], NOW)
    replaying.replay(ledger, ["parent"], NOW, children=False)
    assert (child.state, grandchild.state) == (State.DEAD, State.DEAD)

    replaying.return_with(ledger, "another", child.seq, NOW)
    replaying.return_with(ledger, "parent", 999, NOW)
    assert (child.state, grandchild.state) == (State.DEAD, State.DEAD)

    replaying.return_with(ledger, "parent", child.seq, NOW)
    assert (child.state, child.blocked) == (State.WAITING, 1)
    assert (grandchild.state, grandchild.blocked) == (State.WAITING, 1)
