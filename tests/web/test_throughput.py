"""How fast jobs go, over HTTP and on the command line, and which jobs run after another."""

from __future__ import annotations

import asyncio

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.testing.clock import VirtualClock
from millrace.views.throughput import FRESH, MOST, STEP, Mark, mark, marks_before, series
from tests.web.stage import Web, opened

MINUTE = 60_000
NOW = 1_800_000_000_000


def sums(points: list[dict[str, float]]) -> tuple[float, float]:
    return sum(point["completed"] for point in points), sum(point["died"] for point in points)


# ── the series ────────────────────────────────────────────────────────────────────────────────


def test_a_series_is_the_growth_of_the_counters_step_by_step():
    marks = [Mark(NOW, 100, 5), Mark(NOW + STEP, 130, 5), Mark(NOW + 2 * STEP, 130, 7)]

    assert series(marks) == [(NOW + STEP, 30, 0), (NOW + 2 * STEP, 0, 2)]


def test_between_two_looks_the_growth_is_spread_evenly():
    points = series([Mark(NOW, 0, 0), Mark(NOW + 4 * STEP, 100, 8)])

    assert [(point.completed, point.died) for point in points] == [(25, 2)] * 4


def test_steps_are_whole_and_never_negative():
    marks = [Mark(NOW + 1, 50, 0), Mark(NOW + 3 * STEP + 7, 20, 0)]  # the queue was obliterated in between

    assert [point.at % STEP for point in series(marks)] == [0, 0]
    assert all(point.completed == 0 for point in series(marks))
    assert series([]) == series([Mark(NOW, 1, 1)]) == []


async def worked(store: MemoryStore, clock: VirtualClock, jobs: int, at: int, died: int = 0) -> None:
    clock.set(at)
    specs = [Spec(f"{at} {n}", "work", token=f"{at} {n}") for n in range(jobs)]
    await store.enqueue(specs)
    claimed = await store.claim(Claim(("default",), "w", jobs))
    bury = Change.bury(Failure("Broken"), "max_attempts")
    await store.settle([(job.lease, bury if n < died else Change.completed()) for n, job in enumerate(claimed)])


async def test_the_time_before_the_first_look_is_told_by_the_history():
    clock = VirtualClock(NOW - 20 * MINUTE)
    store = MemoryStore(clock=clock)
    async with App(store):
        await worked(store, clock, 9, NOW - 20 * MINUTE)  # before the window
        await worked(store, clock, 6, NOW - 10 * MINUTE, died=2)
        await worked(store, clock, 3, NOW - 30_000)
        clock.set(NOW)
        points = series(await marks_before(store, mark(await store.count(), NOW)))

    assert len(points) == 90
    by_time = {(point.at - NOW) // MINUTE: (point.completed, point.died) for point in points if point[1:] != (0, 0)}
    assert by_time == {-10: (4, 2), -1: (3, 0)}


async def test_where_much_happened_only_as_much_is_read_as_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("millrace.views.throughput.MOST", 30)
    clock = VirtualClock(NOW - 20 * MINUTE)
    store = MemoryStore(clock=clock)
    async with App(store):
        await worked(store, clock, 40, NOW - 10 * MINUTE)
        await worked(store, clock, 5, NOW - 40_000)
        clock.set(NOW)
        points = series(await marks_before(store, mark(await store.count(), NOW)))

    assert len(points) == 30  # five minutes: ten would have been 120 events more
    assert sum(point.completed for point in points) == 5
    assert MOST == 20_000


# ── over HTTP ─────────────────────────────────────────────────────────────────────────────────


class StoppedClock:
    """The store's clock, which goes on only when a test says so: a slow machine changes nothing."""

    def __init__(self, now: int) -> None:
        self.at = now

    async def now(self) -> int:
        return self.at


async def stopped(store: Store, monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    clock = StoppedClock(await store.now())
    monkeypatch.setattr(store, "now", clock.now)
    return clock


async def test_it_is_counted_over_all_queues_on_every_store(url: str, monkeypatch: pytest.MonkeyPatch):
    app = App(url)

    @app.task(queue="line", max_attempts=1)
    async def pack(n: int) -> None:
        if n == 0:
            raise ValueError("no")

    async with opened(app) as web:
        await pack.enqueue_many([{"n": n} for n in range(4)])
        async with asyncio.timeout(60):
            await app.worker(burst=True).run(handle_signals=False)
        await asyncio.sleep(0.01)
        await stopped(await app.connected(), monkeypatch)
        answer = await web.get("/api/throughput")
        assert answer["step"] == 10
        # What happened within the step that has not ended yet is not in it; the marks have it all.
        marks = await web.server.throughput.marks(await app.connected())
        assert (marks[-1].completed, marks[-1].died) == (3, 1)
        assert (marks[0].completed, marks[0].died) == (0, 0)
        assert marks[-1].at - marks[0].at == 900_000
        assert sums(answer["points"])[0] <= 3


async def test_many_readers_cost_one_look(web: Web, monkeypatch: pytest.MonkeyPatch):
    store = await web.app.connected()
    looks = 0
    count = store.count

    async def counted():
        nonlocal looks
        looks += 1
        return await count()

    monkeypatch.setattr(store, "count", counted)
    clock = await stopped(store, monkeypatch)
    await asyncio.gather(*(web.get("/api/throughput") for _ in range(10)))
    assert looks == 1
    clock.at += FRESH - 1
    await web.get("/api/throughput")
    assert looks == 1
    clock.at += 1
    await asyncio.gather(*(web.get("/api/throughput") for _ in range(10)))
    assert looks == 2


# ── what runs after a job ─────────────────────────────────────────────────────────────────────


async def test_a_list_can_be_of_what_runs_after_a_job(web: Web):
    parent = await web.enqueue(id="parent")
    other = await web.enqueue(id="other")
    await web.enqueue(id="child-1", after=[parent])
    await web.enqueue(id="child-2", after=[other, parent])
    await web.enqueue(id="cousin", after=[other])

    after = (await web.get("/api/jobs", after=parent, status="blocked"))["jobs"]
    assert {job["id"] for job in after} == {"child-1", "child-2"}
    assert (await web.get("/api/jobs", after="child-1"))["jobs"] == []


async def test_what_does_not_fit_is_refused_in_words_not_in_patterns(web: Web):
    wrong = {"since": ("yesterday", "How long ago"), "queue": ("a b", "Letters, digits"), "error": ("X", "fingerprint")}
    for name, (value, words) in wrong.items():
        problem = await web.get("/api/jobs", 400, **{name: value})
        assert words in problem["detail"] and "regex" not in problem["detail"]
    assert "status" in (await web.get("/api/jobs", 400, status="null"))["detail"]  # and does not mean all of them
    assert (await web.get("/api/jobs", group="null"))["jobs"] == []
