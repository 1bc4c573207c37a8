"""What a step on the hot path looks at depends on what it takes, not on how much there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_spec
from tests.servers.redis_server import url_for

TASKS, PRIORITIES, LIMIT = 4, 3, 20
COUNTED = ("hget", "hmget", "hset", "zadd", "zrem", "zrange", "zrangebyscore", "rpush", "smembers")


@pytest.fixture
async def store(tmp_path) -> AsyncIterator[RedisStore]:
    made = RedisStore(url_for(tmp_path))
    yield made
    await made.close()


def a_crowd(count: int, **more: object) -> list[Spec]:
    return [a_spec(task=f"task-{n % TASKS}", priority=n // TASKS % PRIORITIES, **more) for n in range(count)]


async def looked_at(store: RedisStore) -> tuple[int, dict[str, int]]:
    """Records that one claim reads, and commands that it and its settle take."""
    client, prefix = store._wire.connect(), store._wire.prefix
    await client.config_resetstat()
    async with client.monitor() as monitor:
        jobs = await store.claim(Claim(("default",), "worker", LIMIT))
        assert len(jobs) == LIMIT
        await store.settle([(job.lease, Change.completed()) for job in jobs])
        await client.echo("that is all")
        read = 0
        while (heard := await monitor.next_command())["command"] != "ECHO that is all":
            words = heard["command"].split(" ")
            if words[0] in ("HGET", "HMGET") and words[1] == f"{prefix}job":
                read += len(words) - 2
    calls = await client.info("commandstats")
    await client.aclose()
    return read, {name: calls.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in COUNTED}


@pytest.mark.parametrize("more", [{}, {"group": "g"}], ids=["without groups", "with a group"])
async def test_a_claim_reads_what_it_takes_however_many_wait(store: RedisStore, more: dict[str, object]):
    async def add(specs: Sequence[Spec]) -> None:
        await store.enqueue([*specs, *a_crowd(1, **more)])

    await add(a_crowd(TASKS * PRIORITIES * 4))
    few, commands_for_few = await looked_at(store)
    await add(a_crowd(TASKS * PRIORITIES * 100))
    many, commands_for_many = await looked_at(store)

    assert few <= 2 * LIMIT + 4  # once by the claim and once by the settle, and who is next in line
    assert many <= 2 * LIMIT + 4
    for name, count in commands_for_many.items():
        assert count <= commands_for_few[name] + TASKS * PRIORITIES, name
