"""Conditions of single statements that no sentence about stores can tell: what is read too much or kept too long."""

import sqlite3
from collections import Counter

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore
from millrace.store.sqlite.connection import SQL, Io, many_rows
from millrace.store.sqlite.tables import SqliteTables
from millrace.testing.clock import VirtualClock
from tests.narrowing import checked_cast, the


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def store(tmp_path, clock: VirtualClock):
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await store.connect()
    yield store
    await store.close()


async def due_in(store, *queues):
    """How long a worker of these queues may sleep, in milliseconds."""
    due, now = await store._here().read(lambda ledger, now: (ledger.next_due(queues, None, now), now))
    return None if due is None else due - now


async def test_who_waits_sleeps_until_a_group_member_of_its_own_queue_is_due(store: SqliteStore):
    await store.enqueue(
        [
            Spec("near", "work", queue="busy", group="g", delay=1_000),
            Spec("far", "work", queue="calm", group="g", delay=60_000),
        ]
    )
    assert await due_in(store, "busy") == 1_000
    assert await due_in(store, "calm") == 60_000


async def test_spans_of_blocks_without_a_job_go_and_others_stay(store: SqliteStore, clock: VirtualClock, tmp_path):
    """A block is 1,024 seqs; its span lets a search by time pass it over, so a live one must not go."""
    await store.control("queue", "default", {"keep_completed": 0})
    await store.enqueue([Spec(f"j{number}", "work") for number in range(2_100)])
    jobs = await store.claim(Claim(("default",), "w", 1_500))
    await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    clock.advance(8 * 24 * 3600)
    for _ in range(5):
        await store.maintain(2_000)
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        [(first,)] = db.execute("SELECT min(seq) FROM millrace_job")
        blocks = [block for (block,) in db.execute("SELECT block FROM millrace_span ORDER BY block")]
    assert first == 1_501
    assert blocks == [1, 2]


async def test_a_parent_that_ended_is_forgotten_and_the_other_one_is_not(
    store: SqliteStore, clock: VirtualClock, tmp_path
):
    """Another process, which has nothing at hand, sees what the file says."""
    await store.enqueue([Spec("a", "work", priority=1), Spec("b", "work"), Spec("child", "work", after=("a", "b"))])
    await complete_next(store, "a")
    other = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await other.connect()
    await complete_next(other, "b")
    await complete_next(other, "child")
    await other.close()


async def test_a_child_that_was_cancelled_is_forgotten_and_its_sibling_is_not(
    store: SqliteStore, clock: VirtualClock, tmp_path
):
    children = [Spec("first", "work", after=("parent",)), Spec("second", "work", after=("parent",))]
    await store.enqueue([Spec("parent", "work"), *children])
    await store.cancel(["first"])
    other = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await other.connect()
    await complete_next(other, "parent")
    await complete_next(other, "second")
    await other.close()


async def test_a_line_that_is_empty_is_forgotten_and_another_is_not(store: SqliteStore, clock: VirtualClock, tmp_path):
    await store.enqueue([Spec("a", "work", group="g"), Spec("b", "work", group="h"), Spec("c", "work", group="h")])
    for expected in ("a", "b"):
        await complete_next(store, expected)
    other = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await other.connect()
    await other.enqueue([Spec("d", "work", group="g"), Spec("e", "work", group="h", priority=5)])
    assert [job.id for job in await other.claim(Claim(("default",), "w", 9))] == ["e", "d"]
    await other.close()
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        facts = db.execute("SELECT name, live, processed FROM millrace_line ORDER BY name").fetchall()
    assert facts == [("g:g", 1, 0), ("g:h", 2, 1)]


async def complete_next(store, expected):
    [job] = await store.claim(Claim(("default",), "w", 1))
    assert job.id == expected
    await store.settle([(job.lease, Change.completed(b"1"))])


async def test_a_key_whose_window_is_over_leaves_no_row(store: SqliteStore, clock: VirtualClock, tmp_path):
    await store.enqueue([Spec("a", "work", key="k", scope="window", window=1_000), Spec("b", "work", key="live")])
    clock.advance(2)
    await store.maintain()
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        assert db.execute("SELECT key FROM millrace_hold").fetchall() == [("live",)]


