"""Worlds in which everything goes wrong, from seeds: the promises hold in each, and a seed is a world."""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from millrace.domain.job import State
from millrace.domain.ledger import Ledger
from millrace.store.memory.tables import MemoryTables
from millrace.worker import ahead, dispatcher
from proof.simulation.loop import Stuck, VirtualLoop
from proof.simulation.simulation import Outcome, main, simulate

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(200)
NIGHTLY_SEEDS = range(200, 5_200)
TWICE = range(20)


@cache
def world(seed: int) -> Outcome:
    return simulate(seed)


def broken(outcomes) -> str:
    """What to read when it fails: each broken world, and the command that replays it."""
    return "\n\n".join(str(outcome) for outcome in outcomes if outcome.problems)


@pytest.mark.timeout(300)
def test_two_hundred_worlds_keep_every_promise():
    assert broken(world(seed) for seed in SEEDS) == ""


def test_worlds_whose_workers_claim_ahead_from_the_start_keep_every_promise(monkeypatch):
    monkeypatch.setattr(ahead, "ENOUGH", 0)
    monkeypatch.setattr(dispatcher, "ENOUGH", 0)

    assert broken(simulate(seed) for seed in TWICE) == ""


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_five_thousand_worlds_keep_every_promise():
    assert broken(simulate(seed) for seed in NIGHTLY_SEEDS) == ""


def test_a_seed_gives_the_same_world_again():
    first = [world(seed).digest for seed in TWICE]

    assert [simulate(seed).digest for seed in TWICE] == first
    assert len(set(first)) == len(first)


def test_a_seed_gives_the_same_world_in_another_process():
    """Where sets of text are walked in another order, and every object lies at another address."""
    command = [sys.executable, "-m", "proof.simulation.simulation", "--seeds", f"0:{len(TWICE)}", "--digests"]

    done = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True)

    digests = [line.split()[3].rstrip(",") for line in done.stdout.splitlines() if line.startswith("seed ")]
    assert digests == [world(seed).digest for seed in TWICE]


def test_the_worlds_see_every_kind_of_trouble():
    """A suite that meets no trouble proves nothing: each kind came up, and more than once or twice."""
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        happened.update(world(seed).happened)

    wanted = "crash pause stop producer lost unanswered doubled reclaimed retried snoozed released buried cancelled"
    wanted += " replayed unblocked archived extend control completed late"
    rare = {name: happened[name] for name in wanted.split() if happened[name] < 50}
    assert rare == {}


def test_a_store_without_a_fence_is_found_out(monkeypatch):
    def held_by_anybody(self, lease):
        job = self.tables.by_seq(lease.seq)
        return job if job is not None and job.state is State.RUNNING else None

    monkeypatch.setattr(Ledger, "_held", held_by_anybody)

    assert any(simulate(seed).problems for seed in range(10))


def test_a_reaper_that_does_not_wait_for_the_end_of_a_lease_is_found_out(monkeypatch):
    lapsed = MemoryTables.lapsed
    monkeypatch.setattr(MemoryTables, "lapsed", lambda self, now, *rest: lapsed(self, now + 1_000, *rest))

    assert any(problem.startswith("two_leases") for seed in range(5) for problem in simulate(seed).problems)


def test_a_broken_world_names_the_command_that_replays_it(monkeypatch, capsys):
    monkeypatch.setattr(MemoryTables, "lapsed", lambda self, now, *rest: [])  # nobody ever recovers anything

    code = main(["--seeds", "0:2"])

    assert code == 1
    assert "python -m proof.simulation.simulation --seed 0 -v" in capsys.readouterr().out


def test_the_page_of_guarantees_names_tests_that_exist():
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", page)

    assert len(rows) >= 8
    assert [test for file, test in rows if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")] == []
    assert "exactly once" not in page


# ── the loop itself ───────────────────────────────────────────────────────────────────────────


def run(loop: VirtualLoop, main):
    try:
        return loop.run_until_complete(main)
    finally:
        loop.sweep_up()
        loop.close()


def test_an_hour_of_virtual_time_takes_none():
    loop = VirtualLoop()

    run(loop, asyncio.sleep(3_600))

    assert loop.time() == pytest.approx(3_600)


def test_a_crashed_node_cleans_nothing_up():
    loop = VirtualLoop()
    said: list[str] = []

    async def node():
        try:
            await asyncio.sleep(10)
        finally:
            if loop.is_running():
                said.append("cleaned up")

    async def scene():
        loop.start("a", node())
        loop.start("b", node())
        await asyncio.sleep(5)
        loop.crash("a")
        await asyncio.sleep(10)

    run(loop, scene())

    assert said == ["cleaned up"]


def test_a_paused_node_goes_on_where_it_stood():
    loop = VirtualLoop()
    ticks: list[float] = []

    async def node():
        for _ in range(4):
            await asyncio.sleep(1)
            ticks.append(loop.time())

    async def scene():
        loop.start("a", node())
        await asyncio.sleep(1.5)
        loop.pause("a")
        await asyncio.sleep(10)
        loop.resume("a")
        await asyncio.sleep(10)

    run(loop, scene())

    assert ticks == pytest.approx([1, 11.5, 12.5, 13.5])


def test_a_loop_in_which_everything_waits_for_ever_says_so():
    loop = VirtualLoop()

    with pytest.raises(Stuck, match="waits for ever"):
        run(loop, loop.create_future())


def test_a_loop_in_which_something_spins_says_so():
    loop = VirtualLoop(most_steps=1_000)

    async def spin():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="spins"):
        run(loop, spin())


def test_the_order_within_an_instant_comes_from_the_seed():
    def order(seed: int) -> list[int]:
        loop = VirtualLoop(random.Random(seed))
        said: list[int] = []

        async def speaker(number):
            said.append(number)

        async def scene():
            await asyncio.gather(*(speaker(number) for number in range(10)))

        run(loop, scene())
        return said

    assert order(1) == order(1)
    assert order(1) != order(2)
