"""The floor under the Redis store: redis-py and three short scripts doing the same writes, deciding nothing.

1,000 enqueues per call in bulk; 200 claims per call; 200 ends per call; records and events of the same size. What
Millrace needs beyond this is the price of its rules, its runtime and Python. The single enqueue is barer still: the
same bytes to a script that does nothing with them, which is the fastest that anything with a script can be.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from itertools import islice
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads

ENQUEUES, CLAIMS = 1_000, 200
HEAD = b"h" * 128  # what a stored spec holds beside its payload
RECORD, MOVED = "r" * 150, "e" * 130  # what a record and an event take

NOTHING = "return 1"
ENQUEUE = """
local jobs, specs, ids, ready, all, events = {}, {}, {}, {}, {}, {}
local seq = redis.call('INCRBY', KEYS[1] .. 'seq', #ARGV - 3) - (#ARGV - 3)
for i = 4, #ARGV do
  seq = seq + 1
  local n, name = 2 * (i - 3), string.format('%016.0f', seq)
  jobs[n - 1], jobs[n] = seq, ARGV[2]
  specs[n - 1], specs[n] = seq, ARGV[i]
  ids[n - 1], ids[n] = ARGV[1] .. name, seq
  ready[n - 1], ready[n] = seq, name
  all[n - 1], all[n] = seq, name
  events[i - 3] = ARGV[3]
end
redis.call('HSET', KEYS[1] .. 'job', unpack(jobs))
redis.call('HSET', KEYS[1] .. 'spec', unpack(specs))
redis.call('HSET', KEYS[1] .. 'id', unpack(ids))
redis.call('ZADD', KEYS[1] .. 'ready', unpack(ready))
redis.call('ZADD', KEYS[1] .. 'all', unpack(all))
redis.call('RPUSH', KEYS[1] .. 'feed', unpack(events))
return seq
"""
CLAIM = """
local names = redis.call('ZRANGE', KEYS[1] .. 'ready', 0, ARGV[1] - 1)
if #names == 0 then
  return {}
end
local seqs, jobs, leases, events = {}, {}, {}, {}
for i = 1, #names do
  seqs[i] = tonumber(names[i])
  jobs[2 * i - 1], jobs[2 * i] = seqs[i], ARGV[2]
  leases[2 * i - 1], leases[2 * i] = 1, names[i]
  events[i] = ARGV[3]
end
redis.call('HMGET', KEYS[1] .. 'job', unpack(seqs))
redis.call('ZREM', KEYS[1] .. 'ready', unpack(names))
redis.call('HSET', KEYS[1] .. 'job', unpack(jobs))
redis.call('ZADD', KEYS[1] .. 'lease', unpack(leases))
redis.call('RPUSH', KEYS[1] .. 'feed', unpack(events))
return { seqs, redis.call('HMGET', KEYS[1] .. 'spec', unpack(seqs)) }
"""
SETTLE = """
local seqs, jobs, results, names, all, finished, events = {}, {}, {}, {}, {}, {}, {}
for i = 3, #ARGV do
  local seq, n = tonumber(ARGV[i]), 2 * (i - 2)
  local name = string.format('%016.0f', seq)
  seqs[i - 2], names[i - 2], events[i - 2] = seq, name, ARGV[2]
  jobs[n - 1], jobs[n] = seq, ARGV[1]
  results[n - 1], results[n] = seq, 'null'
  all[n - 1], all[n] = seq + 2 ^ 50, name
  finished[n - 1], finished[n] = 1, name
end
redis.call('HMGET', KEYS[1] .. 'job', unpack(seqs))
redis.call('ZREM', KEYS[1] .. 'lease', unpack(names))
redis.call('HSET', KEYS[1] .. 'job', unpack(jobs))
redis.call('HSET', KEYS[1] .. 'result', unpack(results))
redis.call('ZADD', KEYS[1] .. 'results', unpack(finished))
redis.call('ZADD', KEYS[1] .. 'all', unpack(all))
redis.call('ZADD', KEYS[1] .. 'finished', unpack(finished))
redis.call('RPUSH', KEYS[1] .. 'feed', unpack(events))
return #seqs
"""


class Floor:
    durability = "in the server's memory"
    durable = False

    def __init__(self, path: Path) -> None:
        self.url, self.prefix = url_of(path), "{floor}:"

    def enqueue(self, jobs: int) -> float:
        return self._run(self._add(jobs, 1, NOTHING))

    def bulk(self, jobs: int) -> float:
        return self._run(self._add(jobs, ENQUEUES, ENQUEUE))

    def process(self, jobs: int) -> float:
        return self._run(self._process(jobs))

    def _run(self, work: Coroutine[Any, Any, float]) -> float:
        return asyncio.run(work)

    async def _add(self, jobs: int, batch: int, script: str) -> float:
        async with Redis.from_url(self.url, protocol=2) as client:
            sha = await client.script_load(script)
            began = time.perf_counter()
            specs = (HEAD + json.dumps(payload).encode() for payload in payloads(jobs))
            while part := list(islice(specs, batch)):
                await _call(client, sha, self.prefix, "0123456789abcdef", RECORD, MOVED, *part)
            return time.perf_counter() - began

    async def _process(self, jobs: int) -> float:
        async with Redis.from_url(self.url, protocol=2) as client:
            claim, settle = await client.script_load(CLAIM), await client.script_load(SETTLE)
            began = time.perf_counter()
            done = 0
            while found := await _call(client, claim, self.prefix, CLAIMS, RECORD, MOVED):
                seqs, specs = found
                await asyncio.gather(*(_noop(spec) for spec in specs))
                done += await _call(client, settle, self.prefix, RECORD, MOVED, *seqs)
            assert done == jobs
            return time.perf_counter() - began


async def _call(client: Redis, sha: Any, prefix: str, *words: Any) -> Any:
    return await client.evalsha(sha, 1, prefix, *words)


async def _noop(spec: bytes) -> None:
    json.loads(spec[len(HEAD) :])


if __name__ == "__main__":
    main({"floor": Floor})
