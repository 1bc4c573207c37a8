"""The sweep, one kind of damage at a time: what was broken by hand is put right and counted by name (O-07, BO-01)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.request import Query
from millrace.store.object.engine import objects
from millrace.store.object.engine.objects import Pending, opened, raw_value, sealed, value_bytes
from millrace.store.object.engine.values import FeedPart, JobValue, QueueValue, TasksValue, decode, encode
from millrace.store.object.keys import TASKS, Layout
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.store.object.sweep.sweeper import SWEPT
from millrace.store.protocol import Sweeping
from millrace.testing.builders import a_burial, a_claim, a_retry_change, a_spec, hours, minutes, seconds
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather
from tests.narrowing import checked_cast, the

OPTIONS = ObjectOptions(
    look_every=0, feed_delay=0, lock_patience=1, listing_reuse=0, inline_limit=1_000, index_mode="index-only"
)
DAY = 24 * 60 * 60
LARGE = b'"' + b"x" * 2_000 + b'"'


@dataclass
class Yard:
    store: ObjectStore
    blobs: MemoryBlobs
    clock: VirtualClock

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.blobs._keys if key.startswith(prefix)]

    async def lose(self, prefix: str) -> list[str]:
        keys = self.keys(prefix)
        assert keys, f"there is nothing under {prefix} to lose"
        await self.blobs.delete(keys)
        return keys

    async def swept(self, **how) -> dict[str, int]:
        """After a while, as a monitor would; nothing is left to repair then, and the invariants hold."""
        self.clock.advance(20)
        done = (await self.store.sweep(**{"full": True, **how})).repairs
        assert_holds(await gather(self.store, since=START))
        assert (await self.store.sweep(full=True)).repairs == {}
        return done

    async def record(self, job_id: str) -> JobValue:
        [seen] = await self.store.engine.objects.read([self.store.engine.layout.job(job_id)])
        return decode(seen.value or b"", JobValue)


@pytest.fixture
async def yard() -> Yard:
    clock = VirtualClock()
    blobs = MemoryBlobs(clock=clock)
    store = ObjectStore(lambda: blobs, clock=clock, options=OPTIONS)
    await store.connect()
    return Yard(store, blobs, clock)


async def test_a_store_in_order_is_left_as_it_is(yard):
    await yard.store.enqueue([a_spec(), a_spec(group="g"), a_spec(key="k", delay=5)])
    before = dict(yard.blobs._lives)

    assert await yard.swept() == {}
    assert {key for key in yard.blobs._lives if key not in before} == {SWEPT}


async def test_a_store_of_objects_says_that_it_wants_to_be_swept(yard):
    assert isinstance(yard.store, Sweeping)
    assert yard.store.monitoring.sweep_interval == 300


# ── index keys ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("prefix", "prepare"),
    [
        ("ready/", "enqueue"),
        ("held/", "enqueue"),
        ("leases/", "claim"),
        ("done/", "complete"),
        ("deps/", "enqueue"),
        ("gone/", "prune"),
    ],
)
async def test_a_key_that_got_lost_is_put_back(yard, prefix, prepare):
    await yard.store.enqueue([a_spec(id="a"), a_spec(after=("a",)), a_spec(group="g"), a_spec(group="g")])
    if prepare in ("claim", "complete", "prune"):
        jobs = await yard.store.claim(a_claim(2))
        if prepare != "claim":
            await yard.store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
        if prepare == "prune":
            await yard.store.control("queue", "default", {"keep_completed": 1})
            yard.clock.advance(1)
            await yard.store.maintain()
    lost = await yard.lose(prefix)

    assert await yard.swept() == {"index_restored": len(lost)}
    assert yard.keys(prefix) == lost


async def test_a_job_whose_key_got_lost_is_claimed_after_the_sweep(yard):
    await yard.store.enqueue([a_spec(id="hidden")])
    await yard.lose("ready/")
    assert await yard.store.claim(a_claim()) == []

    await yard.swept()

    assert [job.id for job in await yard.store.claim(a_claim())] == ["hidden"]


@pytest.mark.parametrize("what", ["ready", "held", "leases", "done", "gone", "deps"])
async def test_a_key_that_says_what_is_not_so_goes(yard, what):
    """BO-03: names are used once, so deleting one is exact."""
    await yard.store.enqueue([a_spec(id="a"), a_spec(id="b", after=("a",))])
    name, minute = "a", "28333333"
    leaf = f"1700000000000.1782579200000000000.99-abcdef.-.work.{name}"
    wrong = {
        "ready": f"ready/{Layout().shard_of(name)}/default/f/{minute}/{leaf}",
        "held": f"held/default/-/f/{minute}/1782579200000000000.1700000000000.99-abcdef.-.work.{name}",
        "leases": f"leases/{Layout().shard_of(name)}/{minute}/1700000000000.1782579200000000000.9-a.-.default.work.a",
        "done": f"done/default/c/{minute}/{leaf}",
        "gone": f"gone/{minute}/1700000000000.1782579200000000000.{name}",
        "deps": f"deps/{name}/1782579200000000000.b",
    }[what]
    await yard.store.blobs.put(wrong, b"")

    assert await yard.swept() == {"index_removed": 1}
    assert wrong not in yard.blobs._keys


async def test_a_young_key_may_be_that_of_somebody_who_is_just_writing(yard):
    await yard.store.enqueue([a_spec(id="a")])
    key = yard.keys("ready/")[0].replace(".-.", ".h.")
    await yard.store.blobs.put(key, b"")
    yard.clock.advance(9)

    assert (await yard.store.sweep(full=True)).repairs == {}
    assert key in yard.blobs._keys


async def test_a_queue_that_nobody_noted_is_counted_again(yard):
    await yard.store.enqueue([a_spec(queue="mail")])
    await yard.lose("control/queues/")
    other = ObjectStore(lambda: yard.blobs, clock=yard.clock, options=OPTIONS, place="another")
    await other.connect()

    yard.clock.advance(20)
    swept = await other.sweep(full=True)

    assert swept.repairs == {"queues_restored": 1}
    assert [(row.queue, row.waiting) for row in await other.count()] == [("mail", 1)]


# ── transactions ──────────────────────────────────────────────────────────────────────────────


async def test_an_undecided_transaction_is_given_up(yard):
    await yard.store.enqueue([a_spec(id="a"), a_spec(id="b")])
    key = yard.store.engine.layout.job("a")
    blob = await yard.store.blobs.get(key)
    assert blob is not None
    value = value_bytes(opened(blob.body).value)
    pending = Pending("tx", "lines/default/g-nobody.json", raw_value(b'{"rev":9}'))
    await yard.store.blobs.swap(key, sealed(value, pending=pending), blob.tag)

    assert await yard.swept() == {"abandoned": 1}
    assert opened((await yard.store.blobs.get(key)).body).pending is None
    assert len(await yard.store.claim(a_claim(9))) == 2


async def test_one_that_is_young_is_left_to_its_owner(yard):
    await yard.store.enqueue([a_spec(id="a")])
    key = yard.store.engine.layout.job("a")
    blob = await yard.store.blobs.get(key)
    pending = Pending("tx", "lines/default/g-nobody.json", raw_value(b'{"rev":9}'))
    await yard.store.blobs.swap(key, sealed(value_bytes(opened(blob.body).value), pending=pending), blob.tag)
    yard.clock.advance(9)

    assert (await yard.store.sweep(full=True)).repairs == {}


async def test_a_batch_is_carried_through_and_its_manifest_goes(yard):
    await yard.store.enqueue([a_spec() for _ in range(6)])
    [manifest] = yard.keys("batches/")
    assert all(opened(blob.body).pending for blob in await yard.store.blobs.get_many(yard.keys("tasks/")))

    assert await yard.swept() == {"carried_through": 6, "manifests_removed": 1}
    assert manifest not in yard.blobs._keys
    assert len(await yard.store.claim(a_claim(9))) == 6


async def test_the_stub_of_a_batch_that_was_given_up_stays_for_a_day(yard):
    """It is what makes the commit of an owner fail who was asleep since."""
    stub = Layout.batch(yard.clock() << 20, "tx")
    await yard.store.blobs.create(stub, sealed(None))

    assert await yard.swept() == {}
    assert stub in yard.blobs._keys
    yard.clock.advance(DAY)
    assert await yard.swept() == {"manifests_removed": 1}


# ── dependents, triggers, events ──────────────────────────────────────────────────────────────


async def test_who_waits_for_what_has_ended_is_told(yard):
    await yard.store.enqueue([a_spec(id="parent"), a_spec(id="child", after=("parent",))])
    [job] = await yard.store.claim(a_claim())

    async def nobody(run):
        return None

    told, yard.store.engine.dependents.update = yard.store.engine.dependents.update, nobody
    await yard.store.settle([(job.lease, Change.completed(b"1"))])
    yard.store.engine.dependents.update = told
    assert await yard.store.claim(a_claim()) == []

    assert await yard.swept() == {"dependents_updated": 1}
    assert [job.id for job in await yard.store.claim(a_claim())] == ["child"]


@pytest.mark.parametrize("family", ["due", "upkeep"])
async def test_a_trigger_that_got_lost_is_written_anew_once(yard, family):
    await yard.store.control("queue", "default", {"auto_retries": 1, "auto_retry_delay": minutes(5)})
    await yard.store.enqueue([a_spec(id="later", group="g", delay=300), a_spec(id="dies")])
    [job] = await yard.store.claim(a_claim())
    await yard.store.settle([(job.lease, a_burial())])
    await yard.lose(f"{family}/")

    assert await yard.swept() == {"triggers_restored": 1}

    yard.clock.advance(600)
    await yard.store.maintain()
    claimed = {job.id for job in await yard.store.claim(a_claim(9))}
    assert claimed == {"later", "dies"}


async def test_events_that_never_reached_the_feed_are_told_to_those_who_read_on(yard):
    await yard.store.enqueue([a_spec(id="a")])
    first = await yard.store.events(None, 100)
    [job] = await yard.store.claim(a_claim(lease=100))
    await yard.store.settle([(job.lease, Change.completed(b"1"))])
    lost = yard.keys("feed/")[1:]
    await yard.blobs.delete(lost)

    yard.clock.advance(20)
    assert (await yard.store.sweep(full=True)).repairs == {"events_restored": 2}
    assert [event.kind for event in (await yard.store.events(first.cursor, 100)).events] == ["claimed", "completed"]
    assert len((await yard.store.events(None, 100)).events) == 3
    assert "events_restored" not in (await yard.swept())


async def test_where_no_reader_can_have_been_they_are_filed_in_their_place(yard):
    options = msgspec.structs.replace(OPTIONS, feed_delay=60_000)
    store = ObjectStore(lambda: yard.blobs, clock=yard.clock, options=options, place="with a delay")
    await store.connect()
    await store.enqueue([a_spec(id="a"), a_spec(id="b")])
    [part] = yard.keys("feed/")
    whole = decode(the(await store.blobs.get(part)).body, FeedPart)
    await store.blobs.put(part, encode(FeedPart(whole.events[:1])))

    yard.clock.advance(20)
    assert (await store.sweep(full=True)).repairs["events_restored"] == 1
    assert decode(the(await store.blobs.get(part)).body, FeedPart) == whole


async def test_what_the_feed_has_forgotten_the_records_of_forgotten_jobs_need_not_remember(yard):
    await yard.store.control("store", "", {"keep_events": hours(1)})
    await yard.store.control("queue", "default", {"keep_completed": 0})
    await yard.store.enqueue([a_spec(id="a")])
    [job] = await yard.store.claim(a_claim())
    await yard.store.settle([(job.lease, Change.completed(b"1"))])
    yard.clock.advance(2 * 3600)
    await yard.store.maintain()
    await yard.store.maintain()

    assert (await yard.swept())["events_dropped"] == 4
    yard.clock.advance(DAY + 1)
    assert (await yard.swept())["stubs_removed"] == 1
    assert yard.keys("tasks/") == []


async def test_a_long_history_is_put_aside_and_still_told_in_full(yard):
    await yard.store.enqueue([a_spec(id="restless", payload=LARGE), a_spec(id="calm")])
    for _ in range(150):
        [job] = await yard.store.claim(a_claim(1, tasks=["work"]))
        await yard.store.settle([(job.lease, Change.snooze(0))])
        if job.id == "calm":
            await yard.store.cancel(["calm"])
    history = await yard.store.history("restless")
    assert len(history) > 250

    assert await yard.swept() == {}
    value = await yard.record("restless")
    assert (len(value.events), len(value.spilled)) == (50, 1)
    assert await yard.store.history("restless") == history
    yard.clock.advance(2 * 3600)
    assert await yard.swept() == {}  # what is put aside is nobody's orphan
    assert await yard.store.history("restless") == history

    await yard.store.control("store", "", {"keep_events": hours(1)})
    await yard.store.cancel(["restless"])
    for _ in range(3):
        await yard.store.maintain()
    assert (await yard.swept())["data_removed"] == 1
    assert (await yard.record("restless")).spilled == ()
    assert [event.kind for event in await yard.store.history("restless")] == ["cancelled"]


async def test_the_line_of_a_group_that_is_done_is_removed_within_two_days(yard):
    await yard.store.enqueue([a_spec(group="g")])
    [job] = await yard.store.claim(a_claim())
    await yard.store.settle([(job.lease, Change.completed(b"1"))])
    [line] = yard.keys("lines/")
    assert opened((await yard.store.blobs.get(line)).body).commits

    for _ in range(2 * 288):
        yard.clock.advance(300)
        await yard.store.sweep()

    assert yard.keys("lines/") == []
    await yard.store.enqueue([a_spec(group="g")])
    assert len(await yard.store.claim(a_claim())) == 1


async def test_a_stub_is_not_removed_from_under_one_who_enqueues(yard):
    """Removal names the tag, so whoever was faster keeps his job; without such a removal stubs stay."""
    key = yard.store.engine.layout.job("a")
    await yard.store.blobs.create(key, sealed(None))
    yard.clock.advance(DAY + 1)
    remove = yard.blobs.remove

    async def too_late(key, tag):
        await yard.store.enqueue([a_spec(id="a")])
        return await remove(key, tag)

    yard.blobs.remove = too_late
    yard.clock.advance(20)
    swept = await yard.store.sweep(full=True)

    assert "stubs_removed" not in swept.repairs
    assert [job.id for job in await yard.store.claim(a_claim())] == ["a"]


# ── counters, keys, data ──────────────────────────────────────────────────────────────────────


async def test_counters_that_are_off_are_counted_anew(yard):
    await yard.store.control("queue", "default", {"max_running": 2})
    await yard.store.control("task", "work", {"max_running": 2})
    await yard.store.enqueue([a_spec() for _ in range(3)])
    await yard.store.claim(a_claim(1, lease=1_000))
    for key, kind in ((yard.store.engine.layout.queue("default"), QueueValue), (TASKS, TasksValue)):
        blob = await yard.store.blobs.get(key)
        value = decode(the(value_bytes(opened(blob.body).value)), kind)
        row = the(value.row) if isinstance(value, QueueValue) else checked_cast(TasksValue, value).rows["work"]
        row.running = 2
        await yard.store.blobs.swap(key, sealed(encode(value)), blob.tag)
    assert await yard.store.claim(a_claim()) == []

    assert await yard.swept() == {"counters_corrected": 2}
    assert len(await yard.store.claim(a_claim(9))) == 1


async def test_amid_the_traffic_only_those_who_run_are_counted_anew(yard):
    """The ready key of a step may be yet to come; its lease key comes before it."""
    await yard.store.control("queue", "default", {"max_running": 2})
    await yard.store.enqueue([a_spec() for _ in range(3)])
    await yard.store.claim(a_claim(1, lease=1_000))
    key = yard.store.engine.layout.queue("default")
    blob = await yard.store.blobs.get(key)
    value = decode(the(value_bytes(opened(blob.body).value)), QueueValue)
    row = the(value.row)
    row.running, row.waiting = 2, 7
    await yard.store.blobs.swap(key, sealed(encode(value)), blob.tag)

    assert (await yard.store.sweep(full=True)).repairs == {"counters_corrected": 1}
    [seen] = await yard.store.engine.objects.read([key])
    row = the(decode(seen.value, QueueValue).row)
    assert (row.running, row.waiting) == (1, 7)
    assert (await yard.swept())["counters_corrected"] == 1  # a while later, the rest
    [seen] = await yard.store.engine.objects.read([key])
    assert the(decode(seen.value, QueueValue).row).waiting == 2


async def test_keys_without_an_owner_and_windows_that_are_over_are_freed(yard):
    await yard.store.enqueue([a_spec(key="w", scope="window", window=5), a_spec(id="o", key="live")])
    await yard.store.control("queue", "default", {"keep_completed": 0})
    jobs = await yard.store.claim(a_claim(2))
    assert await yard.swept() == {"keys_freed": 1}  # the window

    await yard.store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    assert await yard.swept() == {"keys_freed": 1}


async def test_the_key_of_an_owner_who_may_be_brought_back_stays(yard):
    await yard.store.enqueue([a_spec(id="o", key="k")])
    [job] = await yard.store.claim(a_claim())
    await yard.store.settle([(job.lease, a_burial())])
    assert await yard.swept() == {}

    await yard.store.replay(["o"])
    [answer] = await yard.store.enqueue([a_spec(key="k")])
    assert answer.status != "queued"


async def test_large_data_that_no_job_names_goes_after_an_hour(yard):
    await yard.store.enqueue([a_spec(id="a", payload=LARGE)])
    [kept] = yard.keys("data/")
    orphan = yard.store.engine.layout.data("a", "output", "0123")
    stranger = yard.store.engine.layout.data("nobody", "input", "0123")
    await yard.store.blobs.put_many({orphan: LARGE, stranger: LARGE})

    assert await yard.swept() == {}
    yard.clock.advance(3600)
    assert await yard.swept() == {"data_removed": 2}
    assert yard.keys("data/") == [kept]
    assert [job.payload for job in await yard.store.claim(a_claim())] == [LARGE]


# ── how much it does ──────────────────────────────────────────────────────────────────────────


async def test_a_sweep_is_bounded_and_the_next_goes_on(yard):
    for _ in range(9):
        await yard.store.enqueue([a_spec() for _ in range(50)])
    await yard.lose("ready/")
    yard.clock.advance(20)
    pieces = [await yard.store.sweep(limit=100)]
    while pieces[-1].more:
        pieces.append(await yard.store.sweep(limit=100))

    assert len(pieces) > 4
    assert max(piece.looked_at for piece in pieces) <= 100 + 200  # what is read together is not cut in the middle
    assert sum(piece.index_restored for piece in pieces) == 450
    total = pieces[0]
    for piece in pieces[1:]:
        total = total.plus(piece)
    assert (total.index_restored, total.more) == (450, False)


async def test_what_has_not_changed_since_the_last_round_is_not_read_again(yard):
    await yard.store.enqueue([a_spec() for _ in range(300)])
    for _ in range(2):  # the first one writes them all, since they came in a batch
        yard.clock.advance(120)
        await yard.store.sweep(full=True)
    other = ObjectStore(lambda: yard.blobs, clock=yard.clock, options=OPTIONS, place="another process")
    await other.connect()
    yard.clock.advance(300)
    await yard.store.enqueue([a_spec(id="new")])
    yard.clock.advance(20)
    before = yard.blobs.requests.copy()

    swept = await other.sweep()

    assert not swept.more
    assert swept.looked_at < 30
    assert yard.blobs.requests["get"] - before["get"] < 60
    assert yard.blobs.requests["list"] - before["list"] < 40


async def test_a_change_after_the_last_round_is_looked_at(yard):
    await yard.store.enqueue([a_spec() for _ in range(5)])
    yard.clock.advance(120)
    await yard.store.sweep(full=True)
    yard.clock.advance(300)
    [job] = await yard.store.claim(a_claim())
    await yard.store.settle([(job.lease, a_retry_change())])
    await yard.blobs.delete([(await yard.record(job.id)).index_key])
    yard.clock.advance(20)

    assert (await yard.store.sweep()).repairs == {"index_restored": 1}


async def test_after_the_clock_was_set_back_the_sweep_looks_at_what_came_since(yard):
    """Its dates are earlier than those that the last round saw."""
    await yard.store.enqueue([a_spec() for _ in range(5)])
    yard.clock.advance(120)
    await yard.store.sweep(full=True)
    yard.clock.advance(-3 * 3600)
    for _ in range(2):
        await yard.store.enqueue([a_spec() for _ in range(3)])
        await yard.lose("ready/")
        yard.clock.advance(20)
        assert (await yard.store.sweep()).index_restored >= 3
        yard.clock.advance(120)


async def test_what_got_lost_without_a_change_is_found_within_a_day(yard):
    await yard.store.enqueue([a_spec() for _ in range(20)])
    yard.clock.advance(120)
    await yard.store.sweep(full=True)
    yard.clock.advance(seconds(300) / 1000)
    await yard.lose("ready/")

    restored = 0
    for _ in range(288):
        yard.clock.advance(300)
        restored += (await yard.store.sweep()).index_restored
    assert restored == 20
    assert len((await yard.store.find(Query(limit=100))).jobs) == 20


async def test_who_slept_for_hours_amid_a_transaction_does_not_commit_it(yard, monkeypatch):
    """The stub that would have made it fail may be gone by then."""
    times = iter([0.0, 4_000.0])
    hours_later = SimpleNamespace(monotonic=time.monotonic, time=lambda: next(times, 4_000.0))
    monkeypatch.setattr(objects, "time", hours_later)
    [answer] = await yard.store.enqueue([a_spec(id="a", group="g")])

    assert answer.status == "queued"  # by the second attempt
    assert yard.store.engine.tally["lost"] == 1
    assert len(await yard.store.claim(a_claim(9))) == 1


# ── jobs that come back with their parent ─────────────────────────────────────────────────────


async def a_parent_that_died(yard: Yard, children: int) -> None:
    await yard.store.enqueue([a_spec(id="p"), *(a_spec(id=f"c{n}", after=("p",)) for n in range(children))])
    await yard.store.enqueue([a_spec(id="grandchild", after=("c0",))])
    [parent] = await yard.store.claim(a_claim())
    await yard.store.settle([(parent.lease, a_burial("explicit_fail"))])


async def states(yard: Yard, *ids: str) -> list[str]:
    return [job.state.value for job in await yard.store.get(ids) if job is not None]


@pytest.mark.parametrize("meanwhile", ["nothing", "completed"])
async def test_children_that_a_crash_left_dead_come_back_with_the_sweep(yard, monkeypatch, meanwhile):
    """The process that replayed their parent died before it could bring them back; the parent may have run by then."""
    await a_parent_that_died(yard, 3)

    async def crash(runs):
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(yard.store.engine.dependents, "recall", crash)
        with pytest.raises(ConnectionError):
            await yard.store.replay(["p"])
    assert await states(yard, "p", "c0", "c1", "c2", "grandchild") == ["waiting", "dead", "dead", "dead", "dead"]
    if meanwhile == "completed":
        [parent] = await yard.store.claim(a_claim())
        await yard.store.settle([(parent.lease, Change.completed())])
    done = await yard.swept()

    assert done["dependents_updated"] >= 3
    assert await states(yard, "c0", "c1", "c2", "grandchild") == ["waiting"] * 4
    grandchild = (await yard.store.get(["grandchild"]))[0]
    assert grandchild is not None and grandchild.blocked == 1


async def test_children_that_were_to_stay_dead_are_not_brought_back_by_the_sweep(yard):
    await a_parent_that_died(yard, 2)
    await yard.store.replay(["p"], children=False)

    assert await yard.swept() == {}
    assert await states(yard, "c0", "c1") == ["dead"] * 2
