"""What no design had (X1 … X5): fencing for side effects, limits on names and sizes, versions, bad clocks and disks."""

from __future__ import annotations

import asyncio

from millrace import App, Context
from millrace.testing.conformance import bad_input, claims, deduplication, delays, limits
from tests.store.sqlite import test_file

test_x1_the_fence_grows_with_every_claim = claims.test_attempt_counts_claims_and_the_fence_grows_with_it


async def test_x1_a_handler_sees_its_fence(store, clock):
    app = App(store)
    seen = []

    @app.task(retry=[0])
    async def writes(ctx: Context) -> None:
        seen.append(ctx.fence)
        if len(seen) < 3:
            raise ConnectionError("again")

    await writes.enqueue()
    await app.worker(burst=True).run(handle_signals=False)

    assert len(set(seen)) == 3
    assert seen == sorted(seen)


test_x2_any_text_is_an_id = deduplication.test_any_text_is_an_id
test_x2_a_bad_spec_is_refused_and_leaves_nothing = bad_input.test_a_bad_spec_is_refused_and_leaves_nothing
test_x2_a_payload_of_a_mebibyte_is_taken_and_no_more = bad_input.test_a_payload_of_a_mebibyte_is_taken_and_no_more
test_x2_what_is_just_allowed_is_taken = bad_input.test_what_is_just_allowed_is_taken

test_x3_the_files_are_for_their_owner_only = test_file.test_the_files_are_for_their_owner_only
test_x3_no_more_jobs_run_than_the_queue_allows = limits.test_no_more_jobs_run_than_the_queue_allows
test_x3_a_limited_task_does_not_hold_up_the_others = limits.test_a_limited_task_does_not_hold_up_the_others


async def test_x4_a_run_names_its_worker_and_the_worker_its_code_version(store, clock):
    app = App(store)
    versions = []

    @app.task(max_attempts=1)
    async def fails() -> None:
        while not (known := await store.workers()):  # its first beat may still be on the way
            await asyncio.sleep(0.005)
        versions.extend((record.info.id, record.info.version) for record in known)
        raise ValueError("in this very version")

    job = await fails.enqueue()
    worker = app.worker(burst=True, version="2030.1-abc")
    await worker.run(handle_signals=False)

    [record] = await store.get([job.id])
    assert record is not None
    assert [attempt.worker for attempt in record.attempts] == [worker.id]
    assert worker.id.endswith("@2030.1-abc")  # so the history says it also when the worker's record is gone
    assert versions == [(worker.id, "2030.1-abc")]


test_x5_a_clock_that_jumps_back_loses_no_job = delays.test_a_clock_that_jumps_back_loses_no_job
test_x5_a_clock_that_jumps_back_gives_no_tokens = limits.test_a_clock_that_jumps_back_gives_nothing_and_breaks_nothing
test_x5_a_full_disk_is_an_error_that_passes = test_file.test_a_full_disk_is_an_error_that_passes
test_x5_damage_is_found = test_file.test_damage_is_found_when_the_file_was_not_closed
