"""The floor under the PostgreSQL store: asyncpg and three statements writing the same rows into the same tables.

2,000 enqueues per statement in bulk; 200 claims and 200 ends per statement; each statement a commit that waits for the
disk. It decides nothing and checks nothing. What Millrace needs beyond this is the price of its rules, its runtime and
Python.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads
from millrace.store.postgres.migrate import migrate

ENQUEUES, CLAIMS = 2_000, 200  # per call, as Millrace with 200 slots
LOOPS = 2  # that claim and end: while one waits for the disk, the other works
HEAD = b"h" * 128  # what a stored spec holds beside its payload
PLANS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}

ENQUEUE = """
WITH batch AS (SELECT nextval('millrace.event_id') AS id),
item AS (
    SELECT nextval('millrace.job_seq') AS seq, i.id, i.spec FROM unnest($1::text[], $2::bytea[]) AS i (id, spec)
), new AS (
    INSERT INTO millrace.job (seq, id, combo, queue, enqueued_at, available_at, newest, spec)
    SELECT item.seq, item.id, 1, 1, $3::bigint, $3, batch.id, item.spec FROM item, batch RETURNING seq
), opened AS (
    INSERT INTO millrace.ready (combo, available_at, seq) SELECT 1, $3, seq FROM new
), told AS (
    INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids)
    SELECT batch.id, $3, (SELECT array_agg(seq) FROM new), '{0}', '{1}', '{1}', '{1}', '{0}', '{0}', '{0}', '{0}', $1
    FROM batch
), sent AS (
    INSERT INTO millrace.outbox (event, size, at) SELECT id, cardinality($1), $3 FROM batch
)
INSERT INTO millrace.tally (queue, waiting, live) VALUES (1, cardinality($1), cardinality($1))
"""
CLAIM = """
WITH batch AS (SELECT nextval('millrace.event_id') AS id),
taken AS (
    DELETE FROM millrace.ready WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM millrace.ready WHERE combo = 1 AND available_at <= $2::bigint
        ORDER BY available_at, seq LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING seq
), item AS MATERIALIZED (
    SELECT job.seq, job.newest, job.id, job.spec, $3::text || '.' || job.seq AS lease_id, batch.id AS batch
    FROM taken JOIN millrace.job ON job.seq = taken.seq, batch
), leased AS (
    INSERT INTO millrace.lease (seq, id, worker, until, started_at, attempt, events, newest, span, combo)
    SELECT seq, lease_id, 'floor', $2 + 30000, $2, 1, 2, batch, 30000, 1 FROM item
), told AS (
    INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids,
                                workers, leases)
    SELECT min(batch), $2, array_agg(seq), array_agg(newest), '{1}', '{1}', '{2}', '{1}', '{0}', '{2}', '{1}',
           array_agg(id), '{floor}', array_agg(lease_id)
    FROM item HAVING count(*) > 0
), sent AS (
    INSERT INTO millrace.outbox (event, size, at) SELECT min(batch), count(*), $2 FROM item HAVING count(*) > 0
), counted AS (
    INSERT INTO millrace.tally (queue, waiting, running, taken)
    SELECT 1, -count(*), count(*), count(*) FROM item HAVING count(*) > 0
)
SELECT seq, lease_id, spec FROM item
"""
SETTLE = """
WITH batch AS (SELECT nextval('millrace.event_id') AS id),
ended AS (
    UPDATE millrace.job AS j
    SET state = 2, finished_at = $4::bigint, started_at = $4, attempt = 1, events = 3, newest = batch.id,
        result = i.result, result_until = $4 + 3600000
    FROM unnest($1::bigint[], $2::text[], $3::bytea[]) AS i (seq, lease, result), batch
    WHERE j.seq = i.seq RETURNING j.seq, j.id, i.lease, batch.id AS batch
), released AS (
    DELETE FROM millrace.lease AS l USING ended WHERE l.seq = ended.seq
), told AS (
    INSERT INTO millrace.event (id, at, seqs, before, combos, generations, ns, attempts, failures, kinds, states, ids,
                                workers, leases, durations)
    SELECT min(batch), $4, array_agg(seq), array_agg(seq), '{1}', '{1}', '{3}', '{1}', '{0}', '{3}', '{2}',
           array_agg(id), '{floor}', array_agg(lease), array_agg(1)
    FROM ended
), sent AS (
    INSERT INTO millrace.outbox (event, size, at) SELECT min(batch), count(*), $4 FROM ended
), counted AS (
    INSERT INTO millrace.tally (queue, running, completed, live, processed)
    SELECT 1, -count(*), count(*), -count(*), count(*) FROM ended
), noted AS (
    INSERT INTO millrace.agenda (kind, queue, at, seqs)
    SELECT kind, 1, $4, (SELECT array_agg(seq) FROM ended) FROM unnest('{1, 2}'::smallint[]) AS kind
)
SELECT count(*) FROM ended
"""


class Floor:
    durability = "fsync per enqueue, claim and end"
    durable = True

    def __init__(self, path: Path) -> None:
        self.url = url_of(path)

    def enqueue(self, jobs: int) -> float:
        return asyncio.run(self._add(jobs, 1))

    def bulk(self, jobs: int) -> float:
        return asyncio.run(self._add(jobs, ENQUEUES))

    def process(self, jobs: int) -> float:
        return asyncio.run(self._process(jobs))

    async def _add(self, jobs: int, batch: int) -> float:
        async with self._line() as line:
            await migrate(line, "millrace")
            began = time.perf_counter()
            specs = enumerate(HEAD + json.dumps(payload).encode() for payload in payloads(jobs))
            while part := list(islice(specs, batch)):
                now = milliseconds()
                ids = [f"{now:015x}-{number:020x}" for number, _ in part]
                await line.execute(ENQUEUE, ids, [spec for _, spec in part], now)
            return time.perf_counter() - began

    async def _process(self, jobs: int) -> float:
        began = time.perf_counter()
        assert sum(await asyncio.gather(*(self._work(number) for number in range(LOOPS)))) == jobs
        return time.perf_counter() - began

    async def _work(self, number: int) -> int:
        done, calls = 0, 0
        async with self._line() as line:
            while rows := await line.fetch(CLAIM, CLAIMS, milliseconds(), f"{number}-{(calls := calls + 1)}"):
                results = await asyncio.gather(*(noop(**json.loads(spec[len(HEAD) :])) for _, _, spec in rows))
                answers = [json.dumps(result).encode() for result in results]
                seqs, leases = [row[0] for row in rows], [row[1] for row in rows]
                done += await line.fetchval(SETTLE, seqs, leases, answers, milliseconds())
        return done

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[Any]:
        line = await asyncpg.connect(self.url, server_settings=PLANS)
        try:
            yield line
        finally:
            await line.close()


async def noop(number: int, text: str) -> None:
    pass


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main({"floor": Floor})
