"""Schedulers at work: on a loop whose time passes at once, several on one store, with everything going wrong."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace import App, Context, InvalidInput, MissingExtra, PayloadInvalid, ScheduleDefinition, StoreError
from millrace.app.schedules.timetable import timetable, timetable_or_reason
from millrace.domain.job import HOUR, MINUTE, Job
from millrace.domain.rules.cron import Timetable, instant_text
from millrace.domain.schedule import DueSchedules
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from millrace.testing.clock import START, VirtualClock
from millrace.testing.faults import Fault, FaultyStore, seeded
from millrace.worker.heartbeat import InlineHeartbeat
from millrace.worker.scheduler import BATCH, Scheduler
from proof.simulation.loop import VirtualLoop
from tests.worker.stage import Stage, virtual

SCHEDULES = "millrace.schedule"


def an_app(store: Store, expression: str | None = "0 * * * *", **options: object) -> App:
    app = App(store)

    @app.task
    async def clean(days: int = 1) -> None: ...

    if expression is None:
        app.cron(clean, **{"every": "1m", **options})  # type: ignore[call-overload]
    else:
        app.cron(expression, clean, **options)  # type: ignore[call-overload]
    return app


async def jobs_of(store: Store) -> list[Job]:
    return [job for partition in await store.partitions(1) async for page in store.scan(partition) for job in page]


async def tick_names(store: Store) -> list[str]:
    """The ticks of all jobs in the store; a doubled one would be there twice."""
    return sorted((job.spec.headers or {})["millrace-tick"] for job in await jobs_of(store))


def expected(first: int, last: int, step: int) -> list[str]:
    return [instant_text(tick) for tick in range(first - first % step + step, last + 1, step)]


# ── what is written down ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tz", ["localtime", "posixrules", "right/Europe/Berlin"])
def test_a_time_zone_that_differs_between_machines_is_refused(tz: str):
    with pytest.raises(InvalidInput, match="differs between machines.*named zone"):
        an_app(MemoryStore(), tz=tz)


def test_a_grace_that_no_scheduler_can_keep_is_refused_where_a_late_tick_is_left_out():
    for grace in (0, "250ms"):
        with pytest.raises(InvalidInput, match="at least one second.*'skip'"):
            an_app(MemoryStore(), missed="skip", grace=grace)
    for options in ({"missed": "skip", "grace": "1s"}, {"missed": "once", "grace": 0}, {"missed": "all", "grace": 0}):
        an_app(MemoryStore(), **options)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("* * * *", "wrong number of fields.*minute, hour"),
        ("61 * * * *", "bad minute"),
        ("0 25 * * *", "bad hour"),
        ("0 0 32 * *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * MOON", "bad day-of-week"),
        ("0 0 * * MON#6", "bad day-of-week"),
        ("0 0 * * 1#2/3", "bad day-of-week"),
        (f"{'9' * 5000} * * * *", "cannot be read"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("@reboot", "@daily"),
        ("", "wrong number of fields"),
        ("every 0s", "once a second"),
        ("every now and then", "not a duration"),
    ],
)
def test_a_bad_expression_is_refused_when_it_is_written_down(expression: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        an_app(MemoryStore(), expression)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tz": "Europe/Berln"}, "Did you mean 'Europe/Berlin'"),
        ({"tz": "../etc/passwd"}, "no time zone"),
        ({"tz": None}, "no time zone"),
        ({"missed": "never"}, "'skip', 'once' or 'all'"),
        ({"name": "no spaces"}, "schedule name"),
        ({"grace": -1}, "grace"),
        ({"every": "10s"}, "exactly one"),
        ({"jitter": 3}, "no option 'jitter'"),
    ],
)
def test_a_bad_option_is_refused_when_it_is_written_down(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        an_app(MemoryStore(), **options)


def test_what_cannot_be_a_schedule_is_refused() -> None:
    app = App(MemoryStore())

    @app.task
    async def clean(days: int) -> None: ...

    with pytest.raises(InvalidInput, match="@app.task below"):
        app.cron("@daily")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(PayloadInvalid):
        app.cron("@daily", clean, kwargs={"days": "many"})
    with pytest.raises(PayloadInvalid):
        app.cron("@daily", clean)
    with pytest.raises(InvalidInput, match="ids from the ticks"):
        app.cron("@daily", clean.options(id="mine"), args=(1,))
    with pytest.raises(InvalidInput, match="after"):
        app.cron("@daily", clean.options(after="other"), args=(1,))
    with pytest.raises(InvalidInput, match="within"):
        app.cron("@daily", clean.options(within=object()), args=(1,))
    with pytest.raises(InvalidInput, match="on_hit"):
        app.cron("@daily", clean.options(key="k", on_hit="raise"), args=(1,))
    with pytest.raises(InvalidInput, match="in this order"):
        app.cron("@daily", "@hourly", clean)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="exactly one"):
        app.cron(clean)  # type: ignore[call-overload]
    assert app.plans == {}

    app.cron("@daily", clean, args=(1,))
    with pytest.raises(InvalidInput, match="already declared"):
        app.cron("@hourly", clean, args=(1,))
    app.cron("@hourly", clean, args=(1,), name="clean-hourly")
    assert sorted(app.plans) == ["clean", "clean-hourly"]


def test_what_no_store_would_take_is_refused_when_it_is_written_down() -> None:
    app = App(MemoryStore())

    @app.task
    async def store(text: str) -> None: ...

    with pytest.raises(PayloadInvalid, match="bytes"):
        app.cron("@daily", store, kwargs={"text": "x" * (1 << 20)})
    app.cron("@daily", store, kwargs={"text": "x"}, name="n" * 128)


def test_the_programs_of_the_documentation_run(tmp_path: Path) -> None:
    text = Path(__file__).parents[2].joinpath("docs/cron.md").read_text(encoding="utf-8")
    declaring, storing, looking = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    beginning = "\nasync def main():\n    await app.scheduler().look()\n"
    program = (
        declaring + beginning + textwrap.indent(storing + looking, "    ") + "\nimport asyncio\nasyncio.run(main())\n"
    )

    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=580)

    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        *("nightly-cleanup", "often", "poll_feeds", "report.acme")
    ]


def test_without_cronsim_an_interval_works_and_an_expression_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    timetable.cache_clear()

    an_app(MemoryStore(), None)
    with pytest.raises(MissingExtra, match="pip install 'cronsim"):
        an_app(MemoryStore())


def test_declaring_opens_no_store() -> None:
    app = an_app("sqlite:////no/such/folder/jobs.db")  # type: ignore[arg-type]

    assert list(app.plans) == ["clean"]


# ── with a worker ─────────────────────────────────────────────────────────────────────────────


@virtual
async def test_a_worker_runs_the_schedules_of_its_app(stage: Stage) -> None:
    seen: list[tuple[int, dict[str, str]]] = []

    @stage.app.cron("*/5 * * * *", name="five", kwargs={"n": 5})
    @stage.app.task(queue="reports", priority=3)
    async def report(ctx: Context, n: int) -> None:
        seen.append((n, ctx.headers))
        job = await stage.job(ctx.id)
        assert (job.queue, job.priority, job.spec.reuse) == ("reports", 3, False)

    async with stage.working():
        await asyncio.sleep(3600)

    assert [headers["millrace-tick"] for _, headers in seen] == expected(START, START + HOUR, 5 * MINUTE)
    assert {(n, headers["millrace-schedule"]) for n, headers in seen} == {(5, "five")}


@virtual
async def test_a_worker_may_leave_the_schedules_to_others(stage: Stage) -> None:
    app = an_app(stage.store)
    async with app.worker(scheduler=False, heartbeat=InlineHeartbeat):
        await asyncio.sleep(3 * 3600)

    assert await app.schedules.page() == []


@virtual
async def test_a_stop_does_not_wait_for_the_next_tick(stage: Stage) -> None:
    app = an_app(stage.store)
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    worker = app.worker(heartbeat=InlineHeartbeat)
    async with worker:
        await asyncio.sleep(1)
        begun = loop.time()
    assert loop.time() - begun < 1
    assert asyncio.all_tasks() == before

    alone = app.scheduler()
    alone.start()
    await asyncio.sleep(1)
    begun = loop.time()
    await alone.stop()
    assert loop.time() == begun
    assert asyncio.all_tasks() == before


@virtual
async def test_a_schedule_takes_the_options_it_is_given(stage: Stage) -> None:
    app = App(stage.store)

    @app.task
    async def clean() -> None: ...

    app.cron(clean.options(queue="slow", key="one", priority=9, headers={"a": "b"}), every="1m")
    scheduler = app.scheduler()
    scheduler.start()
    await asyncio.sleep(600)
    await scheduler.stop()

    [job] = await jobs_of(stage.store)
    assert (job.queue, job.spec.key, job.priority) == ("slow", "one", 9)  # and the key kept the others out
    assert job.spec.headers is not None and job.spec.headers["a"] == "b"


# ── several schedulers ────────────────────────────────────────────────────────────────────────


async def run_for(schedulers: list[Scheduler], seconds: float) -> None:
    for scheduler in schedulers:
        scheduler.start()
    await asyncio.sleep(seconds)
    for scheduler in schedulers:
        await scheduler.stop()


@virtual
async def test_three_schedulers_carry_every_tick_out_once(stage: Stage) -> None:
    apps = [an_app(stage.store, "*/10 * * * *") for _ in range(3)]
    await run_for([app.scheduler() for app in apps], 24 * 3600)

    assert await tick_names(stage.store) == expected(START, START + 24 * HOUR, 10 * MINUTE)


@pytest.mark.parametrize("seed", range(8))
def test_no_tick_is_skipped_or_doubled_by_crashes_lost_replies_and_restarts(seed: int) -> None:
    """Three schedulers, killed and started at random instants, on a store that fails a third of its calls."""

    async def story() -> None:
        loop, chance = asyncio.get_running_loop(), random.Random(seed)
        store = MemoryStore(clock=lambda: START + round(loop.time() * 1000))
        chances = {Fault.BEFORE: 0.1, Fault.AFTER: 0.1, Fault.TWICE: 0.05, Fault.DELAY: 0.1}

        async def node(number: int) -> None:
            for life in range(40):
                plan = seeded(1000 * seed + 100 * number + life, chances, frozenset({"advance", "schedules", "now"}))
                app = an_app(FaultyStore(store, plan, delay=chance.uniform(0, 20)), None, missed="all")
                running = asyncio.create_task(app.scheduler().run())
                await asyncio.sleep(chance.expovariate(1 / 200))
                running.cancel()
                await asyncio.wait([running])
                await asyncio.sleep(chance.expovariate(1 / 100))

        await asyncio.gather(*(node(number) for number in range(3)))
        last = an_app(store, None, missed="all").scheduler()
        await run_for([last], 60)
        [schedule] = await store.schedules()
        names = await tick_names(store)
        declared = first_mark(names)
        assert len(names) > 50
        assert names == expected(declared - MINUTE, schedule.mark, MINUTE)
        assert schedule.mark > START + round(loop.time() * 1000) - MINUTE

    def first_mark(names: list[str]) -> int:
        first = round(datetime.fromisoformat(names[0]).timestamp() * 1000)
        assert first <= START + 10 * MINUTE
        return first

    logging.getLogger(SCHEDULES).setLevel(logging.CRITICAL)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(story())
    finally:
        logging.getLogger(SCHEDULES).setLevel(logging.NOTSET)


@pytest.mark.parametrize("day", ["2026-03-28T22:00+01:00", "2026-10-24T22:00+02:00"])
def test_a_clock_change_among_hundreds_of_crashes_skips_and_doubles_nothing(day: str) -> None:
    """Berlin, from the evening before a change to the night after it; each scheduler dies every few minutes."""
    begin = round(datetime.fromisoformat(day).timestamp() * 1000)
    times = {"clean": "*/10 * * * *", "once-a-night": "30 2 * * *"}
    lives = 0

    async def story() -> None:
        loop, chance = asyncio.get_running_loop(), random.Random(day)
        store = MemoryStore(clock=lambda: begin + round(loop.time() * 1000))

        async def node() -> None:
            nonlocal lives
            while loop.time() < 31 * 3600:
                app = an_app(store, times["clean"], tz="Europe/Berlin")
                app.cron(times["once-a-night"], app.tasks["clean"], name="once-a-night", tz="Europe/Berlin")
                running = asyncio.create_task(app.scheduler().run())
                await asyncio.sleep(chance.expovariate(1 / 240))
                running.cancel()
                await asyncio.wait([running])
                await asyncio.sleep(chance.expovariate(1 / 15))
                lives += 1

        await asyncio.gather(*(node() for _ in range(3)))
        wanted = [
            f"cron:{schedule.name}:{instant_text(tick)}"
            for schedule in await store.schedules()
            for tick in timetable(times[schedule.name], "Europe/Berlin").recent(begin, schedule.mark, 10**6)
        ]
        assert sorted(job.id for job in await jobs_of(store)) == wanted
        assert len([job for job in wanted if "once-a-night" in job]) == 2
        assert len(wanted) >= 2 + 31 * 6

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert lives > 1000


class Skewed(MemoryStore):
    """The one store, as a scheduler with a wrong idea of the time sees it."""

    def __init__(self, store: MemoryStore, by: int) -> None:
        super().__init__()
        self.store, self.by = store, by

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        seen = await self.store.due_schedules(names, limit, skip)
        return msgspec.structs.replace(seen, now=seen.now + self.by)

    async def advance(self, moves):
        return await self.store.advance(moves)


@virtual
async def test_a_scheduler_that_misreads_the_clock_carries_nothing_out_early(stage: Stage) -> None:
    stores = [Skewed(stage.store, by) for by in (-90_000, 0, 90_000)]
    await run_for([an_app(store, None, missed="all").scheduler() for store in stores], 3600)

    assert await tick_names(stage.store) == expected(START, START + HOUR, MINUTE)
    for job in await jobs_of(stage.store):
        assert job.spec.headers is not None
        assert job.spec.headers["millrace-tick"] <= instant_text(job.enqueued_at)


async def test_machines_whose_clocks_disagree_double_and_skip_nothing(tmp_path) -> None:
    """SQLite's clock is that of the process: three that are minutes apart share a file."""
    clocks = [VirtualClock(START + skew) for skew in (-150_000, 0, 150_000)]
    stores = [SqliteStore(tmp_path / "jobs.db", clock=clock) for clock in clocks]
    schedulers = [an_app(store, None, missed="all").scheduler() for store in stores]
    chance = random.Random(1)
    for _ in range(200):
        for clock in clocks:
            clock.advance(17)
        await chance.choice(schedulers).look()
    for _ in range(5):
        await schedulers[2].look()

    names = await tick_names(stores[0])
    [schedule] = await stores[0].schedules()
    assert len(names) > 40
    assert names == expected(schedule.mark - len(names) * MINUTE, schedule.mark, MINUTE)
    for store in stores:
        await store.close()


