"""W-49 and the dead letters: retries hold their lane, and a job that is given up is told of."""

import logging

import msgspec
import pytest

from millrace import App, Bury, DeadJob, PayloadInvalid, Snooze, backoff
from millrace.testing.clock import VirtualClock
from tests.app.pools.scene import a_key, after, burst, kinds, states


def failing(app, **options):
    """A pool whose jobs fail as often as their first argument says."""
    ran = []

    @app.pool("orders", lanes=2, **options)
    async def handle(times: int, name: str) -> None:
        ran.append(name)
        if ran.count(name) <= times:
            raise RuntimeError(f"{name} fails")

    return handle, ran


async def test_w49_a_job_is_retried_up_to_max_attempts(app: App, clock: VirtualClock):
    handle, ran = failing(app, max_attempts=3, retry=after(1))
    answer = await handle.enqueue(99, "a")
    for _ in range(5):
        await burst(app)
        clock.advance(2)

    job = await app.jobs.get(answer)
    assert ran == ["a"] * 3
    assert (job.state, job.attempt, job.failures, job.reason) == ("dead", 3, 3, "max_attempts_exceeded")
    assert [attempt.attempt for attempt in job.attempts] == [1, 2, 3]


async def test_w25_without_retries_the_first_failure_is_final(app: App):
    handle, ran = failing(app, max_attempts=1)
    await handle.enqueue(99, "a")
    await burst(app)

    assert ran == ["a"]
    assert (await handle.pool.status()).dead == 1


async def test_w49_w26_the_delay_grows_and_is_capped(app: App, clock: VirtualClock):
    handle, ran = failing(app, max_attempts=6, retry=backoff(1, factor=2, maximum=4, jitter=0))
    answer = await handle.enqueue(99, "a")
    waits = []
    for _ in range(5):
        await burst(app)
        due = (await answer.status()).record.available_at
        waits.append((due - clock()) / 1000)
        clock.set(due - 1)
        await burst(app)
        assert len(ran) == len(waits)  # not a moment too early
        clock.set(due)

    assert waits == [1, 2, 4, 4, 4]


async def test_w27_a_job_in_backoff_holds_its_lane_and_no_other(app: App, clock: VirtualClock):
    handle, ran = failing(app, max_attempts=3, retry=after(10))
    here, there = handle.options(partition=a_key(0, 2)), handle.options(partition=a_key(1, 2))
    stuck = await here.enqueue(1, "stuck")
    await here.enqueue(0, "behind")
    await there.enqueue(0, "elsewhere")
    await burst(app)
    assert sorted(ran) == ["elsewhere", "stuck"]
    lane = (await handle.pool.status()).lanes[0]
    assert (lane.state, lane.waiting, lane.current, lane.retrying) == ("idle", 2, None, stuck.seq)

    clock.advance(10)
    await burst(app)
    assert [name for name in ran if name != "elsewhere"] == ["stuck", "stuck", "behind"]


async def test_with_retry_blocks_off_the_lane_goes_on_meanwhile(app: App, clock: VirtualClock):
    handle, ran = failing(app, max_attempts=3, retry=after(10), retry_blocks=False)
    here = handle.options(partition="ada")
    await here.enqueue(1, "stuck")
    await here.enqueue(0, "behind")
    await burst(app)
    clock.advance(10)
    await burst(app)

    assert ran == ["stuck", "behind", "stuck"]


async def test_w49_the_lane_goes_on_after_a_dead_letter(app: App):
    handle, ran = failing(app, max_attempts=1)
    here = handle.options(partition="ada")
    answers = [await here.enqueue(99, "a"), await here.enqueue(0, "b")]
    await burst(app)

    assert ran == ["a", "b"]
    assert await states(app, answers) == ["dead", "completed"]


async def test_w49_w28_a_dead_letter_is_told_with_all_that_is_known_of_it(app: App, clock: VirtualClock):
    handle, _ = failing(app, max_attempts=2, retry=after(1))
    told = []

    @handle.pool.on_dead_letter
    async def mourn(job: DeadJob) -> None:
        told.append(job)

    enqueued = clock()
    answer = await handle.options(partition="ada").enqueue(99, "a")
    await burst(app)
    failed = clock.advance(5)
    await burst(app)

    [job] = told
    assert (job.args, job.error, job.reason) == (
        {"times": 99, "name": "a"},
        "RuntimeError: a fails",
        "max_attempts_exceeded",
    )
    assert (job.id, job.seq, job.attempts, job.failures) == (answer.id, answer.seq, 2, 2)
    assert (job.enqueued_at, job.failed_at) == (enqueued, failed)
    assert (job.pool, job.lane, job.instance, job.partition) == ("orders", answer.lane, answer.instance, "ada")


async def test_w28_a_death_is_logged_with_its_sequence_and_attempts(app: App, caplog):
    handle, _ = failing(app, max_attempts=1)
    with caplog.at_level(logging.WARNING, logger="millrace.pool"):
        answer = await handle.enqueue(99, "a")
        await burst(app)

    [line] = [record.getMessage() for record in caplog.records if record.name == "millrace.pool"]
    assert f"seq {answer.seq}, lane {answer.lane}" in line
    assert "dead after 1 attempts: max_attempts_exceeded" in line


async def test_a_hook_registered_after_the_handler_is_told_too(app: App):
    """Also of jobs whose options were bound before it was there."""
    handle, _ = failing(app, max_attempts=1)
    bound = handle.options(partition="ada")
    told = []
    handle.pool.on_dead_letter(lambda job: told.append(job.seq))
    answers = [await bound.enqueue(99, "a"), *await handle.enqueue_many([(99, "b")])]
    await burst(app)

    assert sorted(told) == sorted(answer.seq for answer in answers)


async def test_what_cannot_be_read_is_told_too(app: App):
    handle, _ = failing(app)
    told: list[DeadJob] = []
    handle.pool.on_dead_letter(told.append)
    await app.enqueue([msgspec.structs.replace(handle.spec(1, "a"), payload=b"{}")])
    await burst(app)

    [job] = told
    assert (job.reason, job.payload) == ("payload_invalid", b"{}")
    with pytest.raises(PayloadInvalid):
        _ = job.args


async def test_a_handler_may_give_up_or_snooze(app: App, clock: VirtualClock):
    ran = []

    @app.pool("orders", lanes=1)
    async def handle(name: str) -> None:
        ran.append(name)
        if name == "hopeless":
            raise Bury("no way")
        if ran.count("tired") == 1:
            raise Snooze(10)

    answers = await handle.enqueue_many([("hopeless",), ("tired",), ("last",)])
    await burst(app)
    assert ran == ["hopeless", "tired"]
    clock.advance(10)
    await burst(app)

    assert ran == ["hopeless", "tired", "tired", "last"]
    assert await states(app, answers) == ["dead", "completed", "completed"]
    assert await kinds(app, answers[1]) == ["enqueued", "claimed", "snoozed", "claimed", "completed"]


async def test_a_dead_job_can_be_replayed_and_dies_anew(app: App):
    handle, ran = failing(app, max_attempts=1)
    told = []
    handle.pool.on_dead_letter(lambda job: told.append(job.seq))
    answer = await handle.enqueue(99, "a")
    await burst(app)
    await app.jobs.replay(answer)
    await burst(app)

    assert (ran, told) == (["a", "a"], [answer.seq, answer.seq])
    assert (await handle.pool.status()).dead == 2
