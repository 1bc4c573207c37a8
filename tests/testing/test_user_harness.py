"""A user's app on a memory store for the length of a test: drain, advance, failures, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millrace import App, Bury, Context, InvalidInput, JobNotFound, Retry, Snooze
from millrace.testing import JobsFailed, on_memory


class Mail:
    """A program as users write it: an app and its tasks at the top of a module."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.sent: list[str] = []
        self.trouble = 0

        @self.app.task(queue="mail", retry=[10, 20])
        async def send(to: str, copies: int = 1) -> str:
            if self.trouble:
                self.trouble -= 1
                raise ConnectionError(f"no way to {to}")
            self.sent.append(to)
            return to * copies

        @self.app.task
        def report(ctx: Context, names: list[str]) -> int:
            for name in names:
                ctx.enqueue(send.options(queue="later", delay="1h"), to=name)
            return len(names)

        self.send, self.report = send, report


@pytest.fixture
def mail(tmp_path: Path) -> Mail:
    return Mail(f"sqlite:///{tmp_path}/jobs.db")


async def test_nothing_reaches_the_apps_own_store(mail: Mail, tmp_path: Path):
    with on_memory(mail.app):
        await mail.send.enqueue("ada")
        assert (await mail.app.queue("mail").counts()).waiting == 1

    assert list(tmp_path.iterdir()) == []
    async with mail.app:
        assert mail.app.store.url.startswith("sqlite:///")
        assert (await mail.app.queue("mail").counts()).waiting == 0


async def test_an_app_that_is_open_already_is_put_back_as_it_was(mail: Mail):
    async with mail.app:
        outside = await mail.send.enqueue("outside")
        with on_memory(mail.app) as mill:
            await mail.send.enqueue("inside")
            assert (await mill.drain()).completed == 1
        assert [job.id async for job in mail.app.jobs.find()] == [outside.id]
    assert mail.sent == ["inside"]


async def test_what_a_block_registers_is_gone_after_it(mail: Mail):
    heard: list[str] = []
    for _ in range(2):
        with on_memory(mail.app) as mill:
            mail.app.on("completed", lambda event: heard.append(event.job.task))

            @mail.app.task
            async def only_here() -> None: ...

            await only_here.enqueue()
            await mill.drain()

    assert heard == ["only_here", "only_here"]
    assert sorted(mail.app.tasks) == ["report", "send"]


async def test_nothing_is_left_running_and_the_store_is_let_go(mail: Mail):
    threads, tasks = threading.active_count(), asyncio.all_tasks()
    with on_memory(mail.app) as mill:
        for _ in range(5):
            await mail.report.enqueue([])
            await mill.drain(slots=3)
    store = weakref.ref(mill.store)
    del mill

    assert asyncio.all_tasks() == tasks
    async with asyncio.timeout(60):
        while threading.active_count() > threads:  # told to end, and about to
            await asyncio.sleep(0.01)
        while store() is not None:  # a thread that has just ended may have held it
            gc.collect()
            await asyncio.sleep(0.01)
    assert store() is None


async def test_blocks_may_be_nested(mail: Mail):
    with on_memory(mail.app) as outer:
        await mail.send.enqueue("outer")
        with on_memory(mail.app) as inner:
            inner.refute_enqueued()
        outer.assert_enqueued(mail.send, to="outer", count=1)


async def test_drain_runs_what_is_due_and_what_that_enqueues_in_any_queue(mail: Mail):
    with on_memory(mail.app) as mill:

        @mail.app.task
        async def chain(ctx: Context, left: int) -> None:
            if left:
                ctx.enqueue(chain.options(queue=f"q{left}"), left - 1)

        await chain.enqueue(5)
        await mail.send.options(queue="nobody-has-heard-of-it").enqueue("ada")

        drained = await mill.drain()

    assert (drained.runs, drained.completed, drained.left) == (7, 7, {})
    assert mail.sent == ["ada"]