# ── missed ticks ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("missed", "jobs"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_after_a_night_without_schedulers(missed: str, jobs: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock(START - START % HOUR + 1)
    store = MemoryStore(clock=clock)
    await an_app(store, missed=missed).scheduler().look()
    clock.advance(5 * 3600 + 600)

    late = an_app(store, missed=missed).scheduler()
    assert await late.look() == 0
    assert len(await tick_names(store)) == jobs
    assert f"missed={missed!r} enqueues {jobs} jobs" in caplog.text
    assert await late.look() == 10
    assert len(await tick_names(store)) == jobs

    clock.advance(50 * 60)
    await late.look()
    assert len(await tick_names(store)) == jobs + 1


async def test_how_late_is_on_time_can_be_said() -> None:
    clock = VirtualClock(START - START % HOUR + 1)
    store = MemoryStore(clock=clock)
    scheduler = an_app(store, missed="skip", grace="10m").scheduler()
    await scheduler.look()
    clock.advance(3600 + 599)
    await scheduler.look()
    assert len(await tick_names(store)) == 1
    clock.advance(3600 + 2)
    await scheduler.look()
    assert len(await tick_names(store)) == 1


@virtual
async def test_a_tick_waits_for_room_in_its_queue(stage: Stage) -> None:
    app = an_app(stage.store)
    await app.queue("default").set(max_depth=0)
    scheduler = app.scheduler()
    scheduler.start()
    await asyncio.sleep(2 * 3600)
    assert await tick_names(stage.store) == []
    assert len([call for call in stage.store.calls if call == "claim"]) == 0

    await app.queue("default").set(max_depth=5)
    await asyncio.sleep(6)
    await scheduler.stop()
    assert len(await tick_names(stage.store)) == 1


