"""What was wrong in bunqueue's design (BE-01 … BE-17), and is not here. Every store, one name per number.

Where a sentence of the conformance suite is the proof, it stands here under its number too.
"""

from __future__ import annotations

import asyncio
import shutil

from millrace.domain.heap import IndexedHeap
from millrace.store.memory import MemoryStore
from millrace.store.sqlite import SqliteStore
from millrace.testing import VirtualClock, a_claim, a_spec, specs
from millrace.testing.conformance import (
    dead_letters,
    dependencies,
    dependency_failures,
    failures,
    groups,
    keys,
    limits,
    settling,
    waiting,
)
from millrace.testing.conformance.scenes import count
from tests.domain import test_heap
from tests.store.sqlite import test_file

test_be_01_a_token_is_spent_only_for_a_delivered_job = limits.test_a_token_is_spent_only_for_a_delivered_job
test_be_01_a_refused_job_spends_no_token_of_its_task = limits.test_a_refused_job_spends_no_token_of_its_task

test_be_02_claims_that_find_nothing_leak_no_slot = limits.test_claims_that_find_nothing_leak_no_slot
test_be_02_every_way_out_of_running_makes_room = limits.test_every_way_out_of_running_makes_room

test_be_03_a_claim_costs_the_same_behind_a_busy_group = groups.test_a_claim_costs_the_same_behind_a_busy_group

test_be_04_parent_and_child_may_be_in_different_queues = dependencies.test_parent_and_child_may_be_in_different_queues
test_be_04_enqueue_and_completion_at_the_same_time_leave_nobody_waiting = (
    dependencies.test_enqueue_and_completion_at_the_same_time_leave_nobody_waiting
)

test_be_05_a_parent_that_was_pruned_still_counts = dependencies.test_a_parent_that_was_pruned_still_counts
test_be_05_a_tombstone_outlives_its_events = dependencies.test_a_tombstone_outlives_its_events_while_a_dependent_is_open

test_be_06_a_child_dies_with_its_parent = dependency_failures.test_by_default_a_child_dies_with_its_parent
test_be_06_a_child_dies_when_its_parent_is_cancelled = (
    dependency_failures.test_by_default_a_child_dies_when_its_parent_is_cancelled
)
test_be_06_a_parent_nobody_knows_is_refused = dependency_failures.test_a_parent_nobody_knows_is_refused
test_be_06_jobs_of_one_call_cannot_wait_for_each_other = (
    dependency_failures.test_jobs_of_one_call_cannot_wait_for_each_other
)

test_be_07_the_last_completion_unblocks_in_the_same_step = (
    dependencies.test_the_last_completion_unblocks_in_the_same_step
)
test_be_07_a_completion_wakes_who_waits_for_the_child = waiting.test_a_completion_wakes_who_waits_for_the_child


async def test_be_08_one_hot_queue_serves_many_workers_side_by_side(store, clock):
    await store.enqueue(specs(200))

    taken = await asyncio.gather(*(store.claim(a_claim(10, worker=f"worker-{n}")) for n in range(20)))

    assert [len(jobs) for jobs in taken] == [10] * 20
    assert len({job.id for jobs in taken for job in jobs}) == 200


test_be_09_what_the_cap_evicts_is_announced = dead_letters.test_over_the_cap_the_oldest_are_evicted_and_announced
test_be_09_the_oldest_may_be_archived_instead = dead_letters.test_over_the_cap_the_oldest_may_be_archived_instead
test_be_09_new_jobs_may_be_refused_instead = dead_letters.test_over_the_cap_new_jobs_may_be_refused_instead

test_be_10_expiry_wins_over_auto_retry = dead_letters.test_expiry_wins_over_auto_retry

test_be_11_a_clock_that_jumps_forward_gives_one_bucket = limits.test_a_clock_that_jumps_forward_gives_one_bucket_at_most
test_be_11_a_clock_that_jumps_back_gives_nothing = limits.test_a_clock_that_jumps_back_gives_nothing_and_breaks_nothing

test_be_12_a_late_settle_does_not_free_the_group = groups.test_a_late_settle_does_not_free_the_group_held_by_the_new_run
test_be_12_settling_late_gives_no_second_place = limits.test_settling_late_gives_no_second_place

test_be_13_a_key_is_held_while_its_owner_runs = keys.test_a_key_is_held_while_its_owner_runs_or_is_in_backoff
test_be_13_a_live_key_is_freed_by_the_end_of_its_owner = keys.test_a_live_key_is_freed_by_the_end_of_its_owner
test_be_13_only_the_owner_frees_its_key = keys.test_only_the_owner_frees_its_key
test_be_13_a_job_may_carry_its_successor_under_its_own_key = (
    settling.test_a_job_may_carry_its_successor_under_its_own_key
)

test_be_14_a_batch_wakes_as_many_workers_as_it_has_jobs = waiting.test_a_batch_wakes_as_many_workers_as_it_has_jobs
test_be_14_two_jobs_one_after_the_other_wake_two_workers = waiting.test_two_jobs_one_after_the_other_wake_two_workers

test_be_15_removals_alone_compact = test_heap.test_removals_alone_compact_and_memory_follows_the_live_items_be15
test_be_15_moving_items_alone_compacts = test_heap.test_moving_items_alone_compacts_be15


async def test_be_15_a_queue_that_is_only_cancelled_does_not_grow(clock):
    """Jobs come and are cancelled, delayed ones too, and none is ever claimed: nothing of them piles up."""
    store = MemoryStore(clock=clock)
    for _ in range(20):
        jobs = [*specs(100), *specs(100, delay=60)]
        await store.enqueue(jobs)
        await store.cancel([job.id for job in jobs])

    assert (await count(store)).waiting == 0
    box = store._tables._box("default")
    assert box.ready
    assert not any(map(len, box.ready.values()))
    kept = sum(ready.entries for ready in box.ready.values()) + len(box.outside) + box.outside.stale
    places = 3 * len(box.ready) + 1
    assert kept <= places * (IndexedHeap.compact_above + 1)


test_be_16_the_attempt_history_keeps_the_first_and_the_last = (
    failures.test_the_attempt_history_keeps_the_first_and_the_last
)


async def test_be_17_an_acknowledged_job_is_on_disk(tmp_path):
    """The files as they are at the moment of the answer, copied away as after a crash, hold the job."""
    clock = VirtualClock()
    here, copy = tmp_path / "here", tmp_path / "copy"
    here.mkdir(), copy.mkdir()
    store = SqliteStore(here / "jobs.db", clock=clock)
    await store.connect()
    try:
        spec = a_spec()
        await store.enqueue([spec])
        for file in here.glob("jobs.db*"):
            if file.is_file():
                shutil.copy(file, copy / file.name)
    finally:
        await store.close()
    found = SqliteStore(copy / "jobs.db", clock=clock)
    await found.connect()
    try:
        assert [job is not None and job.payload for job in await found.get([spec.id])] == [spec.payload]
    finally:
        await found.close()


test_be_17_the_store_says_what_an_answer_survives = test_file.test_the_store_says_what_an_answer_survives
