"""Jobs that a settle carries."""

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import DependencyCycle
from millrace.domain.job import Spec
from millrace.domain.request import Claim, Receipt
from millrace.store.memory import MemoryStore


async def test_carried_jobs_that_wait_for_each_other_are_refused_and_nothing_of_the_batch_is_written():
    store = MemoryStore()
    await store.enqueue([Spec(id="one", task="t"), Spec(id="two", task="t")])
    one, two = await store.claim(Claim(("default",), "w", 2))
    cycle = (Spec(id="a", task="t", after=("b",)), Spec(id="b", task="t", after=("a",)))

    with pytest.raises(DependencyCycle):
        await store.settle([(one.lease, Change.completed()), (two.lease, Change.completed(jobs=cycle))])

    assert [job and job.state for job in await store.get(["one", "two", "a", "b"])] == [
        "running",
        "running",
        None,
        None,
    ]
    assert await store.settle([(one.lease, Change.completed())]) == [Receipt.OK]


async def test_a_carried_job_that_closes_a_cycle_over_a_stored_one_is_refused():
    store = MemoryStore()
    await store.enqueue([Spec(id="one", task="t"), Spec(id="waits", task="t", after=("child",), allow_missing=True)])
    [one] = await store.claim(Claim(("default",), "w", 2))

    with pytest.raises(DependencyCycle, match="waits"):
        await store.settle([(one.lease, Change.completed(jobs=(Spec(id="child", task="t", after=("waits",)),)))])