# ── operators ─────────────────────────────────────────────────────────────────────────────────


@virtual
async def test_operators_see_and_pause_schedules_of_other_processes(stage: Stage) -> None:
    app, operator = an_app(stage.store, tz="Europe/Berlin", name="hourly"), App(stage.store)
    scheduler = app.scheduler()
    scheduler.start()
    await asyncio.sleep(3600)
    [shown] = await operator.schedules.page()
    assert (shown.name, shown.expression, shown.tz, shown.task) == ("hourly", "0 * * * *", "Europe/Berlin", "clean")
    assert shown.last_tick is not None and shown.next_tick == shown.last_tick + HOUR

    paused = await operator.schedules.pause("hourly")
    assert paused.paused and paused.next_tick is None
    await asyncio.sleep(5 * 3600)
    assert len(await tick_names(stage.store)) == 1

    resumed = await operator.schedules.resume("hourly")
    assert not resumed.paused and resumed.next_tick == shown.last_tick + 6 * HOUR
    assert await operator.schedules.get("hourly") == resumed
    await asyncio.sleep(3600)
    await scheduler.stop()
    assert len(await tick_names(stage.store)) == 2


@virtual
async def test_a_resumed_schedule_goes_on_with_its_next_tick_in_every_process(stage: Stage) -> None:
    """Neither half a minute of silence nor a burst of what passed meanwhile, whoever resumes it and however long."""
    operator = App(stage.store)
    schedulers = [an_app(stage.store, None, every="1s").scheduler() for _ in range(2)]
    for scheduler in schedulers:
        scheduler.start()
    for pause in (1.7, 20.25, 100.3):  # no tick falls on an instant that is looked at
        await asyncio.sleep(3.5)
        await operator.schedules.pause("clean")
        before = await tick_names(stage.store)
        await asyncio.sleep(pause)
        assert await tick_names(stage.store) == before
        resumed = await operator.schedules.resume("clean")
        begun = await stage.store.now()
        for seconds in range(1, 5):
            await asyncio.sleep(1)
            assert len(await tick_names(stage.store)) == len(before) + seconds
        assert (await tick_names(stage.store))[len(before) :] == expected(begun, begun + 4_000, 1_000)
        assert resumed.next_tick is not None and resumed.next_tick - begun <= 1_000
    for scheduler in schedulers:
        await scheduler.stop()


