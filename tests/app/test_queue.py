"""app.queue(name) and app.limit(task): control that is durable and shared by all workers."""

from typing import Any

import pytest

from millrace import App, InvalidInput, QueueFull, Task
from millrace.domain.job import DAY, HOUR, MINUTE
from millrace.domain.request import Claim
from millrace.store.memory.store import MemoryStore
from tests.worker.by_hand import take

Send = Task[[str], Any]


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def app(store: MemoryStore):
    return App(store)


@pytest.fixture
def send(app: App):
    @app.task(queue="mail")
    async def send(to: str): ...

    return send


async def test_nothing_is_claimed_from_a_paused_queue_and_enqueues_are_taken(app: App, store: MemoryStore, send: Send):
    assert (await app.queue("mail").pause()).paused
    await send.enqueue("ada")
    assert await store.claim(Claim(("mail",), "w")) == []

    assert not (await app.queue("mail").resume()).paused
    assert (await take(store)).task == "send"


async def test_single_lanes_can_be_paused(app: App):
    pool = app.queue("pool")
    await pool.set(lanes=4)

    await pool.pause(lane=1)
    assert (await pool.pause(lane=3)).paused_lanes == (1, 3)
    assert (await pool.resume(lane=1)).paused_lanes == (3,)
    assert [lane.paused for lane in await pool.lanes()] == [False, False, False, True]
    with pytest.raises(InvalidInput, match="lane 4 cannot be paused"):
        await pool.pause(lane=4)


async def test_settings_take_durations_as_people_write_them(app: App, send: Send):
    queue = app.queue("mail")

    await queue.set(keep_completed="1h", keep_dead=None, auto_retries=3, auto_retry_delay="10m", on_empty=send)
    settings = await queue.limits(max_running=5, rate=2.5, burst=10)

    assert settings == await queue.settings()
    assert (settings.keep_completed, settings.keep_dead, settings.auto_retry_delay) == (HOUR, None, 10 * MINUTE)
    assert (settings.max_running, settings.rate, settings.burst, settings.on_empty) == (5, 2.5, 10, "send")
    assert (await app.queue("other").settings()).keep_completed == DAY


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"max_running": -1}, "max_running must be"),
        ({"rate": 0}, "rate must be"),
        ({"keep_dead": "-1s"}, "keep_dead is not a duration"),
        ({"colour": "red"}, "unknown setting 'colour'. Known are:"),
        ({"max_runing": 3}, "Did you mean 'max_running'"),
        ({"paused": "yes"}, "bad setting"),
    ],
)
async def test_a_bad_setting_is_refused_and_changes_nothing(app: App, bad, says):
    before = await app.queue("mail").settings()

    with pytest.raises(InvalidInput, match=says):
        await app.queue("mail").set(**bad)

    assert await app.queue("mail").settings() == before


async def test_a_full_queue_refuses_and_enqueues_nothing(app: App, send: Send):
    await app.queue("mail").set(max_depth=2)

    with pytest.raises(
        QueueFull,
        match="'mail' has 0 waiting jobs, and its limit is 2. The batch has more than 2 jobs. Nothing was enqueued.",
    ):
        await send.enqueue_many([("a",), ("b",), ("c",)])
    assert (await app.queue("mail").counts()).waiting == 0
    assert [answer.depth for answer in await send.enqueue_many([("a",), ("b",)])] == [1, 2]


async def test_a_pool_answers_lane_position_and_depth(app: App, send: Send):
    """W-20, W-23."""
    await app.queue("mail").set(lanes=2)

    first = await send.options(group="ada").enqueue("a")
    second = await send.options(group="ada").enqueue("b")

    assert (first.lane, first.position, first.depth) == (second.lane, 0, 1)
    assert (second.position, second.depth) == (1, 2)


async def test_drain_cancels_what_waits_in_bounded_steps(app: App, store: MemoryStore, send: Send):
    await send.enqueue_many([(str(n),) for n in range(2_501)])
    await take(store)
    heard: list[int] = []

    assert await app.queue("mail").drain(heard.append) == 2_500
    assert heard == [1_000, 2_000, 2_500]
    counts = await app.queue("mail").counts()
    assert (counts.waiting, counts.running, counts.cancelled) == (0, 1, 2_500)


async def test_obliterate_needs_force_and_takes_everything(app: App, store: MemoryStore, send: Send):
    await send.enqueue_many([("a",), ("b",)])
    await take(store)

    with pytest.raises(InvalidInput, match=r"deletes every job of queue 'mail'.*force=True.*drain\(\)"):
        await app.queue("mail").obliterate()
    assert await app.queue("mail").obliterate(force=True) == 2
    counts = await app.queue("mail").counts()
    assert counts.waiting + counts.running + counts.cancelled == 0


async def test_a_queue_nobody_used_counts_nothing(app: App):
    counts = await app.queue("empty").counts()

    assert (counts.queue, counts.waiting) == ("empty", 0)
    assert await app.queue("empty").lanes() == []


def test_a_queue_must_have_a_proper_name(app: App):
    with pytest.raises(InvalidInput, match="queue name 'a/b' is not allowed"):
        app.queue("a/b")


async def test_a_task_may_be_limited_over_all_workers(app: App, store: MemoryStore, send: Send):
    limits = await app.limit(send, max_running=1, rate=100)
    await send.enqueue_many([("a",), ("b",)])

    assert (limits.max_running, limits.rate) == (1, 100)
    assert len(await store.claim(Claim(("mail",), "w", limit=10))) == 1
    assert (await app.limit("send", max_running=None)).max_running is None
    with pytest.raises(InvalidInput, match="unknown setting 'lanes'"):
        await app.limit(send, lanes=2)  # type: ignore[call-arg]
