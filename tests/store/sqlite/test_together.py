"""Calls that share a transaction give the same answers as one after the other, on the memory store.

The model test asks for one thing at a time, so it never sees two calls share what is kept at hand. Here random calls
of every kind go in together; answers, records, counts and the whole feed are compared.
"""

import asyncio
import random
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import QueueError
from millrace.domain.event import Event
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim, Extension, Query, Reclaim
from millrace.store.memory import MemoryStore
from millrace.store.sqlite import SqliteStore
from millrace.testing.clock import VirtualClock

QUEUES = ("q", "r", "pool")


class Script:
    """Draws calls; `leases` are those of earlier claims, alike on both stores because their salts are."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.leases = []
        self.ids = ["nobody"]

    def draw(self):
        kinds = (self.enqueue,) * 5 + (self.claim,) * 4 + (self.settle,) * 4
        return self.random.choice((*kinds, self.extend, self.reclaim, self.cancel, self.replay, self.upkeep))()

    def enqueue(self):
        specs = [self.spec() for _ in range(self.random.choice((1, 1, 3, 20)))]
        return lambda store: store.enqueue(specs)

    def spec(self):
        pick = self.random
        fields: dict[str, Any] = {
            "id": f"j{pick.randrange(400)}",
            "task": pick.choice("ab"),
            "queue": pick.choice(QUEUES),
        }
        self.ids.append(fields["id"])
        if pick.random() < 0.3:
            fields["group"] = f"g{pick.randrange(4)}"
        if pick.random() < 0.2:
            fields |= {"key": f"k{pick.randrange(6)}", "on_hit": pick.choice(("keep", "replace", "raise"))}
        if pick.random() < 0.2:
            fields |= {"after": (pick.choice(self.ids),), "on_dependency": pick.choice(("bury", "run", "wait"))}
        fields |= {"priority": pick.choice((0, 0, 0, 3)), "delay": pick.choice((0, 0, 0, 2_000))}
        fields["expires"] = pick.choice((None, None, None, 5_000))
        return Spec(token=f"t{pick.random()}", payload=b"%d" % pick.randrange(5), **fields)

    def claim(self):
        queues = tuple(self.random.sample(QUEUES, self.random.choice((1, 3))))
        request = Claim(queues, "w", self.random.choice((1, 5, 30)), self.random.choice((None, frozenset("a"))))
        return lambda store: store.claim(request)

    def settle(self):
        items = [(lease, self.change()) for lease in self.some(self.leases)]
        return lambda store: store.settle(items)

    def change(self):
        error = Failure("ValueError", "no")
        jobs = (self.spec(),) if self.random.random() < 0.2 else ()
        return self.random.choice(
            (
                Change.completed(b"done", jobs=jobs),
                Change.completed(None),
                Change.retry(error, delay=self.random.choice((0, 1_000))),
                Change.snooze(500),
                Change.release(),
                Change.bury(error, "explicit_fail"),
            )
        )

    def extend(self):
        extensions = [Extension(lease, 9_000, b"half") for lease in self.some(self.leases)]
        return lambda store: store.extend(extensions)

    def reclaim(self):
        return lambda store: store.reclaim(Reclaim("reaper", 5))

    def cancel(self):
        ids, running = self.some(self.ids), self.random.choice(("refuse", "request"))
        return lambda store: store.cancel(ids, running)

    def replay(self):
        ids, archive = self.some(self.ids), self.random.random() < 0.5
        return (lambda store: store.archive(ids)) if archive else (lambda store: store.replay(ids))

    def upkeep(self):
        queue, roll = self.random.choice(QUEUES), self.random.random()
        if roll < 0.2:
            return lambda store: store.drain(queue, 3)
        if roll < 0.3:
            return lambda store: store.obliterate(queue, 5)
        if roll < 0.5:
            changes = {"max_running": self.random.choice((None, 3)), "paused": self.random.random() < 0.2}
            return lambda store: store.control("queue", queue, changes)
        if roll < 0.6:
            limits = {"max_running": self.random.choice((None, 4))}
            return lambda store: store.control("task", "a", limits)
        return lambda store: store.maintain(20)

    def some(self, things):
        return [self.random.choice(things) for _ in range(self.random.randrange(1, 6))] if things else []


async def answer(call):
    try:
        return await call
    except QueueError as error:
        return type(error), str(error)


async def everything(store, ids):
    events: list[Event] = []
    cursor = None
    while (page := await store.events(cursor, 1_000)).events:
        events, cursor = [*events, *page.events], page.cursor
    jobs = (await store.find(Query(archived=None, limit=10_000))).jobs
    histories = [await store.history(job_id) for job_id in sorted(set(ids))[:50]]
    return {"jobs": jobs, "counts": await store.count(), "events": events, "histories": histories}


@pytest.mark.parametrize("seed", range(8))
async def test_calls_that_share_a_commit_answer_as_if_alone(tmp_path, seed):
    clock, script = VirtualClock(), Script(seed)
    memory = MemoryStore(clock=clock, salt="s")
    sqlite = SqliteStore(tmp_path / "jobs.db", clock=clock, salt="s")
    await sqlite.connect()
    for store in (memory, sqlite):
        await store.control("queue", "pool", {"lanes": 3})
        await store.control("queue", "r", {"fair_share": 0.5, "max_depth": 40})

    for _ in range(40):
        calls = [script.draw() for _ in range(script.random.randrange(1, 12))]
        expected = [await answer(call(memory)) for call in calls]
        got = await asyncio.gather(*(answer(call(sqlite)) for call in calls))
        assert got == expected
        for jobs in expected:
            if isinstance(jobs, list):
                script.leases += [job.lease for job in jobs if hasattr(job, "lease_id")]
        clock.advance(script.random.choice((0, 0.5, 3, 31)))

    assert await everything(sqlite, script.ids) == await everything(memory, script.ids)
    assert await sqlite.check() == []
    await sqlite.close()