async def test_a_pause_outlives_the_scheduler_and_may_come_before_it() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    app = an_app(store)
    await app.schedules.pause("clean")
    await app.schedules.pause("clean")
    clock.advance(7200)
    await an_app(store).scheduler().look()
    assert await tick_names(store) == []
    with pytest.raises(InvalidInput, match="no schedule 'cleen' in the store. Known are: clean"):
        await app.schedules.resume("cleen")


async def test_a_forgotten_schedule_is_made_anew_from_now() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    app = an_app(store)
    scheduler = app.scheduler()
    await scheduler.look()
    assert await app.schedules.remove("clean") == 1
    assert await app.schedules.page() == []
    assert await app.schedules.remove("clean") == 0

    clock.advance(7200)
    await scheduler.look()
    [schedule] = await app.schedules.page()
    assert schedule.mark == clock()
    assert await tick_names(store) == []


# ── releases ──────────────────────────────────────────────────────────────────────────────────


@virtual
async def test_of_two_releases_the_one_that_began_last_runs_the_schedule(stage: Stage) -> None:
    old = an_app(stage.store, "0 * * * *").scheduler()
    old.start()
    await asyncio.sleep(60)
    new_app = an_app(stage.store, "30 * * * *")
    new = new_app.scheduler()
    new.start()
    await asyncio.sleep(4 * 3600)
    names = await tick_names(stage.store)
    assert len(names) == 4 and all(":30:00Z" in name for name in names)

    await new.stop()
    await asyncio.sleep(3 * 3600)  # nobody is there for the new times: the old release takes it back
    await old.stop()
    more = [name for name in await tick_names(stage.store) if name not in names]
    assert len(more) in (2, 3) and all(":00:00Z" in name for name in more)