async def test_what_is_not_due_waits_for_its_time(mail: Mail):
    with on_memory(mail.app) as mill:
        job = await mail.report.enqueue(names=["ada", "bob"])

        assert (await mill.drain()).left == {"scheduled": 2}
        assert (mill.result(job), mail.sent) == (2, [])

        await mill.advance("59m59s")
        assert mail.sent == []

        drained = await mill.advance(1)
        assert (drained.completed, drained.left, mail.sent) == (2, {}, ["ada", "bob"])


async def test_time_moves_only_when_it_is_told_to(mail: Mail):
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with on_memory(mail.app, at=noon) as mill:
        begun = mill.now
        assert begun == noon.timestamp() * 1000 == await mail.app.store.now()

        await mail.send.enqueue("ada")
        await mill.drain()
        assert mill.now == begun

        await mill.advance("1h30m")
        assert mill.now == begun + 5_400_000


async def test_advance_stops_at_every_instant_at_which_something_is_due(mail: Mail):
    """A job due after ten seconds sees a clock that shows ten seconds, not the end of the journey."""
    with on_memory(mail.app) as mill:
        begun, seen = mill.now, []

        @mail.app.task
        async def look() -> None:
            seen.append((mill.now - begun) / 1000)
            if len(seen) < 4:
                raise Snooze("7s")

        await look.options(delay=10).enqueue()
        await look.options(delay=12).enqueue()

        await mill.advance("1m")

        assert seen == [10, 12, 17, 19, 24][: len(seen)]
        assert len(seen) == 5
        assert mill.now == begun + 60_000


async def test_retries_come_when_the_policy_says_without_jitter(mail: Mail):
    mail.trouble = 2
    with on_memory(mail.app) as mill:
        job = await mail.send.enqueue("ada")
        begun = mill.now

        drained = await mill.skip_ahead(failures="keep")

        assert (drained.retried, drained.completed) == (2, 1)
        assert mill.now == begun + 30_000
        assert (mill.job(job).attempt, mill.result(job)) == (3, "ada")


async def test_skip_ahead_stops_at_its_limit(mail: Mail):
    with on_memory(mail.app) as mill:

        @mail.app.task
        async def every_day() -> None:
            raise Snooze("1d")

        await every_day.enqueue()
        begun = mill.now

        drained = await mill.skip_ahead("10d")

        assert drained.snoozed == 11
        assert mill.now == begun + 10 * 86_400_000


async def test_upkeep_happens_on_the_way(mail: Mail):
    with on_memory(mail.app) as mill:
        await mail.app.queue("mail").set(auto_retries=1, auto_retry_delay="2h")
        mail.trouble = 1
        dead = await mail.send.options(max_attempts=1).enqueue("ada")
        stale = await mail.send.options(queue="other", delay="3h", expires="1h").enqueue("too late")
        done = await mail.report.enqueue([])
        await mill.drain(failures="keep")

        drained = await mill.advance("1d2h", failures="keep")

        assert drained.died == 1
        assert mill.job(stale).reason == "ttl_expired"
        assert mill.job(dead).state == "completed"
        with pytest.raises(JobNotFound):
            mill.job(done)  # a day is over: its record was pruned


async def test_a_rate_limit_takes_virtual_time(mail: Mail):
    with on_memory(mail.app) as mill:
        await mail.app.queue("mail").limits(rate=1, burst=1)
        await mail.send.enqueue_many({"to": str(n)} for n in range(5))

        assert (await mill.drain()).completed == 1
        assert (await mill.advance(2)).completed == 2
        assert (await mill.skip_ahead()).completed == 2


# ── failures ──────────────────────────────────────────────────────────────────────────────────


