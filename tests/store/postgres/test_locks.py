"""A call waits for the locks that another transaction holds, and passes over the jobs that it is claiming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.domain.request import Cancelled
from millrace.store.postgres.sql import in_schema
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from tests.narrowing import the
from tests.servers import postgres
from tests.store.postgres.stores import PostgresForTests

LIMIT = 60.0
LOCK = "SELECT pg_advisory_xact_lock(millrace.lock_number(%s))"
CLAIM = "SELECT * FROM millrace.claim_plain(%s, '{default}', NULL, 1, NULL, 'other', 'call', NULL, NULL, NULL)"
LOCK_JOB = "SELECT FROM millrace.job WHERE id = %s FOR UPDATE"
LOCK_READY = "SELECT FROM millrace.ready WHERE seq = (SELECT seq FROM millrace.job WHERE id = %s) FOR UPDATE"


@pytest.fixture
async def store(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[PostgresForTests]:
    made = PostgresForTests(postgres.url_for(tmp_path), clock=clock)
    await made.connect()
    yield made
    await made.close()
    postgres.release(tmp_path)


class Holder:
    """A transaction of another process."""

    def __init__(self, store: PostgresForTests) -> None:
        self._schema = store.address.schema
        self._connection = psycopg.connect(store.address.dsn)
        self._pid = self._connection.info.backend_pid
        self._watcher = psycopg.connect(store.address.dsn, autocommit=True)  # inside a transaction, the view is cached

    def run(self, sql: str, *args: object) -> None:
        self._connection.execute(in_schema(sql, self._schema).encode(), args)

    def is_waited_for(self) -> bool:
        waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid)))"
        return bool(self._watcher.execute(waiting, [self._pid]).fetchall()[0][0])

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._connection.closed:
            self._connection.commit()
            self._connection.close()
        self._watcher.close()


async def waits_for(holder: Holder, call: Awaitable[Any]) -> bool:
    """Return whether a call waits until another transaction has ended."""
    task = asyncio.ensure_future(call)
    async with asyncio.timeout(LIMIT):
        while not (waited := holder.is_waited_for()) and not task.done():
            await asyncio.sleep(0.01)
        if waited:
            holder.__exit__()
        await task
    return waited


async def test_a_step_waits_until_the_gate_is_open(store: PostgresForTests) -> None:
    await store.enqueue([a_spec(id="a")])
    with Holder(store) as holder:
        holder.run(LOCK, "gate")
        assert await waits_for(holder, store.cancel(["a"]))


async def test_a_claim_waits_until_the_gate_is_open(store: PostgresForTests) -> None:
    await store.enqueue([a_spec(id="a")])
    with Holder(store) as holder:
        holder.run(LOCK, "gate")
        assert await waits_for(holder, store.claim(a_claim()))


@pytest.mark.parametrize("tasks", [("one", "one"), ("one", "two")], ids=["one task", "two tasks"])
async def test_a_claim_passes_over_a_job_that_another_transaction_is_claiming(
    store: PostgresForTests, tasks: tuple[str, str]
) -> None:
    first, second = tasks
    await store.enqueue([a_spec(task=first, id="a"), a_spec(task=second, id="b")])
    with Holder(store) as holder:
        holder.run(LOCK_READY, "a")
        assert [job.id for job in await store.claim(a_claim(1))] == ["b"]
    assert [job.id for job in await store.claim(a_claim(1))] == ["a"]


@pytest.mark.parametrize("lock", [LOCK_READY, LOCK_JOB], ids=["claimed", "changed"])
async def test_a_claim_by_a_step_passes_over_a_job_that_another_transaction_has_locked(
    store: PostgresForTests, lock: str
) -> None:
    await store.control("queue", "default", {"fair_share": 0.5})  # with jobs of two priorities, this needs a step
    await store.enqueue([a_spec(id="a"), a_spec(id="b"), a_spec(id="c", priority=1)])
    with Holder(store) as holder:
        holder.run(lock, "a")
        assert sorted(job.id for job in await store.claim(a_claim(3))) == ["b", "c"]
    assert [job.id for job in await store.claim(a_claim(3))] == ["a"]


async def test_a_claim_locks_only_the_jobs_that_it_takes(store: PostgresForTests) -> None:
    await store.enqueue([a_spec(task="one", id="a"), a_spec(task="two", id="b")])
    with Holder(store) as holder:
        holder.run(CLAIM, await store.now())
        assert [job.id for job in await store.claim(a_claim(1))] == ["b"]


async def test_an_enqueue_waits_for_the_lock_of_its_key(store: PostgresForTests) -> None:
    await store.enqueue([a_spec()])  # the first job of its task needs a step
    with Holder(store) as holder:
        holder.run(LOCK, "key default k")
        assert await waits_for(holder, store.enqueue([a_spec(key="k")]))


@pytest.mark.parametrize(
    ("options", "lock"), [({"group": "g"}, "line default g:g"), ({"key": "k"}, "key default k")], ids=["group", "key"]
)
async def test_a_completion_waits_for_the_lock_of_its_group_or_key(
    store: PostgresForTests, options: dict[str, Any], lock: str
) -> None:
    await store.enqueue([a_spec(**options)])
    [job] = await store.claim(a_claim(1))
    with Holder(store) as holder:
        holder.run(LOCK, lock)
        assert await waits_for(holder, store.settle([(job.lease, Change.completed())]))


async def test_a_completion_waits_for_the_lock_of_the_next_member_of_its_group(store: PostgresForTests) -> None:
    await store.enqueue([a_spec(id="first", group="g"), a_spec(id="next", group="g"), a_spec(id="other")])
    [job] = await store.claim(a_claim(1))
    with Holder(store) as holder:
        holder.run(LOCK_JOB, "next")
        assert await waits_for(holder, store.settle([(job.lease, Change.completed())]))


async def test_a_cancel_waits_for_the_claim_of_its_job(store: PostgresForTests) -> None:
    await store.enqueue([a_spec(id="a"), a_spec(id="b")])
    with Holder(store) as holder:
        holder.run(CLAIM, await store.now())
        assert not await waits_for(holder, store.cancel(["b"]))
        cancelled = asyncio.ensure_future(store.cancel(["a"]))
        assert await waits_for(holder, cancelled)
        assert cancelled.result() == [Cancelled.RUNNING]
    [job] = await store.get(["a"])
    assert the(job).state is State.RUNNING


TAKE_LOCKS = "SELECT * FROM millrace.take_locks(%s, %s, %s)"
TAKE_JOB = "SELECT id FROM millrace.take_jobs('{}', ARRAY[%s]::text[], %s)"


class Taker:
    """A transaction that takes locks by a function of the store."""

    def __init__(self, store: PostgresForTests) -> None:
        self._schema = store.address.schema
        self._connection = psycopg.connect(store.address.dsn)

    def found(self, sql: str, *args: object) -> list[Any]:
        return [row[0] for row in self._connection.execute(in_schema(sql, self._schema).encode(), args).fetchall()]

    def __enter__(self) -> Taker:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


async def test_locks_are_tried_by_name_and_those_of_others_are_returned(store: PostgresForTests) -> None:
    with Taker(store) as first, Taker(store) as second:
        assert first.found(TAKE_LOCKS, ["exclusive", "shared"], [False, True], False) == []
        assert second.found(TAKE_LOCKS, ["shared", "exclusive", "free"], [True, True, False], False) == ["exclusive"]
        assert second.found(TAKE_LOCKS, ["shared", "exclusive"], [False, False], False) == ["exclusive", "shared"]
        assert first.found(TAKE_LOCKS, ["free"], [True], False) == ["free"]


@pytest.mark.parametrize("held", [False, True], ids=["held", "held shared"])
@pytest.mark.parametrize("wanted", [False, True], ids=["wanted", "wanted shared"])
async def test_locks_are_waited_for_with_patience(store: PostgresForTests, held: bool, wanted: bool) -> None:
    with Holder(store) as holder, Taker(store) as taker, Taker(store) as third:
        holder.run(TAKE_LOCKS, ["a"], [held], True)
        waited = await waits_for(holder, asyncio.to_thread(taker.found, TAKE_LOCKS, ["a"], [wanted], True))
        assert waited == (not (held and wanted))
        assert third.found(TAKE_LOCKS, ["a"], [False], False) == ["a"]  # the lock is held
        assert third.found(TAKE_LOCKS, ["a"], [True], False) == ([] if wanted else ["a"])


@pytest.mark.parametrize("lock", [LOCK_READY, LOCK_JOB], ids=["claimed", "changed"])
async def test_jobs_that_others_have_locked_fail_are_waited_for_or_are_skipped(
    store: PostgresForTests, lock: str
) -> None:
    await store.enqueue([a_spec(id="a"), a_spec(id="b", priority=1), a_spec(id="c", delay=1_000)])
    with Holder(store) as holder, Taker(store) as taker, Taker(store) as third:
        holder.run(lock, "a")
        assert taker.found(TAKE_JOB, "b", 0) == ["b"]
        assert third.found(TAKE_JOB, "b", 2) == []
        assert third.found(TAKE_JOB, "c", 2) == ["c"]
        with pytest.raises(psycopg.errors.LockNotAvailable):
            third.found(TAKE_JOB, "a", 0)
    for mode in (0, 1):
        with Holder(store) as holder, Taker(store) as taker:
            assert taker.found(TAKE_JOB, "c", mode) == ["c"]
            with pytest.raises(psycopg.errors.LockNotAvailable), Taker(store) as third:
                third.found(LOCK_READY.replace("SELECT FROM", "SELECT seq FROM") + " NOWAIT", "c")  # locked as well
            holder.run(lock, "a")
            if mode == 1:
                assert await waits_for(holder, asyncio.to_thread(taker.found, TAKE_JOB, "a", mode))