@virtual
async def test_two_releases_that_cannot_get_on_do_not_take_it_from_each_other_all_the_time(stage: Stage) -> None:
    apps = [an_app(stage.store, kwargs={"days": days}) for days in (1, 2)]
    stores = [FaultyStore(stage.store) for _ in apps]
    await apps[0].queue("default").set(max_depth=0)
    schedulers = [Scheduler(app.plans, connected_to(store)) for app, store in zip(apps, stores, strict=True)]
    await run_for(schedulers, 7200)

    assert sum(store.calls["advance"] for store in stores) < 2 * 7200 / 4


def connected_to(store: Store):
    async def connected() -> Store:
        return store

    return connected


async def test_another_payload_takes_effect_and_loses_no_tick() -> None:
    clock = VirtualClock(START - START % HOUR)
    store = MemoryStore(clock=clock)
    await an_app(store).scheduler().look()
    clock.advance(3600)
    new = an_app(store, kwargs={"days": 7}).scheduler()
    await new.look()
    await new.look()

    [job] = await jobs_of(store)
    assert b"7" in job.payload


async def test_other_times_do_not_replay_the_past() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    await an_app(store, "0 3 * * *", missed="all").scheduler().look()
    clock.advance(86_400)
    new = an_app(store, "*/5 * * * *", missed="all").scheduler()
    for _ in range(3):
        await new.look()

    assert await tick_names(store) == []


