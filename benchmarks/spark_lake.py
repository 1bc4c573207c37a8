"""How long it takes to take history into a lake: the first run, and increments onto what is there.

    python -m benchmarks.spark_lake                                 1,000,000 events of a SQLite store
    python -m benchmarks.spark_lake --store postgres --audit
    python -m benchmarks.spark_lake --store made-up --events 10000000

A store has three events for each job, as in benchmarks.spark_read. The made-up history costs little to read, so that
the figures are the lake's own: four queues, seven tasks, sixteen workers, ten days, every twentieth job with a retry.
Increments follow in time, so runs and jobs span them. Besides the time, the CPU time of all processes is measured: on a
machine with other work it is the steadier figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.lab.child import say
from benchmarks.lab.new_store import KINDS, new_stores
from benchmarks.spark_read import make_feed, processes_cpu
from millrace.spark.lake import Lake, LakePlace, StoreFeed, TakeRequest, take
from millrace.spark.lake.audit import audit
from millrace.spark.lake.feed import EventFeed, Stretch
from millrace.spark.schema import EVENTS
from millrace.spark.session import session

MADE_UP = "made-up"
BEGIN = 1_760_000_000_000
SPAN = 10 * 86_400_000
EVENTS_PER_JOB = 3.1  # one in twenty is retried, which makes five
LONGEST = 10_000  # milliseconds from a job's first event to its last
QUEUES = ("default", "mail", "images", "reports")
TASKS = ("send", "resize", "bill", "sync", "rates", "report", "clean")
JOBS_PER_TASK = 150_000
JOBS_PER_BATCH = 10_000
TRACE = 'Traceback (most recent call last):\n  File "shop.py", line 12, in send\n' * 6
Numbers = npt.NDArray[np.int64]


class MadeUpFeed:
    """A feed whose cursors are numbers of events, in steps of time."""

    name = MADE_UP

    def __init__(self, events: int) -> None:
        self._pace = SPAN / events * EVENTS_PER_JOB  # milliseconds between two jobs
        self.end = events

    def ahead(self, after: str | None, limit: int | None, since: int | None = None) -> Stretch:
        first = int(after or 0)
        last = self.end if limit is None else min(self.end, first + limit)
        return Stretch(str(first), str(last), last - first, last < self.end)

    def shares(self, stretch: Stretch) -> Sequence[MadeUpShare]:
        since, until = (
            BEGIN - 1 + round(int(cursor) / EVENTS_PER_JOB * self._pace) for cursor in (stretch.after, stretch.until)
        )
        first = max(0, int((since - LONGEST - BEGIN) / self._pace))
        last = int((until - BEGIN) / self._pace) + 1
        bounds = [*range(first, last, JOBS_PER_TASK), last]
        return [MadeUpShare(low, high, self._pace, since, until) for low, high in pairwise(bounds)]

    def events(self, stretch: Stretch) -> DataFrame:
        raise NotImplementedError("only an audit against a store reads events as a DataFrame")

    def groups(self) -> DataFrame:
        raise NotImplementedError("a made-up history has no groups")

    def has_few_jobs(self) -> bool:
        return False


@dataclass(frozen=True)
class MadeUpShare:
    """The events of the jobs from `first` to `last` (exclusive) that happened after `since`, until `until`."""

    first: int
    last: int
    pace: float
    since: int
    until: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        for first in range(self.first, self.last, JOBS_PER_BATCH):
            jobs = np.arange(first, min(self.last, first + JOBS_PER_BATCH), dtype=np.int64)
            began = BEGIN + (jobs * self.pace).astype(np.int64)
            claimed = began + 1 + _chance(jobs, 1, 4_000)
            ended = claimed + 5 + _chance(jobs, 2, 3_000)
            again = ended + 1_500
            retried = _chance(jobs, 3, 20) == 0
            parts = [
                self._events(jobs, 1, "enqueued", began),
                self._events(jobs, 2, "claimed", claimed),
                self._events(jobs[~retried], 3, "completed", ended[~retried]),
                self._events(jobs[retried], 3, "retried", ended[retried]),
                self._events(jobs[retried], 4, "claimed", again[retried]),
                self._events(jobs[retried], 5, "completed", (again + 5 + _chance(jobs, 5, 1_000))[retried]),
            ]
            yield from pa.concat_tables(parts).combine_chunks().to_batches()

    def _events(self, jobs: Numbers, n: int, kind: str, at: Numbers) -> pa.Table:
        now = (at > self.since) & (at <= self.until)
        jobs, at, count = jobs[now], at[now], int(now.sum())
        attempt, held, failed = n // 2 if n < 4 else 2, kind != "enqueued", kind == "retried"
        nothing = [None] * count
        chance = _chance(jobs, 9, 250).tolist()
        values: dict[str, Any] = {
            "job": [f"01JB{job:022X}" for job in jobs.tolist()],
            "seq": jobs + 1,
            "generation": [1] * count,
            "n": [n] * count,
            "kind": [kind] * count,
            "at": at * 1_000,
            "queue": [QUEUES[job % len(QUEUES)] for job in jobs.tolist()],
            "task": [TASKS[job % len(TASKS)] for job in jobs.tolist()],
            "state": [_STATES[kind]] * count,
            "attempt": [attempt if held else 0] * count,
            "failures": [int(failed or attempt == 2)] * count,
            "worker": [f"worker-{n}" for n in _chance(jobs, 10 + attempt, 16).tolist()] if held else nothing,
            "lease": [f"{job * 7_919 + attempt:032x}" for job in jobs.tolist()] if held else nothing,
            "delay_ms": [1_000] * count if failed else nothing,
            "error_type": ["TimeoutError"] * count if failed else nothing,
            "error_message": [f"no answer from 10.0.0.{n} within 30 s" for n in chance] if failed else nothing,
            "error_traceback": [TRACE] * count if failed else nothing,
            "duration_ms": _chance(jobs, 2, 3_000) + 5 if kind in ("completed", "retried") else nothing,
        }
        schema = EVENTS.arrow()
        return pa.table([pa.array(values.get(field.name, nothing), field.type) for field in schema], schema=schema)


_STATES = {"enqueued": "waiting", "claimed": "running", "completed": "completed", "retried": "waiting"}


def _chance(jobs: Numbers, salt: int, below: int) -> Numbers:
    mixed: Numbers = ((jobs + salt * 1_000_003) * 2_654_435_761 >> 7) % below
    return mixed


def timed(spark: SparkSession, place: LakePlace, feed: EventFeed, what: str, quiet: bool) -> dict[str, Any]:
    copies = 0.0  # seconds for the table `events`; the other tables are derived from it

    def on_progress(text: str) -> None:
        nonlocal copies
        if found := re.search(r" rows of events in ([\d.]+) s", text):
            copies += float(found[1])
        if not quiet:
            say("  " + text)

    began, cpu = perf_counter(), processes_cpu()
    taken = take(place, spark, feed, TakeRequest(), on_progress)
    seconds, used = perf_counter() - began, processes_cpu() - cpu
    rate, per_row, copied = taken.events / seconds, used / taken.events * 1e6, taken.events / max(copies, 0.1)
    say(f"{what}: {taken.events:,} events in {seconds:.1f} s, {rate:,.0f} events/s; {per_row:.2f} µs CPU per event")
    say(f"  of these, copied to the table events in {copies:.1f} s, {copied:,.0f} events/s")
    return {"what": what, "events": taken.events, "seconds": seconds, "cpu_us_per_row": per_row, "copied": copied}


def measure(given: argparse.Namespace, folder: str, stack: ExitStack) -> list[dict[str, Any]]:
    made_up, url = None, ""
    if given.store == MADE_UP:
        made_up = MadeUpFeed(given.events + given.more * given.times)
        made_up.end = given.events
    else:
        url = stack.enter_context(new_stores(given.store, "?durability=relaxed" if given.store == "sqlite" else ""))()
        asyncio.run(make_feed(url, given.events))
    spark = session("millrace-bench", given.master, memory=given.memory, settings={"spark.local.dir": f"{folder}/tmp"})
    stack.callback(spark.stop)
    place = LakePlace(given.lake or Path(folder) / "lake")
    feed: EventFeed = made_up or StoreFeed(spark, url=url)
    found = [timed(spark, place, feed, "first run", given.quiet)]
    for number in range(given.times):
        if made_up is None:
            asyncio.run(make_feed(url, given.more, first=given.events + number * given.more))
        else:
            made_up.end += given.more
        found.append(timed(spark, place, feed, f"increment {number + 1}", given.quiet))
    say(f"the lake: {place.require().bytes / 1e6:.0f} MB")
    if given.audit:
        began = perf_counter()
        verdict = audit(Lake(str(place.location), spark))
        say(f"audit: {'sound' if verdict.sound else verdict.findings[:3]} in {perf_counter() - began:.1f} s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Taking history into a lake.")
    parser.add_argument("--store", choices=(*KINDS, MADE_UP), default="sqlite")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--more", type=int, default=100_000, help="events of each increment")
    parser.add_argument("--times", type=int, default=3, help="increments")
    parser.add_argument("--lake", help="a new lake; without it, one in a temporary directory")
    parser.add_argument("--memory", help="of Spark's driver; a quarter of the machine's unless told")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--quiet", action="store_true", help="only the totals")
    parser.add_argument("--audit", action="store_true", help="audit the lake in the end")
    parser.add_argument("--json", action="store_true", help="print JSON in the end")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="millrace-lake-") as folder, ExitStack() as stack:
        found = measure(given, folder, stack)
    if given.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
