"""The object store keeps every promise on a directory and on a bucket too: each sentence of tests/store, again.

On the directory all of them run every time, the modules of `DURABLE` also with every write on the disk. A bucket is a
server away, so there the sentences of `LONG`, with a hundred jobs or more each, run at night only, and on a server that
S3_ENDPOINT names. The end of the output says so.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace.store.protocol import Store
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather
from tests.object.stores import Make, a_quick_folder, in_bucket, in_folder
from tests.store import test_conformance as shared

DURABLE = frozenset({"claims", "enqueueing", "settling"})
LONG = frozenset(
    {
        "test_a_batch_of_ids_is_answered_one_by_one",
        "test_a_long_chain_dies_with_its_first_link",
        "test_a_long_chain_runs_link_by_link",
        "test_a_pool_of_a_thousand_jobs_loses_none",
        "test_a_thousand_children_are_unblocked_by_one_completion",
        "test_a_thousand_jobs_in_one_call_are_all_there",
        "test_a_thousand_jobs_of_mixed_priority_leave_sorted",
        "test_a_thousand_lost_leases_recover_in_a_few_calls",
        "test_claim_judges_each_job_by_itself",
        "test_enqueue_answers_each_spec_of_a_batch_by_itself",
        "test_extend_judges_each_item_of_a_batch_by_itself",
        "test_many_delayed_members_all_get_their_turn",
        "test_many_expired_jobs_are_never_claimed",
        "test_reclaim_judges_each_lease_by_itself",
        "test_settle_judges_each_item_of_a_batch_by_itself",
    }
)

SENTENCES = {
    name: sentence
    for name, sentence in vars(shared).items()
    if name.startswith("test_") and sentence.__module__.startswith("millrace.testing.conformance.")
}
globals().update(SENTENCES)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    module = metafunc.function.__module__.rpartition(".")[2]
    places = ["directory", *["directory-durable"] * (module in DURABLE)]
    at_night = metafunc.function.__name__ in LONG and not os.environ.get("S3_ENDPOINT")
    on_bucket = pytest.param("s3", marks=[pytest.mark.nightly] if at_night else [])
    metafunc.parametrize("store", [*places, on_bucket], indirect=True)


def test_what_is_left_for_the_night_exists():
    assert SENTENCES.keys() >= LONG


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def store(request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Store]:
    """A connected, empty store; whatever a test does to it, the invariants hold in the end."""
    if request.param == "directory":
        with a_quick_folder() as folder:
            async for store in opened(in_folder(folder), clock):
                yield store
    elif request.param == "directory-durable":
        async for store in opened(in_folder(tmp_path / "jobs", "full"), clock):
            yield store
    else:
        async for store in opened(in_bucket(request.getfixturevalue("bucket")), clock):
            yield store


async def opened(make: Make, clock: VirtualClock) -> AsyncIterator[Store]:
    store = make(clock)
    await store.connect()
    try:
        yield store
        assert_holds(await gather(store, since=START))
    finally:
        await store.close()