# ── trouble ───────────────────────────────────────────────────────────────────────────────────


@virtual
async def test_a_store_that_is_away_is_asked_again_and_the_ticks_wait(stage: Stage) -> None:
    away = {"now": True}
    errors: list[Exception] = []

    class Away(MemoryStore):
        async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
            if away["now"]:
                raise StoreError("gone fishing")
            return await super().due_schedules(names, limit, skip)

    loop = asyncio.get_running_loop()
    store = Away(clock=lambda: START + round(loop.time() * 1000))
    app = an_app(store, None)
    scheduler = Scheduler(app.plans, app.connected, failed=errors.append, chance=lambda: 0.5)
    scheduler.start()
    await asyncio.sleep(600)
    assert 10 < len(errors) < 60  # it backs off
    away["now"] = False
    await asyncio.sleep(300)
    await scheduler.stop()

    assert len(await tick_names(store)) >= 4


async def test_schedules_that_a_worker_cannot_run_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    store = FaultyStore(MemoryStore(clock=clock))
    app = an_app(store)
    spec = app.tasks["clean"].spec()
    await app.schedules.put_many(ScheduleDefinition(f"n{n}", spec, cron="* * * * *") for n in range(2 * BATCH + 50))
    await app.schedules.put("often", spec, every="2m")
    asked: list[str] = []

    def without_cronsim(expression: str, tz: str) -> Timetable:
        asked.append(expression)
        if not expression.startswith("every"):
            raise MissingExtra("cron expressions", "cron")
        return timetable(expression, tz)

    monkeypatch.setattr("millrace.app.schedules.timetable.timetable", without_cronsim)
    timetable_or_reason.cache_clear()
    scheduler = App(store).scheduler()
    for ticks in (1, 2, 3):
        clock.advance(120)
        store.calls.clear()
        waits = [await scheduler.look() for _ in range(6)]
        # three pages, and the pages again after "often" has ticked; then the scheduler waits
        assert waits[:5] == [0] * 5 and waits[5] >= 2 and store.calls["advance"] == 1
        assert len(await tick_names(store)) == ticks
    assert len(await app.schedules.page()) == 100
    assert asked.count("* * * * *") == 1

    monkeypatch.undo()
    timetable_or_reason.cache_clear()
    able = App(store).scheduler()
    while await able.look() == 0:
        pass
    assert {job.id.split(":")[1] for job in await jobs_of(store)} == {"often", *(f"n{n}" for n in range(450))}


async def test_a_clock_that_was_far_ahead_is_told_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    app = an_app(store)
    scheduler = app.scheduler()
    await scheduler.look()
    clock.advance(30 * 86_400)
    await scheduler.look()
    clock.advance(-30 * 86_400)
    for _ in range(3):
        await scheduler.look()

    assert caplog.text.count("app.schedules.remove('clean')") == 1
    assert len(await tick_names(store)) == 1