async def test_a_failed_run_is_raised_with_its_traceback_after_all_was_run(mail: Mail):
    mail.trouble = 1
    with on_memory(mail.app) as mill:
        await mail.send.enqueue("ada")
        await mail.send.enqueue("bob")

        with pytest.raises(JobsFailed) as caught:
            await mill.drain()

    assert mail.sent == ["bob"]
    assert "ConnectionError: no way to ada" in str(caught.value)
    assert "test_user_harness.py" in str(caught.value)
    assert "failures='keep'" in str(caught.value)
    assert [event.task for event in caught.value.failed] == ["send"]
    assert caught.value.drained.completed == 1


async def test_a_failure_is_told_once(mail: Mail):
    mail.trouble = 1
    with on_memory(mail.app) as mill:
        await mail.send.enqueue("ada")
        with pytest.raises(JobsFailed):
            await mill.drain()

        assert (await mill.drain()).left == {"retrying": 1}
        assert (await mill.advance(10)).completed == 1


async def test_a_drain_tells_of_its_own_runs_only(mail: Mail):
    mail.trouble = 1
    with on_memory(mail.app) as mill:
        await mail.send.enqueue("ada")
        await mail.app.worker(burst=True).run(handle_signals=False)

        drained = await mill.drain()

        assert (drained.runs, drained.failed, drained.left) == (0, (), {"retrying": 1})


@pytest.mark.parametrize(("failures", "heard"), [("raise", 2), ("dead", 1), ("keep", 0)])
async def test_one_says_which_failures_to_hear_of(mail: Mail, failures, heard):
    with on_memory(mail.app) as mill:

        @mail.app.task
        async def ends(how: str) -> None:
            raise {"bury": Bury("enough"), "retry": Retry("busy", after=5), "error": ValueError("oh")}[how]

        for how in ("bury", "retry", "error"):
            await ends.enqueue(how)

        if heard:
            with pytest.raises(JobsFailed) as caught:
                await mill.drain(failures=failures)
            drained = caught.value.drained
            assert len(caught.value.failed) == heard
        else:
            drained = await mill.drain(failures=failures)

        assert (drained.retried, drained.died, len(drained.failed)) == (2, 1, 3)


async def test_a_dependent_that_dies_is_heard_of_too(mail: Mail):
    with on_memory(mail.app) as mill:
        mail.trouble = 1
        parent = await mail.send.options(max_attempts=1).enqueue("ada")
        await mail.send.options(after=parent).enqueue("bob")

        with pytest.raises(JobsFailed, match=r"dependency_failed") as caught:
            await mill.drain(failures="dead")

        assert len(caught.value.failed) == 2


async def test_a_word_that_does_not_exist_is_refused(mail: Mail):
    with on_memory(mail.app) as mill:
        with pytest.raises(InvalidInput, match="'raise', 'dead', 'keep'"):
            await mill.drain(failures="ignore")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="time zone"), on_memory(mail.app, at=datetime(2030, 1, 1)):  # noqa: DTZ001
            pass


async def test_a_payload_that_no_longer_fits_dies_as_in_production(mail: Mail):
    with on_memory(mail.app) as mill:
        spec = mail.send.spec("ada")
        from msgspec.structs import replace

        await mail.app.enqueue([replace(spec, payload=b'{"to": 7}')])

        drained = await mill.drain(failures="keep")

        assert (drained.died, mill.job(spec.id).reason) == (1, "payload_invalid")


async def test_jobs_without_an_end_do_not_hang_the_test(mail: Mail, monkeypatch):
    monkeypatch.setattr("millrace.testing.harness.MOST_RUNS", 50)
    with on_memory(mail.app) as mill:

        @mail.app.task
        async def again(ctx: Context, delay: int) -> None:
            ctx.enqueue(again.options(delay=delay), delay)

        await again.enqueue(0)
        with pytest.raises(AssertionError, match="does a job enqueue itself again"):
            await mill.drain()
        await mail.app.queue("default").drain()

        await again.options(delay=1).enqueue(1)
        with pytest.raises(AssertionError, match="without an end"):
            await mill.advance("1h")

        assert (await mill.advance(3)).completed in (3, 4)  # and goes on after that


