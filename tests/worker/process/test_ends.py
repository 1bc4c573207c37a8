"""How processes end: told to, killed, or by their own doing; and what is recorded of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from millrace import Job, RetryPolicy, State
from millrace.domain.request import Cancelled
from tests.worker.process import handlers, slow_to_import
from tests.worker.stage import Stage, until

AT_ONCE = RetryPolicy(initial=1, maximum=1)


def task(stage: Stage, handler: Any, **options: Any) -> Any:
    return stage.app.task(process=True, **{"timeout": 60, "retry": AT_ONCE, **options})(handler)


def written(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(*pids: int) -> None:
    await until(lambda: not any(alive(pid) for pid in pids))


# ── told to end ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("handler", [handlers.tidy, handlers.tidy_async])
async def test_a_handler_past_its_timeout_is_interrupted_and_may_tidy_up(tmp_path, handler):
    stage = Stage()
    tidy = task(stage, handler, timeout=4, max_attempts=1)  # time enough to begin
    note = tmp_path / "note"

    async with stage.working() as worker:
        job = await stage.until((await tidy.enqueue(str(note))).id)

    assert (job.state, job.reason) == (State.DEAD, "timeout")
    assert written(note) == "tidied up"
    assert (worker.stats.abandoned, worker.stats.zombies) == (0, 0)


async def test_a_handler_that_will_not_end_is_killed_after_its_grace_with_all_it_started(tmp_path):
    stage = Stage()
    deaf = task(stage, handlers.deaf, timeout=4, max_attempts=1)
    note = tmp_path / "note"

    async with stage.working(grace=0.2) as worker:
        job = await stage.until((await deaf.enqueue(str(note))).id)
        await gone(*map(int, written(note).split()))

    assert (job.state, job.reason) == (State.DEAD, "timeout")
    assert job.error is not None
    assert re.search(
        r"longer than its timeout of 4 s; its process was killed by SIGKILL; it held \d+ MiB", str(job.error)
    )
    assert (worker.stats.abandoned, worker.stats.zombies) == (0, 0)


async def test_a_cancelled_job_ends_in_its_process_and_knows_why(tmp_path):
    stage = Stage()
    polling = task(stage, handlers.polling)
    note = tmp_path / "note"

    answer = await polling.enqueue(str(note))
    async with stage.working(beat_interval=0.1):
        await until(lambda: written(note) == "began")
        assert await stage.app.jobs.cancel(answer.id, running="request") == Cancelled.REQUESTED
        job = await stage.until(answer.id)

    assert job.state is State.CANCELLED
    assert written(note) == "the job was cancelled, True"


async def test_a_handler_that_heard_of_its_abort_cleans_up_undisturbed(tmp_path):
    stage = Stage()
    tidying = task(stage, handlers.tidying)
    note = tmp_path / "note"

    answer = await tidying.enqueue(str(note))
    async with stage.working(beat_interval=0.1):
        await until(lambda: written(note) == "began")
        assert await stage.app.jobs.cancel(answer.id, running="request") == Cancelled.REQUESTED
        job = await stage.until(answer.id)

    assert job.state is State.CANCELLED
    assert written(note) == "tidy"


async def test_a_job_whose_lease_was_taken_over_is_stopped(tmp_path):
    stage = Stage()
    polling = task(stage, handlers.polling)
    note = tmp_path / "note"

    answer = await polling.enqueue(str(note))
    async with stage.working(beat_interval=0.1) as worker:
        await until(lambda: written(note) == "began")
        assert await stage.app.queue("default").obliterate(force=True) >= 1
        await until(lambda: worker.stats.lost == 1)
        await until(lambda: written(note) == "its lease was taken over, True")

    assert await stage.store.get([answer.id]) == [None]


async def test_a_stopping_worker_gives_the_job_back_and_leaves_no_process(tmp_path):
    stage = Stage()
    looping, deaf = task(stage, handlers.looping), task(stage, handlers.deaf)
    notes = [tmp_path / "one", tmp_path / "two"]

    answers = [await looping.enqueue(str(notes[0])), await deaf.enqueue(str(notes[1]))]
    async with stage.working(processes=2, grace=0.5) as worker:
        await until(lambda: all(written(note) for note in notes))
        await worker.stop(deadline=0.1)

    pids = [int(pid) for note in notes for pid in written(note).split()]
    assert len(pids) == 3
    await gone(*pids)
    for answer in answers:
        job = await stage.job(answer.id)
        assert (job.state, job.failures, job.releases, job.stalls) == (State.WAITING, 0, 1, 0)


async def test_a_stop_at_once_kills_at_once(tmp_path):
    stage = Stage()
    deaf = task(stage, handlers.deaf)
    note = tmp_path / "note"

    answer = await deaf.enqueue(str(note))
    async with stage.working(grace=30) as worker:
        await until(lambda: written(note))
        await worker.stop(deadline=0)

    await gone(*map(int, written(note).split()))  # what a child had started ends a little later
    assert (await stage.job(answer.id)).releases == 1


async def test_a_signal_that_did_not_come_from_the_worker_is_none_of_a_childs_business(tmp_path):
    """A service manager stops a service by SIGTERM to all its processes: the worker decides, and spends no attempt."""
    stage = Stage()
    polling = task(stage, handlers.polling)
    note = tmp_path / "note"

    answer = await polling.enqueue(str(note))
    async with stage.working(processes=1) as worker:
        await until(lambda: written(note) == "began")
        [child] = children()
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
        await asyncio.sleep(0.7)
        assert worker.stats.running == 1
        await worker.stop(deadline=0.1)

    job = await stage.job(answer.id)
    assert (job.failures, job.releases) == (0, 1)
    assert written(note) == "the worker is shutting down, True"


async def test_a_stop_does_not_wait_for_a_child_that_still_imports():
    stage = Stage()
    task(stage, slow_to_import.work)

    async with asyncio.timeout(120), stage.working() as worker:
        await until(lambda: worker.asked_to_stop.is_set() or children(), 60)
        await worker.stop()

    assert [pid for pid in children() if alive(pid)] == []


# ── died ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("handler", "arguments", "cause"),
    [
        (handlers.leave, (7,), r"exited with code 7"),
        (handlers.kill_myself, (signal.SIGKILL,), r"was killed by SIGKILL.*may have run out of memory"),
        (handlers.touch_nothing, (), r"was killed by SIGSEGV"),
    ],
)
async def test_a_job_that_kills_its_process_three_times_is_dead_with_the_cause_shown(handler, arguments, cause):
    """SPEC part 2, lost lease: counted as a failure and in `stalls`; max_stalls buries it, whatever its budget."""
    stage = Stage()
    poison = task(stage, handler, max_attempts=None)
    add = task(stage, handlers.add)

    answer = await poison.enqueue(*arguments)
    neighbours = await add.enqueue_many([{"a": n} for n in range(30)])
    async with stage.working(slots=4, processes=2):
        job = await stage.until(answer.id)
        ends = [await stage.until(one.id) for one in neighbours]

    assert (job.state, job.reason, job.attempt, job.failures, job.stalls) == (State.DEAD, "stalled", 3, 3, 3)
    assert job.error is not None and job.error.type == "ProcessDied"
    assert re.search(rf"the process of attempt 3 {cause}", job.error.message)
    assert re.search(r"held \d+ MiB of memory at its peak", job.error.message)
    assert [one.error.type for one in job.attempts if one.error] == ["ProcessDied"] * 3
    assert [(end.state, end.attempt) for end in ends] == [(State.COMPLETED, 1)] * 30


async def test_a_budget_of_one_attempt_is_used_up_by_one_death():
    stage = Stage()
    leave = task(stage, handlers.leave, max_attempts=1)

    async with stage.working():
        job = await stage.until((await leave.enqueue(1)).id)

    assert (job.state, job.reason, job.attempt) == (State.DEAD, "stalled", 1)


async def test_the_peak_memory_of_a_dead_process_is_told():
    stage = Stage()
    hungry = task(stage, handlers.grow_and_die, max_attempts=1)

    async with stage.working():
        job = await stage.until((await hungry.enqueue(300)).id)

    assert peak(job) >= 300


async def test_what_a_dead_child_has_started_ends_with_it(tmp_path):
    stage = Stage()
    careless = task(stage, handlers.leave_something_behind, max_attempts=1)

    async with stage.working():
        await stage.until((await careless.enqueue(str(tmp_path / "note"))).id)
        await gone(int(written(tmp_path / "note")))


async def test_an_idle_child_that_dies_is_replaced_and_nobody_notices():
    stage = Stage()
    whoami = task(stage, handlers.whoami)

    async with stage.working(processes=1) as worker:
        first, _ = await whoami.call()
        os.kill(first, signal.SIGKILL)
        await until(lambda: worker.stats.children == 0)
        second, _ = await whoami.call()

    assert second != first
    assert worker.stats.completed == 2


async def test_a_job_that_meets_a_child_in_the_moment_of_its_death_is_run_again():
    stage = Stage()
    whoami = task(stage, handlers.whoami)

    async with stage.working(processes=1) as worker:
        first, _ = await whoami.call()
        answer = await whoami.enqueue()
        os.kill(first, signal.SIGKILL)
        job = await stage.until(answer.id)
        await worker.stop()

    assert job.state is State.COMPLETED
    assert job.attempt <= 2


def peak(job: Job) -> int:
    assert job.error is not None
    found = re.search(r"held (\d+) MiB", job.error.message)
    assert found is not None
    return int(found[1])


def children() -> list[int]:
    """Those of a worker; other tests of this process may have started servers."""
    pid = os.getpid()
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in found if "process.main" in command_of(child)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
