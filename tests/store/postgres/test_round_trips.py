"""The number of statements of a call does not depend on the number of its jobs, whatever features they use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Receipt, Replayed
from millrace.domain.schedule import Move, Schedule
from millrace.testing.builders import a_claim, a_spec
from tests.servers.postgres import url_for
from tests.store.postgres.counted import Counted, counted_store

FEW, MANY = 4, 60
FAILURE = Failure("Error", "no")
LANES = 4 * MANY
Kind = Callable[[str, int], dict[str, Any]]  # options of the n-th job, by a name that no other batch has
KINDS: dict[str, Kind] = {
    "plain": lambda name, n: {},
    "key": lambda name, n: {"key": f"key-{n}"},
    "own key": lambda name, n: {"key": f"{name}-{n}"},
    "replaced key": lambda name, n: {"key": f"key-{n}", "on_hit": "replace", "group": f"group-{n}"},
    "own group": lambda name, n: {"group": f"{name}-{n}"},
    "few groups": lambda name, n: {"group": f"{name}-{n % 2}"},
    "group and priority": lambda name, n: {"group": f"{name}-{n % 3}", "priority": n % 3},
    "own queue": lambda name, n: {"queue": f"queue-{n}", "key": f"{name}-{n}"},
    "pool": lambda name, n: {"queue": "pool"},
    "pool by group": lambda name, n: {"queue": "pool", "group": f"{name}-{n}"},
    "limited task": lambda name, n: {"task": "limited", "group": f"{name}-{n}"},
    "limited queue": lambda name, n: {"queue": "limited"},
    "hook": lambda name, n: {"group": f"{name}-{n}", "on_dead_letter": "told"},
    "expires": lambda name, n: {"expires": 3_600_000, "key": f"{name}-{n}"},
}
QUEUES = ("default", "pool", "limited", *(f"queue-{n}" for n in range(MANY)))
TASKS = frozenset({"work", "limited"})  # not the jobs of hooks
ENDINGS: dict[str, Callable[[str], Change]] = {
    "complete": lambda name: Change.completed(b"1"),
    "bury": lambda name: Change.bury(FAILURE, "unknown"),
    "retry": lambda name: Change.retry(FAILURE, delay=3_600_000),
    "snooze": lambda name: Change.snooze(3_600_000),
    "carry": lambda name: Change.completed(jobs=(a_spec(id=name, group=name, key=name),)),
}


@pytest.fixture
async def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counted]:
    async with counted_store(url_for(tmp_path), monkeypatch) as found:
        await found.store.control("queue", "pool", {"lanes": LANES})
        await found.store.control("queue", "limited", {"max_running": 1_000})
        await found.store.control("task", "limited", {"max_running": 1_000})
        yield found


def specs(kind: str, name: str, count: int) -> list[Spec]:
    return [a_spec(**({"id": f"{name}-{n}"} | KINDS[kind](name, n))) for n in range(count)]


def ids(specs: Sequence[Spec]) -> list[str]:
    return [spec.id for spec in specs]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_enqueue_and_a_cancel_send_as_many_statements_for_many_jobs_as_for_few(
    counted: Counted, kind: str
) -> None:
    async def sent(name: str, count: int) -> tuple[int, int, int]:
        first, second = specs(kind, name, count), specs(kind, f"{name}-more", count)
        _, enqueue = await counted.of(counted.store.enqueue(first))
        _, more = await counted.of(counted.store.enqueue(second))
        _, cancel = await counted.of(counted.store.cancel(ids([*first, *second])))
        return enqueue, more, cancel

    await sent("known", MANY)  # creates queues and combinations

    assert await sent("few", FEW) == await sent("many", MANY)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", ["own key", "own group", "own queue", "pool", "limited task", "limited queue", "hook"])
async def test_ends_and_replays_send_as_many_statements_for_many_jobs_as_for_few(
    counted: Counted, kind: str, ending: str
) -> None:
    async def sent(name: str, count: int) -> tuple[int, int]:
        await counted.store.enqueue([*specs(kind, name, count), *specs(kind, f"{name}-next", 3 * count)])
        held = await counted.store.claim(a_claim(queues=QUEUES, tasks=TASKS, limit=count))
        assert len(held) == count
        changes = [(job.lease, ENDINGS[ending](f"{name}-carried-{job.id}")) for job in held]
        receipts, settle = await counted.of(counted.store.settle(changes))
        assert set(receipts) == {Receipt.OK}
        _, replay = await counted.of(counted.store.replay([job.id for job in held]))
        for queue in QUEUES:
            await counted.store.drain(queue, 10_000)
        return settle, replay

    await sent("known", MANY)

    assert await sent("few", FEW) == await sent("many", MANY)


@pytest.mark.parametrize("kind", ["plain", "own key", "own group", "pool", "limited queue"])
async def test_many_due_schedules_send_as_many_statements_as_few(counted: Counted, kind: str) -> None:
    async def sent(name: str, count: int) -> tuple[int, int, int, int]:
        made = [Schedule(f"{name}.{n}", "every 1h", "UTC", "work", "q", "all", 0, "", 0) for n in range(count)]
        stored = [msgspec.structs.replace(one, template=a_spec(token=""), next_tick=1) for one in made]
        answers, put = await counted.of(counted.store.advance([Move(one.name, 0, one) for one in stored]))
        seen, look = await counted.of(counted.store.due_schedules([], MANY + 1))
        assert len(seen.due) == count
        jobs = specs(kind, name, count)
        moves = [Move(one.name, one.rev, one, (job,)) for one, job in zip(seen.due, jobs, strict=True)]
        moved, tick = await counted.of(counted.store.advance(moves))
        assert {answer.status for answer in (*answers, *moved)} == {"ok"}
        gone = [Move(answer.schedule.name, answer.schedule.rev, None) for answer in moved if answer.schedule]
        _, remove = await counted.of(counted.store.advance(gone))
        await counted.store.cancel(ids(jobs))
        return put, look, tick, remove

    await sent("known", MANY)

    assert await sent("few", FEW) == await sent("many", MANY)


@pytest.mark.parametrize("ending", ["complete", "bury"])
async def test_children_are_released_and_buried_together(counted: Counted, ending: str) -> None:
    async def sent(name: str, count: int) -> int:
        parents = specs("plain", name, count)
        children = [
            a_spec(id=f"{name}-child-{n}", after=(parent.id,), group=f"{name}-{n}", key=f"{name}-{n}")
            for n, parent in enumerate(parents)
        ]
        await counted.store.enqueue([*parents, *children])
        held = await counted.store.claim(a_claim(limit=count))
        assert len(held) == count
        _, settle = await counted.of(counted.store.settle([(job.lease, ENDINGS[ending]("")) for job in held]))
        await counted.store.cancel(ids(children))
        return settle

    await sent("known", MANY)

    assert await sent("few", FEW) == await sent("many", MANY)


async def test_groups_whose_holder_runs_are_joined_together(counted: Counted) -> None:
    async def sent(name: str, count: int) -> int:
        first = specs("own group", name, count)
        await counted.store.enqueue(first)
        held = await counted.store.claim(a_claim(limit=count))
        assert len(held) == count
        more = [a_spec(id=f"{name}-more-{n}", group=spec.group) for n, spec in enumerate(first)]
        _, enqueue = await counted.of(counted.store.enqueue(more))
        await counted.store.cancel(ids(more))
        return enqueue

    await sent("known", MANY)

    assert await sent("few", FEW) == await sent("many", MANY)


async def test_children_that_died_with_their_parents_are_replayed_together(counted: Counted) -> None:
    async def sent(name: str, count: int) -> int:
        parents = specs("plain", name, count)
        children = [
            a_spec(id=f"{name}-child-{n}", after=(parent.id,), group=f"{name}-{n}", key=f"{name}-{n}")
            for n, parent in enumerate(parents)
        ]
        await counted.store.enqueue([*parents, *children])
        held = await counted.store.claim(a_claim(limit=count))
        await counted.store.settle([(job.lease, ENDINGS["bury"]("")) for job in held])
        answers, replay = await counted.of(counted.store.replay(ids(parents)))
        assert set(answers) == {Replayed.REPLAYED}
        await counted.store.cancel(ids([*children, *parents]))
        return replay

    await sent("known", MANY)

    assert await sent("few", FEW) == await sent("many", MANY)


async def test_a_repeated_enqueue_does_not_wait_for_a_transaction_that_uses_its_group(
    counted: Counted,
) -> None:
    spec = a_spec(id="known", group="g")
    await counted.store.enqueue([spec])
    connection = await asyncpg.connect(counted.store.address.dsn)
    try:
        async with connection.transaction():
            await counted.store.within(connection).enqueue([a_spec(id="other", group="g")])
            [same] = await counted.store.enqueue([spec])
            [other] = await counted.store.enqueue([a_spec(id="known", group="g", token="another")])
    finally:
        await connection.close()

    assert (same.status, other.status) == ("queued", "duplicate")
