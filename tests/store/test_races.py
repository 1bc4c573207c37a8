"""Many at once on one store: tasks of one event loop, threads with a loop each, and processes.

Whoever comes first wins, and nobody wins twice. Afterwards the feed of events is the witness: nothing was lost,
nothing was held by two at the same time, and every answer that was given is what happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, State
from millrace.domain.request import Cancelled, Query, Receipt
from millrace.store.connect import connect
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change, a_spec, specs

JOBS = 120
PATIENCE = 60.0
STARTS = frozenset({Kind.ENQUEUED, Kind.UNBLOCKED, Kind.REPLAYED, Kind.ARCHIVED, Kind.UNARCHIVED, Kind.PRUNED})

Work = Callable[[Store, int], Awaitable[Any]]


async def in_tasks(store: Store, works: Sequence[Work]) -> list[Any]:
    return list(await asyncio.wait_for(asyncio.gather(*(work(store, n) for n, work in enumerate(works))), PATIENCE))


async def in_threads(store: Store, works: Sequence[Work]) -> list[Any]:
    """Each on a thread and an event loop of its own, all let go at the same moment."""
    start = threading.Barrier(len(works))

    def run(number: int, work: Work) -> Any:
        async def main() -> Any:
            mine = store.for_loop()
            if mine is not store:
                await mine.connect()
            try:
                start.wait(PATIENCE)
                return await work(mine, number)
            finally:
                if mine is not store:
                    await mine.close()

        return asyncio.run(main())

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(works)) as pool:  # room for all at once: they wait for each other before they begin
        jobs = [loop.run_in_executor(pool, run, number, work) for number, work in enumerate(works)]
        return list(await asyncio.wait_for(asyncio.gather(*jobs), PATIENCE))


@pytest.fixture(params=[in_tasks, in_threads], ids=["tasks", "threads"])
def together(request):
    return request.param


async def all_events(store: Store) -> list[Event]:
    events: list[Event] = []
    cursor = None
    while True:
        page = await store.events(cursor, 1_000)
        if not page.events:
            return events
        events += page.events
        cursor = page.cursor


def held_by_one_at_a_time(events: Sequence[Event]) -> None:
    """Between the claim of a job and the next one there is the end of the run, under that very lease."""
    holder: dict[int, str | None] = {}
    for event in events:
        if event.kind is Kind.CLAIMED:
            assert holder.get(event.seq) is None, f"{event.job} was claimed while {holder[event.seq]} held it"
            holder[event.seq] = event.lease
        elif event.kind is Kind.RECLAIMED:
            holder[event.seq] = event.lease
        elif event.kind not in STARTS:
            assert holder.get(event.seq) == event.lease, f"{event} under another lease than {holder.get(event.seq)}"
            holder[event.seq] = None


async def nothing_is_lost(store: Store, ids: Sequence[str]) -> None:
    """Each of these jobs is there, once, and has ended; its history tells how, without a gap."""
    found = await store.get(list(ids))
    assert all(job is not None for job in found), "a job that was accepted is gone"
    assert [job.id for job in found if job is not None and job.state not in FINISHED] == []
    events = await all_events(store)
    assert Counter(event.job for event in events if event.kind is Kind.ENQUEUED) == Counter(ids)
    last: Counter[str] = Counter()
    for event in events:
        assert event.n == last[event.job] + 1, f"a gap before {event}"
        last[event.job] = event.n
    held_by_one_at_a_time(events)


async def produce(store: Store, number: int) -> list[str]:
    ids = []
    for group in range(JOBS // 12):
        batch = [a_spec(id=f"p{number}-{group}-{n}", group=f"g{n}" if n % 3 == 0 else None) for n in range(3)]
        ids += [answer.id for answer in await store.enqueue(batch)]
    return ids


async def consume(store: Store, number: int) -> int:
    """Claim and settle until nothing has come for a while; some runs fail or are given back the first time."""
    done = idle = 0
    while idle < 50:
        jobs = await store.claim(a_claim(4, worker=f"w{number}"))
        idle = 0 if jobs else idle + 1
        if not jobs:
            await asyncio.sleep(0.01)
            continue
        ends = [_end(job.attempt, n + number) for n, job in enumerate(jobs)]
        receipts = await store.settle([(job.lease, end) for job, end in zip(jobs, ends, strict=True)])
        assert set(receipts) <= {Receipt.OK, Receipt.CANCELLING}
        done += sum(end.verb == "complete" for end in ends)
    return done


def _end(attempt: int, choice: int) -> Change:
    if attempt == 1 and choice % 4 == 0:
        return a_retry_change(0)
    return Change.release() if attempt == 1 and choice % 4 == 1 else Change.completed()


async def meddle(store: Store, number: int) -> int:
    """Cancel jobs that may be waiting, running, done or not there yet."""
    hits = 0
    for group in range(JOBS // 12):
        answers = await store.cancel([f"p{number % 4}-{group}-1"], "request" if group % 2 else "refuse")
        hits += answers == [Cancelled.CANCELLED]
        await asyncio.sleep(0)
    return hits


async def test_producers_workers_and_operators_do_not_lose_or_double_a_job(store, together):
    works = [produce, produce, produce, produce, consume, consume, consume, meddle]

    *produced, _, _, _, _ = await together(store, works)

    ids = [job_id for part in produced for job_id in part]
    assert len(ids) == 4 * (JOBS // 12) * 3
    await nothing_is_lost(store, ids)


async def test_one_enqueue_asked_fifty_times_at_once_makes_one_job(store, together):
    spec = a_spec(id="once", token="the same")

    async def ask(store: Store, number: int) -> Any:
        return (await store.enqueue([spec]))[0]

    answers = await together(store, [ask] * 50)

    assert len({(answer.id, answer.seq, answer.generation, answer.status) for answer in answers}) == 1
    assert [event.kind for event in await all_events(store)] == [Kind.ENQUEUED]


async def test_one_key_under_fifty_ids_at_once_makes_one_job(store, together):
    async def ask(store: Store, number: int) -> Any:
        return (await store.enqueue([a_spec(id=f"id-{number}", key="only one")]))[0]

    answers = await together(store, [ask] * 50)

    assert Counter(answer.status for answer in answers) == {"queued": 1, "duplicate": 49}
    assert len({answer.id for answer in answers}) == 1
    page = await store.find(Query())
    assert len(page.jobs) == 1


async def test_a_job_is_either_cancelled_or_claimed(store, together):
    waiting = specs(JOBS)
    await store.enqueue(waiting)

    async def cancel(store: Store, number: int) -> dict[str, Cancelled]:
        said = {}
        for spec in waiting[number::2]:
            [said[spec.id]] = await store.cancel([spec.id])
        return said

    async def claim(store: Store, number: int) -> list[str]:
        taken: list[str] = []
        while jobs := await store.claim(a_claim(3, worker=f"w{number}")):
            taken += [job.id for job in jobs]
            await asyncio.sleep(0)
        return taken

    odd, even, *claims = await together(store, [cancel, cancel, claim, claim])

    said = {**odd, **even}
    taken = Counter(job_id for part in claims for job_id in part)
    assert set(taken.values()) <= {1}
    assert {job_id for job_id, answer in said.items() if answer is Cancelled.RUNNING} <= set(taken)
    assert {job_id for job_id, answer in said.items() if answer is Cancelled.CANCELLED} == set(said) - set(taken)


async def test_a_late_settle_and_the_reaper_cannot_both_have_the_job(store, clock, together):
    await store.enqueue(specs(JOBS))
    held = await store.claim(a_claim(JOBS, lease=1))
    clock.advance(2)

    async def settle(store: Store, number: int) -> dict[str, Receipt]:
        receipts = {}
        for job in held[number::2]:
            [receipts[job.id]] = await store.settle([(job.lease, Change.completed())])
        return receipts

    async def reap(store: Store, number: int) -> list[str]:
        taken: list[str] = []
        while jobs := await store.reclaim(a_reclaim(5, worker=f"reaper{number}")):
            receipts = await store.settle([(job.lease, a_retry_change(600, stalled=1)) for job in jobs])
            assert set(receipts) == {Receipt.OK}
            taken += [job.id for job in jobs]
        return taken

    odd, even, *reaped = await together(store, [settle, settle, reap, reap])

    receipts = {**odd, **even}
    rescued = Counter(job_id for part in reaped for job_id in part)
    assert set(rescued.values()) <= {1}
    assert {job_id for job_id, receipt in receipts.items() if receipt is Receipt.LOST} == set(rescued)
    states = {job.id: job.state for job in await store.get(list(receipts)) if job is not None}
    assert {job_id for job_id, state in states.items() if state is State.WAITING} == set(rescued)
    held_by_one_at_a_time(await all_events(store))


async def test_a_child_enqueued_while_its_parents_end_is_released(store, together):
    """Whoever comes first: the enqueue sees the end, or the end sees the child."""

    async def families(store: Store, number: int) -> list[str]:
        ids = []
        for n in range(JOBS // 12):
            pair = [f"{number}-{n}-a", f"{number}-{n}-b"]
            answers = await store.enqueue([a_spec(id=parent) for parent in pair])
            await asyncio.sleep(0.01 if n % 2 else 0)
            answers += await store.enqueue([a_spec(id=f"{number}-{n}-child", after=pair)])
            ids += [answer.id for answer in answers]
        return ids

    *made, _, _, _ = await together(store, [families, families, families, consume, consume, consume])

    await nothing_is_lost(store, [job_id for part in made for job_id in part])


async def test_a_group_runs_one_at_a_time_whoever_asks(store, together):
    await store.enqueue(specs(60, group="one line"))
    running: list[int] = [0, 0]

    async def work(store: Store, number: int) -> None:
        idle = 0
        while idle < 20:
            jobs = await store.claim(a_claim(5, worker=f"w{number}"))
            if not jobs:
                idle += 1
                await asyncio.sleep(0.01)
                continue
            running[0] += len(jobs)
            running[1] = max(running)
            await asyncio.sleep(0)
            running[0] -= len(jobs)
            await store.settle([(job.lease, Change.completed()) for job in jobs])

    await together(store, [work] * 4)

    assert running == [0, 1]
    assert Counter(job.state for job in (await store.find(Query())).jobs) == {State.COMPLETED: 60}


# ── processes: a store that several of them can open ──────────────────────────────────────────────

between_processes = pytest.mark.parametrize("store", ["postgres", "redis", "sqlite"], indirect=True)


@between_processes
async def test_processes_share_a_store_without_losing_or_doubling_a_job(store):
    roles = ["produce", "produce", "produce", "produce", "consume", "consume", "meddle"]

    *produced, _, _, _ = await asyncio.to_thread(run_children, store.url, roles)

    await nothing_is_lost(store, [job_id for part in produced for job_id in part])


@between_processes
async def test_one_key_in_many_processes_at_once_makes_one_job(store):

    answers = await asyncio.to_thread(run_children, store.url, ["same_key"] * 5)

    queued = [status for part in answers for status in part if status == "queued"]
    assert len(queued) == 1
    assert len((await store.find(Query())).jobs) == 1


def run_children(url: str, roles: Sequence[str]) -> list[Any]:
    """Each role in a process of its own, with the real clock; what each of them answered."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.store.test_races", url]
    children = [
        subprocess.Popen(
            [*command, role, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
        )
        for number, role in enumerate(roles)
    ]
    answers = []
    try:
        for child in children:
            out, err = child.communicate(timeout=PATIENCE)
            assert child.returncode == 0, err
            answers.append(json.loads(out))
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
    return answers


async def same_key(store: Store, number: int) -> list[str]:
    specs = [a_spec(id=f"id-{number}-{n}", key="only one") for n in range(10)]
    return [(await store.enqueue([spec]))[0].status for spec in specs]


async def child(url: str, role: str, number: int) -> Any:
    store = connect(url)
    await store.connect()
    try:
        roles: dict[str, Work] = {"produce": produce, "consume": consume, "meddle": meddle, "same_key": same_key}
        return await roles[role](store, number)
    finally:
        await store.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(child(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
