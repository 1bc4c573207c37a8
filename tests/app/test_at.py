"""The option `at`: an instant at which a job is due, by the store's clock."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from millrace import App, InvalidInput, PayloadInvalid, Task
from millrace.domain.instant import as_datetime
from millrace.store.memory.store import MemoryStore
from tests.narrowing import the
from tests.worker.by_hand import HandClock

Send = Task[[str], Any]


@pytest.fixture
def clock():
    return HandClock()  # years behind the clock of this machine


@pytest.fixture
def app(clock: HandClock):
    return App(MemoryStore(clock=clock))


@pytest.fixture
def send(app: App):
    @app.task
    async def send(to: str) -> str:
        return to

    return send


async def test_a_job_is_due_at_the_instant_by_the_stores_clock(clock: HandClock, send: Send):
    at = as_datetime(clock.now) + timedelta(hours=1)
    paris = at.astimezone(timezone(timedelta(hours=2)))

    one = await send.options(at=at).enqueue("ada")
    [many] = await send.options(at=paris).enqueue_many([("bob",)])

    for job in (one, many):
        status = await job.status()
        assert (status.state, status.available_at, status.record.spec.delay) == ("scheduled", at, 3_600_000)
    clock.advance(3600)
    assert (await one.status()).state == "ready"


async def test_an_instant_in_the_past_is_now(clock: HandClock, send: Send):
    job = await send.options(at=datetime(1990, 1, 1, tzinfo=UTC)).enqueue("ada")

    assert ((await job.status()).state, (await job.status()).record.spec.delay) == ("ready", 0)


async def test_a_call_waits_for_the_instant(app: App, send: Send):
    async with app.worker():
        assert await send.options(at=datetime(1990, 1, 1, tzinfo=UTC), wait=60).call("ada") == "ada"


async def test_at_and_delay_replace_each_other(clock: HandClock, send: Send):
    at = as_datetime(clock.now) + timedelta(days=1)

    delayed = await send.options(at=at).options(delay="1m").enqueue("ada")
    timed = await send.options(delay="1m").options(at=at).enqueue("ada")
    kept = await send.options(at=at).options(priority=3).enqueue("ada")
    neither = await send.options(at=at).options(at=None).enqueue("ada")

    assert [(await job.status()).record.spec.delay for job in (delayed, timed, kept, neither)] == [
        60_000,
        86_400_000,
        86_400_000,
        0,
    ]
    with pytest.raises(InvalidInput, match="options of task 'send': pass at or delay, not both"):
        send.options(at=at, delay=1)


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (datetime(2031, 1, 1), r"at=.*has no time zone; add one"),  # noqa: DTZ001
        ("2031-01-01", r"at takes a datetime with a time zone, not '2031-01-01'"),
        (1_700_000_000, r"at takes a datetime with a time zone, not 1700000000"),
    ],
)
def test_what_is_no_instant_is_refused(send: Send, at: Any, why: str):
    with pytest.raises(InvalidInput, match=why):
        send.options(at=at)


async def test_an_instant_too_far_away_is_refused(send: Send):
    with pytest.raises(InvalidInput, match="century"):
        await send.options(at=datetime(9999, 1, 1, tzinfo=UTC)).enqueue("ada")


async def test_a_spec_has_no_instant(send: Send):
    with pytest.raises(InvalidInput, match=r"a spec cannot have `at`.*Pass delay=…"):
        send.options(at=datetime(2031, 1, 1, tzinfo=UTC)).spec("ada")


async def test_a_pool_takes_an_instant(app: App, clock: HandClock):
    @app.pool("orders", lanes=2)
    async def book(who: str) -> None: ...

    at = as_datetime(clock.now) + timedelta(hours=1)
    jobs = [await book.options(at=at).enqueue("ada"), *await book.options(at=at).enqueue_many([("bob",)])]

    assert [(await job.status()).available_at for job in jobs] == [at, at]


def test_the_blocking_api_takes_an_instant(app: App, clock: HandClock, send: Send):
    at = as_datetime(clock.now) + timedelta(hours=1)
    timed = send.options(at=at).sync

    with app.sync:
        assert [job.status().available_at for job in (timed.enqueue("ada"), *timed.enqueue_many([("bob",)]))] == [
            at,
            at,
        ]


# ── items of enqueue_many with options of their own ───────────────────────────────────────────


async def test_items_of_an_enqueue_may_have_options_of_their_own(app: App, send: Send):
    jobs = await send.enqueue_many(
        [
            ("ada",),
            send.options(id="bob", priority=5).spec("bob"),
            {"to": "eve"},
            send.options(group="g").spec("zoe"),
        ],
        chunk=3,
    )

    found = [the(status) for status in await app.jobs.get(jobs)]
    assert [status.args["to"] for status in found] == ["ada", "bob", "eve", "zoe"]
    assert [(jobs[1].id, found[1].priority, found[3].group)] == [("bob", 5, "g")]
    again = await send.enqueue_many([send.options(id="bob").spec("bob")])
    assert again[0].is_duplicate


async def test_a_wrong_item_among_specs_is_named(app: App, send: Send):
    @app.task
    async def other() -> None: ...

    spec = send.spec("ada")
    with pytest.raises(PayloadInvalid, match="item 1: task 'send'"):
        await send.enqueue_many([spec, {"to": 7}])
    with pytest.raises(InvalidInput, match="item 1 is a spec of task 'other', not of 'send'"):
        await send.enqueue_many([spec, other.spec()])
    with pytest.raises(InvalidInput, match=r"cannot share one id; pass items that are specs"):
        await send.options(id="a").enqueue_many([("ada",)])
    assert [status async for status in app.jobs.find()] == []


async def test_the_lane_of_an_item_is_its_own(app: App):
    @app.pool("orders", lanes=8, partition_by=lambda who: who)
    async def book(who: str) -> None: ...

    jobs = await book.enqueue_many([("ada",), book.options(partition="zoe").spec("ada"), book.spec("ada")])

    assert [the(status).group for status in await app.jobs.get(jobs)] == ["ada", "zoe", "ada"]


def test_blocking_items_may_have_options_of_their_own(app: App, send: Send):
    with app.sync:
        jobs = send.sync.enqueue_many([send.options(id="a").spec("ada"), ("bob",)])

    assert jobs[0].id == "a"
