"""Schedules at run time: `app.schedules` stores, changes and removes them, and any worker runs them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import cronsim
import pytest

from millrace import App, InvalidInput, ScheduleDefinition, Spec
from millrace.app.schedules.timetable import timetable
from millrace.domain.job import HOUR, MINUTE
from millrace.domain.request import Query
from millrace.domain.rules.cron import instant_text
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from millrace.store.sqlite.connection import Io
from millrace.testing.clock import START, VirtualClock
from millrace.testing.faults import FaultyStore
from tests.narrowing import the
from tests.worker.stage import Stage, virtual

MANY = 10_000


def an_app(store: Store) -> App:
    app = App(store)

    @app.task(queue="reports")
    async def report(customer: str, days: int = 1) -> None: ...

    return app


def the_report(app: App, customer: str = "acme", **options: Any) -> Spec:
    return app.tasks["report"].options(**options).spec(customer=customer)


async def job_ids(store: Store) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.find(Query(archived=None, limit=500, cursor=cursor))
        found += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START - START % HOUR)


@pytest.fixture
def store(clock: VirtualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


# ── storing ───────────────────────────────────────────────────────────────────────────────────


async def test_a_stored_schedule_is_run_by_a_process_without_its_code(store: MemoryStore, clock: VirtualClock) -> None:
    made = await an_app(store).schedules.put("report.acme", the_report(an_app(store), priority=7), every="1h")
    assert (made.source, made.task, made.queue, made.next_tick) == ("store", "report", "reports", clock() + HOUR)

    elsewhere = App(store).scheduler()
    await elsewhere.look()
    assert await job_ids(store) == []
    clock.advance(3600)
    assert await elsewhere.look() == 0
    assert await elsewhere.look() == 10

    [job] = (await store.find(Query())).jobs
    assert job.id == f"cron:report.acme:{instant_text(clock())}"
    assert (job.spec.payload, job.spec.priority, job.queue) == (b'{"customer":"acme"}', 7, "reports")
    assert job.spec.headers == {"millrace-schedule": "report.acme", "millrace-tick": instant_text(clock())}


async def test_the_same_definition_changes_nothing(store: MemoryStore, clock: VirtualClock) -> None:
    app = an_app(store)
    first = await app.schedules.put("report.acme", the_report(app), cron="0 8 * * *", tz="Europe/Berlin")
    clock.advance(60)
    again = await an_app(store).schedules.put(
        "report.acme", the_report(an_app(store)), cron="0  8 * * *", tz="Europe/Berlin"
    )
    assert again == first


async def test_changed_times_continue_with_the_next_tick(store: MemoryStore, clock: VirtualClock) -> None:
    app = an_app(store)
    await app.schedules.put("report.acme", the_report(app), every="1h")
    clock.advance(7200)
    changed = await app.schedules.put("report.acme", the_report(app), every="5m")

    assert (changed.mark, changed.next_tick) == (clock(), clock() + 5 * MINUTE)
    await app.scheduler().look()
    assert await job_ids(store) == []


async def test_changed_jobs_lose_no_tick(store: MemoryStore, clock: VirtualClock) -> None:
    app = an_app(store)
    await app.schedules.put("report.acme", the_report(app), every="1h")
    clock.advance(3600)
    await app.schedules.update("report.acme", spec=the_report(app, "acme inc"))

    await app.scheduler().look()
    [job] = (await store.find(Query())).jobs
    assert job.spec.payload == b'{"customer":"acme inc"}'


async def test_an_update_keeps_what_is_not_passed(store: MemoryStore, clock: VirtualClock) -> None:
    app = an_app(store)
    await app.schedules.put("report.acme", the_report(app), every="1h", missed="all", grace="5m")
    await app.schedules.pause("report.acme")

    changed = await app.schedules.update("report.acme", cron="0 8 * * *", tz="Europe/Berlin")
    assert (changed.expression, changed.tz) == ("0 8 * * *", "Europe/Berlin")
    assert (changed.missed, changed.grace) == ("all", 300_000)
    assert changed.paused and changed.template is not None
    assert changed.template.payload == the_report(app).payload
    back = await app.schedules.update("report.acme", every="90m")
    assert back.expression == "every 1h30m"
    assert await app.schedules.update("report.acme", every="90m") == back


async def test_a_definition_is_listed_completely_and_can_be_stored_elsewhere(
    store: MemoryStore, clock: VirtualClock
) -> None:
    from millrace.app.schedules.plan import definition_of

    app, other = an_app(store), App(MemoryStore(clock=clock))
    for name in ("b", "a"):
        await app.schedules.put(name, the_report(app, name, key="k"), cron="0 8 L * *", tz="Asia/Tokyo", missed="skip")
    listed = [schedule async for schedule in app.schedules]
    await other.schedules.put_many(map(definition_of, listed))

    assert [schedule async for schedule in other.schedules] == listed


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "either a cron expression or every"),
        ({"cron": "@daily", "every": "1h"}, "exactly one of them"),
        ({"cron": "0 8 * *"}, "cron expression '0 8"),
        ({"every": "100ms"}, "at most once a second"),
        ({"every": "1h", "tz": "Europe/Belin"}, "Did you mean 'Europe/Berlin'"),
        ({"every": "1h", "missed": "never"}, "'skip', 'once' or 'all'"),
        ({"every": "1h", "missed": "skip", "grace": 0}, "grace must be at least one second"),
    ],
)
async def test_invalid_times_are_refused(store: MemoryStore, keywords: dict[str, Any], message: str) -> None:
    app = an_app(store)
    with pytest.raises(InvalidInput, match=message):
        await app.schedules.put("report.acme", the_report(app), **keywords)
    assert await app.schedules.page() == []


async def test_unsuitable_jobs_and_names_are_refused(store: MemoryStore) -> None:
    app = an_app(store)
    for name, spec, message in (
        ("no spaces", the_report(app), "schedule name"),
        ("a", app.tasks["report"], r"Pass task\.spec"),
        ("a", the_report(app, after="other"), r"remove options\(after"),
        ("a", the_report(app, key="k", on_hit="raise"), "on_hit='raise'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            await app.schedules.put(name, spec, every="1h")  # type: ignore[arg-type]
    good, bad = ScheduleDefinition("good", the_report(app), every="1h"), ScheduleDefinition("bad", the_report(app))
    for definitions, message in (([good, bad], "'bad' takes either"), ([good, good], "'good' occurs twice")):
        with pytest.raises(InvalidInput, match=message):
            await app.schedules.put_many(definitions)
    with pytest.raises(InvalidInput, match="no schedule 'missing' in the store"):
        await app.schedules.update("missing", every="1h")
    assert await app.schedules.page() == []


async def test_a_name_belongs_to_the_code_or_to_the_store(
    store: MemoryStore, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app(store)
    app.cron(app.tasks["report"], every="1h", name="mine", kwargs={"customer": "x"})
    with pytest.raises(InvalidInput, match=r"'mine' is declared in code with app\.cron"):
        await app.schedules.put("mine", the_report(app), every="5m")
    await app.scheduler().look()
    other = an_app(store)
    with pytest.raises(InvalidInput, match="declared in code"):
        await other.schedules.put("mine", the_report(other), every="5m")
    with pytest.raises(InvalidInput, match="declared in code"):
        await other.schedules.update("mine", every="5m")

    kept = await other.schedules.put("theirs", the_report(other), every="5m")
    app.cron(app.tasks["report"], every="1h", name="theirs", kwargs={"customer": "x"})
    scheduler = app.scheduler()
    for _ in range(3):
        await scheduler.look()
    assert await app.schedules.get("theirs") == kept
    assert caplog.text.count("is stored in the store and declared in code") == 1


# ── pausing and removing ──────────────────────────────────────────────────────────────────────


async def test_many_are_paused_resumed_and_removed_at_once(store: MemoryStore, clock: VirtualClock) -> None:
    app = an_app(store)
    names = [f"report.{number}" for number in range(5)]
    await app.schedules.put_many(ScheduleDefinition(name, the_report(app), every="1h") for name in names)

    paused = await app.schedules.pause(names[:3])
    assert [(one.name, one.paused, one.next_tick) for one in paused] == [(name, True, None) for name in names[:3]]
    clock.advance(3600)
    while await app.scheduler().look() == 0:
        pass
    assert len(await job_ids(store)) == 2

    resumed = await app.schedules.resume(names[:3])
    assert [one.next_tick for one in resumed] == [clock() + HOUR] * 3
    clock.advance(3600)
    while await app.scheduler().look() == 0:
        pass
    assert len(await job_ids(store)) == 7
    assert await app.schedules.remove([*names[:4], "missing"]) == 4
    assert [one.name for one in await app.schedules.page()] == names[4:]
    with pytest.raises(InvalidInput, match=r"no schedule 'missing' in the store\. Known are: report\.4\."):
        await app.schedules.pause([names[4], "missing"])


async def test_they_are_listed_in_pages_and_without_an_event_loop(store: MemoryStore) -> None:
    app = an_app(store)
    await app.schedules.put_many(ScheduleDefinition(f"n{n}", the_report(app), every="1h") for n in range(5))
    assert [one.name for one in await app.schedules.page(limit=2)] == ["n0", "n1"]
    assert [one.name for one in await app.schedules.page(after="n1", limit=2)] == ["n2", "n3"]
    with pytest.raises(InvalidInput, match="limit must be at least 1"):
        await app.schedules.page(limit=0)


def test_the_blocking_api_does_the_same(tmp_path: Path) -> None:
    app = an_app(SqliteStore(tmp_path / "jobs.db"))
    with app.sync:
        schedules = app.sync.schedules
        made = schedules.put("a", the_report(app), every="1h")
        schedules.put_many([ScheduleDefinition("b", the_report(app), cron="@daily")])
        assert [one.name for one in schedules] == [one.name for one in schedules.page()] == ["a", "b"]
        assert schedules.update("a", every="2h").expression == "every 2h"
        assert schedules.pause("a").paused and not schedules.resume(["a"])[0].paused
        assert the(schedules.get("a")).rev > made.rev
        assert schedules.remove(["a", "b"]) == 2 and schedules.get("a") is None


# ── running ───────────────────────────────────────────────────────────────────────────────────


@virtual
async def test_workers_run_a_schedule_that_is_stored_while_they_run(stage: Stage) -> None:
    done: list[str] = []

    @stage.app.task
    async def note(text: str) -> None:
        done.append(text)

    async with stage.working(), stage.working():
        await stage.app.schedules.put("noted", note.spec(text="x"), every="1m")
        begun = await stage.store.now()
        await asyncio.sleep(10 * 60 + 30)
        assert len(done) == 10
        await stage.app.schedules.pause("noted")
        await asyncio.sleep(600)
        assert len(done) == 10
        await stage.app.schedules.resume("noted")
        await asyncio.sleep(120)
        assert len(done) == 12
        await stage.app.schedules.remove("noted")
        await asyncio.sleep(600)
    ticks = [the(job.spec.headers)["millrace-tick"] for job in (await stage.store.find(Query(archived=None))).jobs]
    assert len(set(ticks)) == len(ticks) == 12
    assert ticks[0] == instant_text(begun - begun % MINUTE + MINUTE)


async def test_a_full_queue_does_not_hold_up_other_schedules(store: MemoryStore, clock: VirtualClock) -> None:
    app = an_app(store)
    await app.queue("full").set(max_depth=0)
    full = [ScheduleDefinition(f"full.{n:03}", the_report(app, queue="full"), every="1h") for n in range(450)]
    await app.schedules.put_many([*full, ScheduleDefinition("last", the_report(app), every="1h", grace="61m")])
    clock.advance(3600)
    scheduler = app.scheduler()
    for _ in range(4):
        await scheduler.look()
    assert [job_id.partition(":2")[0] for job_id in await job_ids(store)] == ["cron:last"]

    await app.queue("full").set(max_depth=None)
    clock.advance(5)
    while await scheduler.look() == 0:
        pass
    assert len(await job_ids(store)) == 451


async def test_missed_ticks_follow_the_policy_of_each_schedule(
    store: MemoryStore, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app(store)
    for missed in ("skip", "once", "all"):
        await app.schedules.put(missed, the_report(app), every="1h", missed=missed)
    clock.advance(5 * 3600 + 600)
    while await app.scheduler().look() == 0:
        pass
    names = [job_id.split(":")[1] for job_id in await job_ids(store)]
    assert sorted(names) == ["all"] * 5 + ["once"]
    assert caplog.text.count("were missed") == 3


# ── ten thousand ──────────────────────────────────────────────────────────────────────────────


def for_customers(app: App, every: str = "1h") -> Iterator[ScheduleDefinition]:
    for number in range(MANY):
        yield ScheduleDefinition(f"report.{number}", the_report(app, str(number)), every=every)


class CountingIo(Io):
    """Counts the rows that SQLite returns, and the steps of its machine."""

    def __init__(self) -> None:
        self.rows = self.steps = 0

    def open(self, path: str, options: str = "mode=rw") -> sqlite3.Connection:
        connection = super().open(path, options)
        connection.set_progress_handler(self._count, 10)
        return connection

    def _count(self) -> int:
        self.steps += 10
        return 0

    def execute(self, connection: sqlite3.Connection, sql: str, params: Any = ()) -> Any:
        found = super().execute(connection, sql, params)
        self.rows += len(found)
        return found

    def taken(self) -> tuple[int, int]:
        counts = self.rows, self.steps
        self.rows = self.steps = 0
        return counts


async def test_equal_times_are_read_once(
    store: MemoryStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    class Counted(cronsim.CronSim):
        def __init__(self, expression: str, start: datetime) -> None:
            read.append(expression)
            super().__init__(expression, start)

    monkeypatch.setattr(cronsim, "CronSim", Counted)
    timetable.cache_clear()
    app = an_app(store)
    await app.schedules.put_many(
        ScheduleDefinition(f"report.{number}", the_report(app, str(number)), cron="*/7 * * * *")
        for number in range(1_000)
    )
    clock.advance(3600)
    await App(store).scheduler().look()
    assert read == ["*/7 * * * *"]


async def test_ten_thousand_schedules_cost_few_calls(store: MemoryStore, clock: VirtualClock) -> None:
    counted = FaultyStore(store)
    app = an_app(counted)
    await app.schedules.put_many(for_customers(app))
    assert counted.calls == {"due_schedules": 20, "advance": 20}

    counted.calls.clear()
    scheduler = App(counted).scheduler()
    for _ in range(10):
        assert await scheduler.look() == 10
    assert counted.calls == {"due_schedules": 10}

    counted.calls.clear()
    clock.advance(3600)
    schedulers = [App(counted).scheduler() for _ in range(3)]
    while 0 in await asyncio.gather(*(scheduler.look() for scheduler in schedulers)):
        pass
    ids = await job_ids(store)
    assert len(ids) == len(set(ids)) == MANY
    assert counted.calls["advance"] <= 3 * MANY / 200 + 3


async def test_a_look_at_ten_thousand_schedules_reads_no_more_than_at_ten(tmp_path: Path, clock: VirtualClock) -> None:
    io = CountingIo()
    app = an_app(SqliteStore(tmp_path / "jobs.db", clock=clock, io=io))
    scheduler = App(app.store).scheduler()
    async with app:
        definitions = list(for_customers(app))
        await app.schedules.put_many(definitions[:10])
        await scheduler.look()
        io.taken()
        await scheduler.look()
        rows, steps = io.taken()
        await app.schedules.put_many(definitions)
        await scheduler.look()
        io.taken()
        await scheduler.look()
        more_rows, more_steps = io.taken()
        assert more_rows == rows
        assert more_steps <= steps + 100

        clock.advance(3600)
        while await scheduler.look() == 0:
            pass
        assert sum(counts.waiting for counts in await app.jobs.count()) == MANY
        assert await app.schedules.remove(definition.name for definition in definitions) == MANY
        assert await app.schedules.page() == []
