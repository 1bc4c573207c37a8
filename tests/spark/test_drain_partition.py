"""One partition of a drain, run here without Spark: when it ends, and what it takes over before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace import App, InvalidInput
from millrace.app.spark_drain import DrainWorker
from millrace.domain.request import Claim, Query
from millrace.spark.drain.app import address_of
from millrace.spark.drain.flag import Flag
from millrace.spark.drain.partition import run_partition
from millrace.spark.drain.plan import DrainPlan, read_plan
from millrace.spark.open import OpenedStore
from tests.spark.conftest import Place
from tests.spark.programs.drain_ending import app as last_app
from tests.spark.programs.drain_ending import last
from tests.spark.programs.drain_shop import app, fail, ship, slow, stumble


class Scene:
    """A store with jobs in it, a plan for one partition, and the driver's flag held up."""

    def __init__(self, place: Place, store: OpenedStore, ledger: Path) -> None:
        self.place, self.opened, self.ledger = place, store, str(ledger)
        ledger.touch()

    def plan(self, **options: Any) -> DrainPlan:
        made = read_plan(app, {"url": self.place.url, "queues": ["orders"], **options}, address_of(app), 1)
        self.show(made)
        return made

    def show(self, plan: DrainPlan, grace: float | None = None) -> None:
        self.opened.run(Flag(plan.drain).show(self.opened.store, grace))

    def put(self, *specs: Any) -> None:
        self.opened.run(self.opened.store.enqueue(list(specs)))

    def states(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in self.opened.run(self.opened.store.find(Query(limit=1000))).jobs:
            found[job.state.value] = found.get(job.state.value, 0) + 1
        return found

    def ran(self) -> list[int]:
        return [int(line.split()[0]) for line in Path(self.ledger).read_text().splitlines()]


class Beside:
    """A partition in a thread, so that a test can do something meanwhile."""

    def __init__(self, plan: DrainPlan) -> None:
        self.row: DrainWorker | None = None
        self._thread = threading.Thread(target=self._run, args=(plan,))
        self._thread.start()

    def _run(self, plan: DrainPlan) -> None:
        self.row = run_partition(plan, 0)

    def end(self) -> DrainWorker:
        self._thread.join(120)
        assert self.row is not None
        return self.row


@pytest.fixture
def scene(sqlite: Place, tmp_path: Path) -> Iterator[Scene]:
    with sqlite.open() as store:
        yield Scene(sqlite, store, tmp_path / "ledger")


def until_ran(scene: Scene, count: int) -> None:
    for _ in range(6000):
        if len(scene.ran()) >= count:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"only {len(scene.ran())} ran")


def test_it_runs_what_is_there_and_ends(scene: Scene):
    scene.put(*(ship.spec(n, scene.ledger) for n in range(30)), fail.spec(30, scene.ledger))

    row = run_partition(scene.plan(), 0)

    assert (row.ended, row.claimed, row.completed, row.dead) == ("empty", 31, 30, 1)
    assert sorted(scene.ran()) == list(range(31))


def test_it_waits_for_a_retry_that_is_due_within_its_patience(scene: Scene):
    scene.put(stumble.spec(1, scene.ledger))

    row = run_partition(scene.plan(patience="30s"), 0)

    assert (row.ended, row.retried, row.completed) == ("empty", 1, 1)


def test_it_does_not_wait_for_a_retry_without_patience_nor_for_what_is_scheduled(scene: Scene):
    scene.put(stumble.spec(1, scene.ledger), ship.options(delay="1h").spec(2, scene.ledger))

    row = run_partition(scene.plan(patience=0), 0)

    assert (row.ended, row.retried, row.completed) == ("empty", 1, 0)
    assert scene.states() == {"waiting": 2}


def test_it_takes_over_what_a_lost_one_of_its_drain_held_once_the_lease_has_run_out(scene: Scene):
    scene.put(*(ship.options(retry=["50ms"]).spec(n, scene.ledger) for n in range(5)))
    plan = scene.plan()
    lost = Flag(plan.drain).worker(7, 0, "lost")
    claim = Claim(("orders",), lost, 3, None, 1_500)
    held = scene.opened.run(scene.opened.store.claim(claim))

    row = run_partition(plan, 0)

    assert len(held) == 3
    assert (row.ended, row.completed, row.reaped) == ("empty", 5, 3)
    assert scene.states() == {"completed": 5}


def test_it_does_not_wait_for_what_workers_of_others_hold(scene: Scene):
    scene.put(*(ship.spec(n, scene.ledger) for n in range(5)))
    scene.opened.run(scene.opened.store.claim(Claim(("orders",), "somebody else", 3, None, 60_000)))

    row = run_partition(scene.plan(), 0)

    assert (row.ended, row.completed) == ("empty", 2)
    assert scene.states() == {"running": 3, "completed": 2}


def test_told_to_stop_it_ends_what_runs_and_gives_back_the_rest(scene: Scene):
    scene.put(ship.spec(0, scene.ledger, 2.0), ship.spec(1, scene.ledger, 60.0), ship.spec(2, scene.ledger, 60.0))
    plan = scene.plan(slots=2)
    working = Beside(plan)
    until_ran(scene, 2)

    scene.show(plan, grace=2.5)
    row = working.end()

    assert (row.ended, row.completed, row.released) == ("stopped", 1, len(scene.ran()) - 1)
    assert scene.states() == {"completed": 1, "waiting": 2}
    again = scene.opened.run(scene.opened.store.find(Query(state="waiting"))).jobs
    assert {job.failures for job in again} == {0}  # a stop is nobody's failure


