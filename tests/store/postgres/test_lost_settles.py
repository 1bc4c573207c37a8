"""After a settle whose reply was lost, its receipts are found in the history of the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Job
from millrace.domain.request import Receipt
from millrace.store.postgres.session import settled_before
from millrace.testing.builders import a_claim, a_retry_change, a_spec
from millrace.testing.clock import VirtualClock
from tests.narrowing import the
from tests.servers import postgres
from tests.store.postgres.stores import PostgresForTests

OK, LOST = Receipt.OK, Receipt.LOST


@pytest.fixture
async def store(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[PostgresForTests]:
    made = PostgresForTests(postgres.url_for(tmp_path), clock=clock)
    await made.connect()
    yield made
    await made.close()
    postgres.release(tmp_path)


async def claimed(store: PostgresForTests, *ids: str) -> list[Job]:
    await store.enqueue([a_spec(id=name) for name in ids])
    return await store.claim(a_claim(len(ids)))


async def found(store: PostgresForTests, jobs: Sequence[Job]) -> list[Receipt] | None:
    before = await settled_before(store.session(), [(job.lease, Change.completed()) for job in jobs])()
    return None if before is None else before.answer


async def test_a_run_that_was_not_settled_has_no_receipt(store: PostgresForTests) -> None:
    jobs = await claimed(store, "a", "b")
    assert await found(store, jobs) is None


async def test_receipts_are_found_while_the_jobs_exist(store: PostgresForTests) -> None:
    first, second, third = await claimed(store, "a", "b", "c")
    await store.settle([(job.lease, Change.completed()) for job in (first, second)])
    assert await found(store, [first, second]) == [OK, OK]
    assert await found(store, [first, third]) == [OK, LOST]
    assert await found(store, [third]) is None


async def test_receipts_of_different_ends_are_found(store: PostgresForTests) -> None:
    first, second, third = await claimed(store, "a", "b", "c")
    await store.settle([(first.lease, Change.completed()), (second.lease, a_retry_change(60))])
    assert await found(store, [second, first]) == [OK, OK]
    assert await found(store, [third]) is None


async def test_only_jobs_that_have_ended_are_announced(store: PostgresForTests) -> None:
    first, second = await claimed(store, "a", "b")
    await store.settle([(first.lease, Change.completed()), (second.lease, a_retry_change(60))])
    for job, ended in ((first, ["a"]), (second, [])):
        before = the(await settled_before(store.session(), [(job.lease, Change.completed())])())
        assert before.ended == ended


async def test_receipts_are_found_after_the_next_claim(store: PostgresForTests) -> None:
    first, second = await claimed(store, "a", "b")
    await store.settle([(first.lease, a_retry_change(0)), (second.lease, a_retry_change(0))])
    again = await store.claim(a_claim(2))
    assert await found(store, [first, second]) == [OK, OK]
    assert await found(store, again) is None


async def test_receipts_are_found_after_a_later_run(store: PostgresForTests) -> None:
    [first] = await claimed(store, "a")
    await store.settle([(first.lease, a_retry_change(0))])
    for name in ("b", "c"):
        [other] = await claimed(store, name)
        await store.settle([(other.lease, Change.release())])
    assert await found(store, [first]) == [OK]


async def test_a_receipt_is_found_after_another_job_joined_the_batch(store: PostgresForTests) -> None:
    [first] = await claimed(store, "a")
    await store.settle([(first.lease, a_retry_change(0))])
    await store.enqueue([a_spec(id="b", priority=9)])
    batch = await store.claim(a_claim(2))
    assert [job.id for job in batch] == ["b", "a"]  # the events of "a" are not the first of their rows
    await store.settle([(job.lease, Change.release()) for job in batch])
    assert await found(store, [first]) == [OK]


async def test_receipts_are_found_after_the_record_was_deleted(store: PostgresForTests) -> None:
    await store.control("queue", "default", {"keep_completed": 0})
    first, second = await claimed(store, "a", "b")
    await store.settle([(first.lease, Change.completed())])
    await store.maintain()
    assert await store.get(["a"]) == [None]
    assert await found(store, [first, second]) == [OK, LOST]


async def test_the_search_ends_after_twenty_events(store: PostgresForTests) -> None:
    [first] = await claimed(store, "a")
    await store.settle([(first.lease, a_retry_change(0))])
    for _ in range(12):
        [again] = await store.claim(a_claim(1))
        await store.settle([(again.lease, Change.release())])
    assert await found(store, [first]) is None
    assert await found(store, [again]) == [OK]
