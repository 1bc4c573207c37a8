"""app.jobs: look at jobs and act on them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millrace import App, InvalidInput, Task
from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.instant import as_datetime
from millrace.domain.outcome import Failure
from millrace.domain.request import Archived, Cancelled, Deleted, Replayed
from millrace.store.memory.store import MemoryStore
from tests.narrowing import the
from tests.worker.by_hand import HandClock, settle, take

Send = Task[[str], Any]


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store(clock: HandClock):
    return MemoryStore(clock=clock)


@pytest.fixture
def app(store: MemoryStore):
    return App(store)


@pytest.fixture
def send(app: App):
    @app.task(queue="mail")
    async def send(to: str): ...

    return send


async def ids(found):
    return [job.id async for job in found]


async def test_one_is_asked_for_by_id_by_answer_or_by_record(app: App, send: Send):
    answer = await send.options(id="a").enqueue("ada")
    job = the(await app.jobs.get("a"))

    assert job == await app.jobs.get(answer) == await app.jobs.get(job)
    assert await app.jobs.get("nobody") is None
    assert await app.jobs.get(["nobody", answer]) == [None, job]
    assert await app.jobs.get([]) == []


async def test_cancel_says_what_it_found(app: App, store: MemoryStore, send: Send):
    """R-06, R-34: one answer for each case."""
    waiting, running = await send.enqueue("a"), await send.options(priority=1).enqueue("b")
    await take(store)

    assert await app.jobs.cancel([waiting, running, "nobody"]) == [
        Cancelled.CANCELLED,
        Cancelled.RUNNING,
        Cancelled.NOT_FOUND,
    ]
    assert await app.jobs.cancel(running, running="request") is Cancelled.REQUESTED
    assert await app.jobs.cancel(waiting) is Cancelled.CANCELLED
    with pytest.raises(InvalidInput, match='running must be "refuse" or "request"'):
        await app.jobs.cancel(running, running="kill")  # type: ignore[call-overload]


async def test_a_dead_job_can_be_replayed_and_a_finished_one_archived(app: App, store: MemoryStore, send: Send):
    job = await send.enqueue("ada")
    assert await app.jobs.archive(job) is Archived.NOT_FINISHED
    await settle(store, Change.bury(Failure("ValueError"), "explicit_fail"))

    assert await app.jobs.archive([job]) == [Archived.DONE]
    assert await ids(app.jobs.find()) == []
    assert await ids(app.jobs.find(state="archived")) == [job.id]
    assert await app.jobs.unarchive(job) is Archived.DONE
    assert await app.jobs.replay(job) is Replayed.REPLAYED
    assert await app.jobs.replay(job) is Replayed.WAITING
    assert [event.kind for event in await app.jobs.history(job)] == [
        Kind.ENQUEUED,
        Kind.CLAIMED,
        Kind.BURIED,
        Kind.ARCHIVED,
        Kind.UNARCHIVED,
        Kind.REPLAYED,
    ]


async def test_children_come_back_with_their_parent_unless_told_not_to(app: App, store: MemoryStore, send: Send):
    parent = await send.enqueue("ada")
    child = await send.options(after=parent).enqueue("bob")
    burial = Change.bury(Failure("ValueError"), "explicit_fail")
    await settle(store, burial)
    assert await app.jobs.replay(parent, children=False) is Replayed.REPLAYED
    assert the(await app.jobs.get(child)).state == "dead"
    await settle(store, burial)

    assert await app.jobs.replay([parent]) == [Replayed.REPLAYED]
    assert the(await app.jobs.get(child)).state == "blocked"


async def test_a_dead_letter_says_when_it_expires(app: App, store: MemoryStore, clock: HandClock, send: Send):
    job = await send.options(expires="1d").enqueue("ada")
    assert await app.jobs.expires_at(job) == as_datetime(clock() + 86_400_000)
    await settle(store, Change.bury(Failure("ValueError"), "explicit_fail"))

    assert await app.jobs.expires_at(job) == as_datetime(clock() + 7 * 86_400_000)
    await app.queue("mail").set(keep_dead="2d")
    assert await app.jobs.expires_at(job) == as_datetime(clock() + 2 * 86_400_000)
    await app.queue("mail").set(keep_dead=None)
    assert await app.jobs.expires_at(job) is None
    assert await app.jobs.expires_at("nobody") is None


async def test_a_finished_job_can_be_deleted_and_a_live_one_not(app: App, store: MemoryStore, send: Send):
    dead = await send.enqueue("ada")
    assert await app.jobs.delete(dead) is Deleted.NOT_FINISHED
    await settle(store, Change.bury(Failure("ValueError"), "explicit_fail"))
    live = await send.enqueue("bob")

    assert await app.jobs.delete([dead, live, "nobody"]) == [
        Deleted.DELETED,
        Deleted.NOT_FINISHED,
        Deleted.NOT_FOUND,
    ]
    assert await app.jobs.get(dead) is None
    assert [event.kind for event in await app.jobs.history(dead)][-1] is Kind.PRUNED


async def test_many_are_deleted_in_bounded_steps(app: App, store: MemoryStore, send: Send, monkeypatch):
    sizes = []
    delete = store.delete

    async def counted(ids):
        sizes.append(len(ids))
        return await delete(ids)

    monkeypatch.setattr(store, "delete", counted)
    answers = await app.jobs.delete([f"nobody-{n}" for n in range(1_100)])

    assert answers == [Deleted.NOT_FOUND] * 1_100
    assert sizes == [500, 500, 100]


async def test_purge_deletes_what_matches_and_nothing_else(app: App, store: MemoryStore, send: Send):
    for queue in ("mail", "mail", "other"):
        await send.options(queue=queue).enqueue("a")
        await settle(store, Change.bury(Failure("ValueError"), "explicit_fail"))
    done = await send.enqueue("b")
    await settle(store, Change.completed())
    live = await send.enqueue("c")

    assert await app.jobs.purge(state="dead", queue="mail", dry_run=True) == 2
    assert len(await ids(app.jobs.find(state="dead"))) == 3
    assert await app.jobs.purge(state="dead", queue="mail") == 2
    assert await app.jobs.purge(state="waiting", queue="mail") == 0
    assert await ids(app.jobs.find(queue="mail")) == [done.id, live.id]
    assert await app.jobs.purge(queue="mail") == 1
    assert len(await ids(app.jobs.find(state="dead"))) == 1
    with pytest.raises(InvalidInput, match="without a filter would delete every finished job"):
        await app.jobs.purge()


async def test_position_says_how_many_run_before(app: App, send: Send):
    first, second = await send.enqueue("a"), await send.enqueue("b")

    assert await app.jobs.position(first) == 0
    assert await app.jobs.position(second) == 1
    assert await app.jobs.position("nobody") is None


async def test_find_goes_on_from_page_to_page(app: App, send: Send):
    answers = await send.enqueue_many([(str(n),) for n in range(25)])
    expected = [answer.id for answer in answers]

    assert await ids(app.jobs.find(page=10)) == expected
    assert await ids(app.jobs.find(page=10, newest_first=True)) == expected[::-1]
    assert await ids(app.jobs.find(page=10, limit=12)) == expected[:12]
    assert await ids(app.jobs.find(limit=0)) == []


async def test_find_by_everything(app: App, clock: HandClock, send: Send):
    @app.task
    async def other(): ...

    start = datetime.fromtimestamp(clock.now / 1000, UTC)
    first = await send.options(group="g", key="k").enqueue("a")
    clock.advance(10)
    await other.enqueue()

    for filters in (
        {"queue": "mail"},
        {"task": "send"},
        {"group": "g"},
        {"queue": "mail", "key": "k"},
        {"enqueued_to": start + timedelta(seconds=5)},
    ):
        assert await ids(app.jobs.find(**filters)) == [first.id], filters
    assert await ids(app.jobs.find(enqueued_from=start + timedelta(seconds=5), task="send")) == []
    await app.jobs.cancel(first.id)
    assert await ids(app.jobs.find(finished_from=start + timedelta(seconds=10))) == [first.id]
    assert await ids(app.jobs.find(finished_to=start + timedelta(seconds=10))) == []
    with pytest.raises(InvalidInput, match="has no time zone"):
        await ids(app.jobs.find(enqueued_from=datetime(2024, 1, 1)))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("waiting", ["later", "now"]),
        ("pending", ["later", "now"]),
        ("queued", ["now"]),
        ("delayed", ["later"]),
        ("Scheduled", ["later"]),
        ("active", ["busy"]),
        ("processing", ["busy"]),
        ("failed", ["dead"]),
        ("dlq", ["dead"]),
    ],
)
async def test_find_knows_the_words_of_other_queues(app: App, store: MemoryStore, send: Send, word, found):
    await send.options(id="dead", priority=9).enqueue("a")
    await settle(store, Change.bury(Failure("ValueError"), "explicit_fail"))
    await send.options(id="busy", priority=9).enqueue("a")
    await take(store)
    await send.options(id="now").enqueue("a")
    await send.options(id="later", delay="1h").enqueue("a")

    assert sorted(await ids(app.jobs.find(state=word))) == found


async def test_a_state_that_does_not_exist_is_refused(app: App):
    with pytest.raises(InvalidInput, match="there is no state 'lost'. Known are: active, archived, blocked"):
        await ids(app.jobs.find(state="lost"))


async def test_count_gives_every_queue(app: App, send: Send):
    await send.enqueue("ada")

    [counts] = await app.jobs.count()
    assert (counts.queue, counts.waiting, counts.ready) == ("mail", 1, 1)