# ── sync, concurrency, cancelling ─────────────────────────────────────────────────────────────


def test_a_test_without_a_loop_drains_through_sync(mail: Mail):
    with on_memory(mail.app) as mill:
        asyncio.run(mail.report.enqueue(["ada"]))

        assert mill.sync.drain().completed == 1
        assert mill.sync.advance("1h").completed == 1
        assert mill.sync.skip_ahead().runs == 0
    assert mail.sent == ["ada"]


async def test_sync_under_a_loop_says_what_to_say_instead(mail: Mail):
    with on_memory(mail.app) as mill, pytest.raises(InvalidInput, match=r"await mill\.drain"):
        mill.sync.drain()


async def test_jobs_run_one_after_the_other_unless_told_otherwise(mail: Mail):
    most = running = 0
    with on_memory(mail.app) as mill:

        @mail.app.task
        async def overlap() -> None:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

        for slots, expected in ((1, 1), (4, 4)):
            most = 0
            await overlap.enqueue_many([{}] * 4)
            await mill.drain(slots=slots)
            assert most == expected


async def test_handlers_in_threads_run_in_threads(mail: Mail):
    with on_memory(mail.app) as mill:

        @mail.app.task
        def where() -> bool:
            return threading.current_thread() is threading.main_thread()

        job = await where.enqueue()
        await mill.drain()

        assert mill.result(job) is False


async def test_a_running_job_hears_of_its_cancel(mail: Mail):
    with on_memory(mail.app) as mill:

        @mail.app.task
        async def cancels_itself(ctx: Context) -> None:
            assert await mail.app.jobs.cancel(ctx.id, running="request") == "requested"
            await asyncio.sleep(60)

        job = await cancels_itself.enqueue()

        assert (await mill.drain()).cancelled == 1
        assert mill.job(job).state == "cancelled"


async def test_code_that_waits_for_a_result_works_with_a_worker_beside_it(mail: Mail):
    with on_memory(mail.app):
        async with mail.app.worker():
            assert await mail.send.call("ada", copies=2) == "adaada"


async def test_a_hundred_jobs_at_a_hundred_instants_take_a_moment(mail: Mail):
    with on_memory(mail.app) as mill:
        for n in range(100):
            await mail.send.options(delay=n * 3600).enqueue(str(n))

        assert (await mill.advance("100h")).completed == 100
        assert mail.sent == [str(n) for n in range(100)]


# ── pools, schedules, middleware, transactions, app.sync ──────────────────────────────────────


async def test_schedules_tick_as_time_moves(mail: Mail):
    ran: list[str] = []

    @mail.app.cron("0 3 * * *", tz="Europe/Berlin")
    @mail.app.task
    async def nightly() -> None:
        ran.append(datetime.fromtimestamp(mill.now / 1000, UTC).isoformat())

    @mail.app.task
    async def often() -> None:
        ran.append("often")

    mail.app.cron(often, every="12h")

    with on_memory(mail.app, at=datetime(2030, 3, 30, 12, tzinfo=UTC)) as mill:
        await mill.drain()
        assert ran == []

        assert (await mill.advance("2d")).completed == 6

    assert [when for when in ran if when != "often"] == ["2030-03-31T01:00:00+00:00", "2030-04-01T01:00:00+00:00"]
    assert ran.count("often") == 4


async def test_skip_ahead_does_not_wait_for_the_next_tick(mail: Mail):
    @mail.app.task
    async def always() -> None: ...

    mail.app.cron(always, every="1m")
    with on_memory(mail.app) as mill:
        await mail.send.options(delay="150s").enqueue("ada")
        begun = mill.now

        drained = await mill.skip_ahead()

    assert mill.now == begun + 150_000
    assert 3 <= drained.completed <= 4


