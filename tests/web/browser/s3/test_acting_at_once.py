"""Pages and workers on the same jobs at the same time; at night also over a network that loses requests and answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.domain.outcome import Failure
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.web.browser.s3.stage import Site, assert_sound, died

# Three pages, each with a driver of its own, act at random until they are told to stop.
ACTING = """
    const chance = (() => { let seed = SEED; return () => (seed = (seed * 16807) % 2147483647) / 2147483647; })();
    const plain = globalThis.fetch;
    globalThis.fetch = async (url, options) => {
      const drawn = chance();
      if (drawn < LOSS / 2) throw new TypeError("Failed to fetch");
      const reply = await plain(url, options);
      if (drawn < LOSS) throw new TypeError("Failed to fetch");
      return reply;
    };
    const { connect } = MODULE;
    const pick = (some) => some[Math.floor(chance() * some.length)];
    globalThis.stop = false;
    globalThis.tally = {};
    const page = async () => {
      const driver = await connect(CONFIG, KEYS);
      while (!globalThis.stop) {
        const verb = pick(["replay", "replay", "archive", "unarchive"]);
        let told;
        try {
          const answer = await driver.request("POST", `/api/jobs/${pick(IDS)}/${verb}`);
          told = `${verb} ${answer.answer}`;
        } catch (error) {
          if (!error.detail) throw error;
          told = `refused ${error.code}`;
        }
        tally[told] = (tally[told] ?? 0) + 1;
      }
    };
    globalThis.pages = Promise.all([page(), page(), page()]);
    globalThis.pages.catch(() => 0);
"""
SEEN = "return tally['replay replayed'] > 0 && tally['archive done'] > 0"
HOW = (Change.completed(b'"done"'), Change.bury(Failure("E", "m"), "explicit_fail"), Change.retry(None, delay=0))


async def at_work(store: ObjectStore, queues: list[str], rounds: int, chance: random.Random) -> int:
    """A worker that ends what it takes in every way."""
    runs = 0
    for _ in range(rounds):
        try:
            jobs = await store.claim(a_claim(queues=queues, limit=2))
            runs += len(jobs)
            await store.settle([(job.lease, chance.choice(HOW)) for job in jobs])
            if chance.random() < 0.2:
                await store.cancel([f"q{chance.randrange(8)}"])
        except StoreError:  # crowded: ask again
            continue
        await asyncio.sleep(0.01)
    return runs


LONG = [pytest.param(seed, seed % 2 * 0.08, 150, marks=pytest.mark.nightly) for seed in range(21, 27)]


@pytest.mark.parametrize(("seed", "loss", "rounds"), [(7, 0.0, 10), *LONG])
async def test_nothing_is_lost_and_nothing_happens_twice(site: Site, opened: Any, seed: int, loss: float, rounds: int):
    chance = random.Random(seed)
    ids = [f"q{n}" for n in range(8)]
    async with site.store() as store, site.store() as other:
        await store.control("queue", "counted", {"max_running": 4, "dead_cap": 100, "dead_overflow": "reject"})
        for n, job_id in enumerate(ids):
            await died(store, a_spec(id=job_id, queue="counted" if n % 2 else "plain", max_attempts=50, expires=3_600))
        page = opened()
        script = (
            ACTING.replace("MODULE", page.module("driver.js")).replace("SEED", str(seed)).replace("LOSS", str(loss))
        )
        script = script.replace("CONFIG", json.dumps(site.config)).replace("KEYS", json.dumps(site.keys))
        page.run(script.replace("IDS", json.dumps(ids)))

        runs = 0
        for _ in range(20):  # on a busy machine the pages may not have come to it yet
            runs += sum(
                await asyncio.gather(
                    at_work(store, ["counted", "plain"], rounds, chance),
                    at_work(other, ["plain", "counted"], rounds, chance),
                )
            )
            if await asyncio.to_thread(page.run, SEEN):
                break
        tally = Counter(await asyncio.to_thread(page.run, "globalThis.stop = true; await pages; return tally"))

        assert tally["replay replayed"] > 0 and tally["archive done"] > 0 and runs > 0, (tally, runs)
        assert set(tally) <= {f"{verb} {how}" for verb, how in ANSWERS} | {"refused crowded", *LOST}, tally
        replays = {job.id: job.replays for job in await store.get(ids) if job is not None}
        told = Counter(event.job for event in (await store.events(None, 100_000)).events if event.kind == "replayed")
        if not loss:
            assert sum(replays.values()) == tally["replay replayed"]  # nobody else has replayed anything
            assert told == Counter({job_id: count for job_id, count in replays.items() if count})
    async with site.store() as store:
        await store.sweep(full=True)  # what a page whose network failed has left
        assert_holds(await gather(store))
        jobs = [job for job in await store.get(ids) if job is not None]
        assert len(jobs) == 8
        for job in jobs:
            if job.state is State.RUNNING:
                await store.settle([(job.lease, Change.completed())])
    await assert_sound(site)


ANSWERS = [
    *(("replay", how) for how in ("replayed", "waiting", "running")),
    *((verb, how) for verb in ("archive", "unarchive") for how in ("done", "unchanged", "not_finished")),
]
LOST = ("refused unwritten", "refused unreachable", "refused locked")
