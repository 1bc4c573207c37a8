"""Many jobs of every kind at once on a few children, some of which die: everything ends, as it should."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from millrace import RetryPolicy, State
from millrace.app.options import TaskKeywords
from tests.worker.process import handlers
from tests.worker.stage import Stage, until


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_the_children_do_each_job_ends_as_it_should(seed: int):
    stage = Stage()
    chance = random.Random(seed)
    options: TaskKeywords = {"process": True, "timeout": 60, "retry": RetryPolicy(initial=5, maximum=20)}
    add, whoami = stage.app.task(**options)(handlers.add), stage.app.task(**options)(handlers.whoami)
    leave, fail = stage.app.task(**options)(handlers.leave), stage.app.task(**options)(handlers.fail)
    short: TaskKeywords = {**options, "timeout": 0.3, "max_attempts": 1}
    hang = stage.app.task(**short)(handlers.looping)

    expected: dict[str, tuple[State, str | None]] = {}
    for _ in range(120):
        kind = chance.choices(["add", "who", "leave", "fail", "hang"], [10, 4, 1, 1, 1])[0]
        match kind:
            case "add":
                expected[(await add.enqueue(1)).id] = (State.COMPLETED, None)
            case "who":
                expected[(await whoami.enqueue()).id] = (State.COMPLETED, None)
            case "leave":
                expected[(await leave.enqueue(3)).id] = (State.DEAD, "stalled")
            case "fail":
                expected[(await fail.enqueue("x")).id] = (State.DEAD, "max_attempts_exceeded")
            case _:
                expected[(await hang.enqueue("/dev/null")).id] = (State.DEAD, "timeout")
    async with stage.working(slots=6, processes=3, max_jobs_per_child=20, grace=0.5) as worker:
        ends = {job: await stage.until(job, timeout=120) for job in expected}

    assert {job: (end.state, end.reason) for job, end in ends.items()} == expected
    assert all(end.attempt == 1 for end in ends.values() if end.state is State.COMPLETED)
    assert (worker.stats.zombies, worker.stats.children) == (0, 0)
    assert children() == []


@pytest.mark.slow
async def test_children_that_somebody_kills_cost_their_jobs_an_attempt_and_nobody_else():
    stage = Stage()
    retry = RetryPolicy(initial=1, maximum=1)
    nap = stage.app.task(process=True, timeout=60, max_attempts=None, max_stalls=None, retry=retry)(handlers.add_later)
    chance = random.Random(3)
    jobs = await nap.enqueue_many([{"a": n, "b": 1} for n in range(200)])

    async with stage.working(slots=6, processes=3) as worker:
        await until(lambda: worker.stats.completed, 60)
        for _ in range(15):
            await asyncio.sleep(chance.uniform(0.01, 0.1))
            if found := [pid for pid in children() if "process.main" in Path(f"/proc/{pid}/cmdline").read_text()]:
                os.kill(chance.choice(found), signal.SIGKILL)
        ends = [await stage.until(job.id, timeout=120) for job in jobs]
        await worker.stop()

    assert [nap.load_result(end.result) for end in ends] == list(range(1, 201))
    assert sum(end.stalls for end in ends) <= 15
    assert children() == []


def children() -> list[int]:
    found = []
    for pid in map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
        except FileNotFoundError:
            continue
    return found