class Heard(Io):
    """Counts the statements of the store by their names."""

    def __init__(self):
        self.count: Counter[str] = Counter()

    def execute(self, connection, sql, params=()):
        name = "insert_marked" if sql.startswith(INSERT_MARKED) else NAMES.get(sql, sql)
        self.count[name] += 1
        return super().execute(connection, sql, params)


NAMES = {sql: name for name, sql in SQL.items()}
for _name in ("update_open", "update_all"):
    NAMES.update(dict.fromkeys(many_rows(_name).by_size.values(), _name))
INSERT_MARKED = SQL["insert_marked"].partition("(")[0]  # what follows are the columns that have values


@pytest.fixture
async def heard(tmp_path, clock: VirtualClock):
    """(another process's store on the same file, its statements)"""
    io = Heard()
    store = SqliteStore(tmp_path / "jobs.db", clock=clock, io=io)
    await store.connect()
    yield store, io.count
    await store.close()


async def test_the_next_of_many_lines_are_found_together_and_only_opened(store: SqliteStore, heard):
    """Two looks for all lines that a settle moves on, and no rewrite of rows in which nothing else has changed."""
    other, count = heard
    lines = [Spec(f"{place}{line}", "work", group=f"g{line}") for place in "abc" for line in range(5)]
    await store.enqueue(lines)
    jobs = await other.claim(Claim(("default",), "w", 10))
    assert [job.id for job in jobs] == [f"a{line}" for line in range(5)]
    count.clear()
    await other.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    assert (count["first_members"], count["members"], count["jobs_by_seq"]) == (1, 0, 1)
    assert count["update_open"] > 0
    assert count["update_all"] == 0
    assert [job.id for job in await store.claim(Claim(("default",), "w", 10))] == [f"b{line}" for line in range(5)]


async def test_a_member_that_lost_its_turn_is_closed_again_in_the_file(store: SqliteStore, heard):
    """One of higher priority comes into the line: the file says of both who may run."""
    other, _ = heard
    await store.enqueue([Spec("first", "work", group="g")])
    await other.enqueue([Spec("better", "work", group="g", priority=5)])
    assert [job.id for job in await store.claim(Claim(("default",), "w", 10))] == ["better"]


async def test_a_job_with_a_reply_is_written_once(store: SqliteStore, heard, tmp_path):
    other, count = heard
    async with other.watch("asked"):
        count.clear()
        await other.enqueue([Spec("asked", "work", delay=1_000)])
    assert (count["insert_marked"], count["update_all"]) == (1, 0)
    [found] = await store.get(["asked"])
    job = the(found)
    assert (job.open, job.available_at - job.enqueued_at, job.events) == (True, 1_000, 1)
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        assert db.execute("SELECT count(*) FROM millrace_job WHERE reply IS NOT NULL").fetchall() == [(1,)]


async def test_jobs_with_features_are_written_once(store: SqliteStore, heard, clock: VirtualClock):
    """One call with every kind of column, and calls in which only some of the columns have values."""
    other, count = heard
    asked = [
        Spec("member", "work", group="g", priority=3),
        Spec("second", "work", group="g"),
        Spec("outside", "work", group="g", delay=1_000),
        Spec("child", "work", after=("member",)),
        Spec("blocked member", "work", group="h", after=("member",)),
        Spec("keyed", "work", key="k"),
        Spec("expiring", "work", expires=9_000),
    ]
    for specs in (
        asked,
        *([msgspec.structs.replace(spec, id=f"{spec.id} alone", key=spec.key and "l")] for spec in asked),
    ):
        count.clear()
        await other.enqueue(specs)
        assert (count["insert_marked"] > 0, count["update_all"]) == (True, 0)
    rows: list[tuple[str, int, bool, bool]] = []
    for spec in asked:
        job, alone = map(the, await store.get([spec.id, f"{spec.id} alone"]))
        assert (job.spec, alone.spec.after) == (spec, spec.after)
        assert [(each.expires_at, each.available_at) for each in (job, alone)] == [
            (None if spec.expires is None else each.enqueued_at + spec.expires, each.enqueued_at + spec.delay)
            for each in (job, alone)
        ]
        rows += [(each.id, each.blocked, each.open, each.in_line) for each in (job, alone)]
    assert [row for row in rows if row[1]] == [
        ("child", 1, False, False),
        ("child alone", 1, False, False),
        ("blocked member", 1, False, False),
        ("blocked member alone", 1, False, False),
    ]
    assert [row[0] for row in rows if row[2]] == ["member", "keyed", "keyed alone", "expiring", "expiring alone"]
    assert [row[0] for row in rows if row[3]] == ["member", "member alone", "second", "second alone"]