async def test_a_pool_keeps_its_lanes_and_tells_its_hooks(mail: Mail):
    told: list[str] = []

    @mail.app.pool("orders", lanes=2, partition_by=lambda customer, n: customer, max_attempts=1)
    async def order(customer: str, n: int) -> None:
        if n == 3:
            raise ValueError("no stock")
        told.append(f"{customer}{n}")

    @mail.app.pool_named("orders").on_dead_letter
    async def dead(job) -> None:
        told.append("dead")

    for _ in range(2):  # a pool that was declared in one store is declared in the next
        told.clear()
        with on_memory(mail.app) as mill:
            for n in (1, 2, 3):
                await order.enqueue("ada", n)
            assert [job.lane for job in mill.all_enqueued(order)] == [mill.all_enqueued(order)[0].lane] * 3

            drained = await mill.drain(failures="keep")

            assert (drained.died, told) == (1, ["ada1", "ada2", "dead"])


async def test_middleware_is_run_and_what_a_block_adds_is_gone_after_it(mail: Mail):
    seen: list[str] = []
    with on_memory(mail.app) as mill:

        @mail.app.middleware
        async def note(ctx, call_next):
            seen.append(ctx.task)
            return await call_next()

        job = await mail.send.enqueue("ada")
        await mill.drain()
        assert (seen, mill.result(job)) == (["send"], "ada")

    assert mail.app.layers == []


async def test_a_transaction_of_the_store_stands_in_for_that_of_a_database(mail: Mail):
    with on_memory(mail.app) as mill:
        for end in ("rollback", "commit"):
            transaction = mill.store.transaction()
            await mail.send.options(within=transaction).enqueue(end)
            mill.refute_enqueued(mail.send, to=end)
            getattr(transaction, end)()

        mill.assert_enqueued(mail.send, to="commit")
        mill.refute_enqueued(mail.send, to="rollback")


def test_programs_without_a_loop_are_redirected_too(mail: Mail):
    for name in ("ada", "bob"):
        with on_memory(mail.app) as mill:
            mail.send.sync.enqueue(name)
            mill.assert_enqueued(mail.send, to=name, count=1)
            assert mill.sync.drain().completed == 1
            assert mail.app.sync.queue("mail").counts().completed == 1
    assert mail.sent == ["ada", "bob"]


@pytest.mark.parametrize("at", ["2026-01-01", 1.5, datetime(2026, 1, 1, tzinfo=UTC).date(), True])
def test_an_instant_that_is_none_is_refused(mail: Mail, at: object):
    with pytest.raises(InvalidInput, match="a datetime with a time zone, or milliseconds"), on_memory(mail.app, at=at):  # type: ignore[arg-type]
        pass


def test_the_handler_that_a_test_gave_to_a_pool_is_gone_after_it(mail: Mail):
    pool = mail.app.pool("orders", lanes=1)
    for _ in range(2):
        with on_memory(mail.app) as mill:

            @pool.handler
            def handle(n: int) -> None: ...

            handle.sync.enqueue(1)
            assert mill.sync.drain().completed == 1


async def test_the_end_of_an_endless_chain_is_found_soon(mail: Mail):
    with on_memory(mail.app) as mill:
        runs = 0

        @mail.app.task
        async def again() -> None:
            nonlocal runs
            runs += 1
            await again.enqueue()

        await again.enqueue()
        with pytest.raises(AssertionError, match="does a job enqueue itself again"):
            await mill.drain(failures="keep")
        assert runs < 20_000


async def test_a_job_with_thousands_of_children_is_no_endless_chain(mail: Mail, monkeypatch):
    monkeypatch.setattr("millrace.testing.virtual_store.MOST_RUNS_NOW", 50)
    with on_memory(mail.app) as mill:

        @mail.app.task
        async def leaf() -> None: ...

        @mail.app.task
        async def tree(ctx: Context) -> None:
            for _ in range(500):
                ctx.enqueue(leaf)

        await tree.enqueue()
        assert (await mill.drain()).completed == 501