def test_a_second_word_that_is_more_urgent_wins(scene: Scene):
    scene.put(ship.spec(0, scene.ledger, 60.0))
    plan = scene.plan()
    working = Beside(plan)
    until_ran(scene, 1)

    scene.show(plan, grace=50)
    threading.Event().wait(1.2)
    scene.show(plan, grace=0)
    row = working.end()

    assert (row.ended, row.released) == ("stopped", 1)


def test_without_a_driver_that_holds_up_its_flag_it_stops(scene: Scene):
    scene.put(ship.spec(0, scene.ledger, 60.0))
    plan = scene.plan(until="stopped")
    working = Beside(plan)
    until_ran(scene, 1)

    scene.opened.run(Flag(plan.drain).strike(scene.opened.store))
    row = working.end()

    assert (row.ended, row.released) == ("orphaned", 1)


def test_when_its_executor_ends_it_gives_back_what_it_runs(scene: Scene):
    """Spark's daemon sends SIGHUP to its workers when the executor is gone."""
    scene.put(ship.spec(0, scene.ledger, 60.0))
    plan = scene.plan(until="stopped")

    def hang_up() -> None:
        until_ran(scene, 1)
        os.kill(os.getpid(), signal.SIGHUP)

    before = signal.getsignal(signal.SIGHUP)
    telling = threading.Thread(target=hang_up)
    telling.start()
    row = run_partition(plan, 0)
    telling.join()

    assert (row.ended, row.released) == ("orphaned", 1)
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_share_of_jobs_falls_to_each_partition(scene: Scene):
    scene.put(*(ship.spec(n, scene.ledger) for n in range(10)))
    plan = msgspec.structs.replace(scene.plan(max_jobs=7), partitions=3)

    rows = [run_partition(plan, number) for number in range(3)]

    assert [plan.share(number) for number in range(3)] == [3, 2, 2]
    assert [(row.ended, row.claimed) for row in rows] == [("max_jobs", 3), ("max_jobs", 2), ("max_jobs", 2)]
    none = msgspec.structs.replace(plan, max_jobs=1)
    assert run_partition(none, 2).claimed == 0


def test_a_handler_that_blocks_keeps_its_lease(scene: Scene):
    scene.put(slow.spec(1, scene.ledger, 5.0))

    row = run_partition(scene.plan(queues=["slow"]), 0)

    assert (row.completed, row.lost) == (1, 0)
    assert scene.ran() == [1]


def test_it_is_not_empty_when_its_lifespan_has_ended_early(scene: Scene):
    scene.put(*(last.spec() for _ in range(3)))
    plan = read_plan(last_app, {"url": scene.place.url, "queues": ["orders"], "slots": 1}, address_of(last_app), 1)
    scene.show(plan)

    row = run_partition(plan, 0)

    assert (row.ended, row.completed) == ("stopped", 1)
    assert scene.states() == {"completed": 1, "waiting": 2}


# ── what is refused ───────────────────────────────────────────────────────────────────────────


def test_a_machine_without_the_code_says_so_in_a_row(scene: Scene):
    plan = scene.plan()
    strange = msgspec.structs.replace(plan.address, module="no_such_shop", modules=("no_such_shop",))

    row = run_partition(msgspec.structs.replace(plan, address=strange), 0)

    assert row.ended == "refused"
    assert row.refused is not None and "the module 'no_such_shop' cannot be imported on" in row.refused


def test_a_machine_with_other_code_says_which_tasks_it_does_not_know(scene: Scene):
    plan = msgspec.structs.replace(scene.plan(), tasks=("ship", "sail"))

    row = run_partition(plan, 0)

    assert row.refused is not None and "does not know the tasks sail" in row.refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queues": []}, "a drain needs a queue"),
        ({"tasks": ["shipp"]}, "no task 'shipp'"),
        ({"slots": 0}, "slots must be a whole number from 1 up, not 0"),
        ({"max_jobs": 0}, "max_jobs must be a whole number from 1 up, not 0"),
        ({"until": "done"}, 'until="empty" or until="stopped"'),
        ({"grace": "soon"}, "grace"),
        ({"url": "redis://:secret@host/0"}, "name that by url_env or url_file"),
        ({"url": "sqlite:////a.db", "url_env": "B"}, "not by url and urlEnv together"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(options: dict[str, Any], words: str):
    with pytest.raises(Exception) as refusal:
        read_plan(app, {"url": "sqlite:////a.db", **options}, address_of(app), 1)

    assert words in str(refusal.value)
    assert "secret" not in str(refusal.value) or "there is a secret" in str(refusal.value)


def test_an_app_is_found_by_the_module_that_holds_it():
    address = address_of(app)

    assert (address.module, address.name) == ("tests.spark.programs.drain_shop", "app")
    assert address.modules == ("tests.spark.programs.drain_shop",)
    assert address_of(app, "shop.tasks:app").module == "shop.tasks"


def test_an_app_that_no_module_holds_is_refused():
    with pytest.raises(InvalidInput, match="no imported module holds this app"):
        address_of(App("memory://"))
    with pytest.raises(InvalidInput, match="does not name an app"):
        address_of(app, "shop.tasks")


async def test_a_flag_is_read_by_whoever_looks(sqlite: Place):
    flag = Flag("drain-1")
    async with App(sqlite.url) as other:
        store = await other.connected()
        assert await flag.read(store) == -1
        await flag.show(store)
        assert await flag.read(store) == float("inf")
        await flag.show(store, 2.5)
        assert await flag.read(store) == 2.5
        await flag.strike(store)
        assert await flag.read(store) == -1
    assert flag.owns("drain-1.p0a0-host-1-ab") and not flag.owns("drain-12.p0a0-host") and not flag.owns(None)