async def test_an_expiry_beside_the_reply_is_written_too(store: SqliteStore, heard, clock: VirtualClock):
    other, _ = heard
    async with other.watch("asked"):
        await other.enqueue([Spec("asked", "work", expires=1_000)])
    clock.advance(2)
    assert await store.claim(Claim(("default",), "w", 1)) == []
    [found] = await store.get(["asked"])
    job = the(found)
    assert (job.state, job.reason) == ("dead", "ttl_expired")


async def test_what_another_process_writes_does_not_make_numbers_and_spans_be_read_again(store: SqliteStore, heard):
    other, count = heard
    await other.enqueue([Spec("a", "work")])
    await store.enqueue([Spec("b", "work")])
    count.clear()
    await other.enqueue([Spec("c", "work")])
    assert (count["queue"], count["combos"], count["widen_span"]) == (1, 0, 0)
    assert [job.id for job in await store.claim(Claim(("default",), "w", 9))] == ["a", "b", "c"]


async def test_a_number_that_was_rolled_back_is_not_kept(store: SqliteStore, heard, monkeypatch):
    """The row of a new combination goes with its transaction, and so does what is remembered of it."""
    other, _ = heard
    await other.enqueue([Spec("a", "work")])
    with monkeypatch.context() as patch:
        patch.setattr(other._here().io, "commit", _full_disk)
        with pytest.raises(StoreError):
            await other.enqueue([Spec("b", "mail", priority=3)])
    await store.enqueue([Spec("c", "other", priority=7)])
    await other.enqueue([Spec("d", "mail", priority=3)])
    assert [job.id for job in await store.claim(Claim(("default",), "w", 9))] == ["c", "d", "a"]


def _full_disk(connection):
    raise sqlite3.OperationalError("database or disk is full")


async def test_a_lower_priority_is_looked_at_only_when_the_higher_ones_do_not_suffice(store: SqliteStore, heard):
    other, count = heard
    await store.enqueue([Spec(f"high{n}", "work", priority=9) for n in range(10)])
    await store.enqueue([Spec(f"low{n}", task) for n, task in enumerate(("work", "mail", "report"))])
    count.clear()
    assert len(await other.claim(Claim(("default",), "w", 4))) == 4
    assert count["ready"] == 1
    rest = await other.claim(Claim(("default",), "w", 8))
    assert [job.id for job in rest] == [*(f"high{n}" for n in range(4, 10)), "low0", "low1"]


async def test_who_has_just_claimed_in_vain_knows_when_others_have_brought_something(store: SqliteStore, heard):
    """A sleeper puts off its look for what is due next; not when a job came between its claim and its sleep."""
    other, _ = heard
    process = other._here()
    assert not process.has_just_looked()
    assert await other.claim(Claim(("default",), "w", 1)) == []
    assert process.has_just_looked()
    await store.enqueue([Spec("a", "work")])
    assert not process.has_just_looked()
    [job] = await other.claim(Claim(("default",), "w", 1))
    assert process.has_just_looked()
    await other.settle([(job.lease, Change.retry(None, delay=1))])
    assert not process.has_just_looked()
    await other.close()
    assert not process.has_just_looked()


async def test_a_call_does_not_pay_for_the_specs_of_an_earlier_one(store: SqliteStore):
    """The unit of work is kept between calls; what a call works on is not."""
    await store.enqueue([Spec(f"j{number}", "work", group=f"g{number}") for number in range(50)])

    batches = []
    await store._here().write(
        lambda ledger, now: batches.append(checked_cast(SqliteTables, ledger.tables)._batch.lines())
    )

    assert batches == [{}]
