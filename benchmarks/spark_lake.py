"""How long it takes to take history into a lake: the first run, and increments onto what is there.

    python -m benchmarks.spark_lake [--events 1000000] [--more 100000] [--times 3] [--json]

The history is made up by Spark in the shape that the source gives, so that the figures are the lake's own: four queues,
seven tasks, sixteen workers, ten days, every twentieth job with a retry. Increments follow in time, so runs and jobs
span them. What reading from a store adds is measured by benchmarks.spark_read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.lab.child import say
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from millrace.spark.lake.audit import audit
from millrace.spark.lake.feed import EventFeed, Stretch
from millrace.spark.session import session

BEGIN = 1_760_000_000_000
DAYS = 10
SPAN = DAYS * 86_400_000
EVENTS_PER_JOB = 3.1  # one in twenty is retried, which makes five
LONGEST = 10_000  # milliseconds from a job's first event to its last
QUEUES = ("default", "mail", "images", "reports")
TASKS = ("send", "resize", "bill", "sync", "rates", "report", "clean")
JOBS_PER_TASK = 150_000
TRACE = 'Traceback (most recent call last):\n  File "shop.py", line 12, in send\n' * 6


class MadeUp:
    """A feed whose cursors are numbers of events, in steps of time."""

    name = "made up"

    def __init__(self, spark: SparkSession, events: int) -> None:
        self._spark = spark
        self._pace = SPAN / events * EVENTS_PER_JOB  # milliseconds between two jobs
        self.end = events

    def ahead(self, after: str | None, limit: int | None, since: int | None = None) -> Stretch:
        first = int(after or 0)
        last = self.end if limit is None else min(self.end, first + limit)
        return Stretch(str(first), str(last), last - first, last < self.end)

    def events(self, stretch: Stretch) -> DataFrame:
        since, until = (BEGIN + round(int(cursor) / EVENTS_PER_JOB * self._pace) for cursor in _bounds(stretch))
        first = max(0, int((since - LONGEST - BEGIN) / self._pace))
        last = int((until - BEGIN) / self._pace) + 1
        tasks = max(2, (last - first) // JOBS_PER_TASK)
        jobs = self._spark.range(first, last, 1, tasks)
        at = F.unix_millis("at")
        return _history(jobs, self._pace).where((at > since) & (at <= until))

    def groups(self) -> DataFrame:
        raise NotImplementedError("a made-up history has no groups")

    def has_few_jobs(self) -> bool:
        return False


def _bounds(stretch: Stretch) -> tuple[str, str]:
    return stretch.after, stretch.until


def _history(jobs: DataFrame, pace: float) -> DataFrame:
    began = F.lit(BEGIN) + (F.col("id") * pace).cast("bigint")
    claimed = began + 1 + _chance(1, 4_000)
    ended = claimed + 5 + _chance(2, 3_000)
    again = ended + 1_500
    plain = [_event(1, "enqueued", began), _event(2, "claimed", claimed), _event(3, "completed", ended)]
    retried = [
        *plain[:2],
        _event(3, "retried", ended),
        _event(4, "claimed", again),
        _event(5, "completed", again + 5 + _chance(5, 1_000)),
    ]
    happened = F.when(_chance(3, 20) == 0, F.array(*retried)).otherwise(F.array(*plain))
    return jobs.select(
        F.concat(F.lit("01JB"), F.lpad(F.hex("id"), 22, "0")).alias("job"),
        (F.col("id") + 1).alias("seq"),
        F.lit(1).alias("generation"),
        _one_of(QUEUES).alias("queue"),
        _one_of(TASKS).alias("task"),
        F.explode(happened).alias("told"),
    ).select(
        "job",
        "seq",
        "generation",
        "told.n",
        "told.kind",
        F.timestamp_millis("told.at").alias("at"),
        "queue",
        "task",
        *(f"told.{name}" for name in _TOLD),
    )


_TOLD = (
    "state",
    "attempt",
    "failures",
    "worker",
    "lease",
    "delay_ms",
    "reason",
    "error_type",
    "error_message",
    "error_traceback",
    "duration_ms",
)
_STATES = {"enqueued": "waiting", "claimed": "running", "completed": "completed", "retried": "waiting"}


def _event(n: int, kind: str, at: Column) -> Column:
    attempt, held, failed = n // 2 if n < 4 else 2, kind != "enqueued", kind == "retried"
    nothing: Column = F.lit(None)
    failure = F.concat(F.lit("no answer from 10.0.0."), _chance(9, 250).cast("string"), F.lit(" within 30 s"))
    lease = F.md5(F.concat(F.col("id").cast("string"), F.lit(f"-{attempt}")))
    worker = F.concat(F.lit("worker-"), _chance(10 + attempt, 16).cast("string"))
    values = {
        "n": F.lit(n),
        "kind": F.lit(kind),
        "at": at.cast("bigint"),
        "state": F.lit(_STATES[kind]),
        "attempt": F.lit(attempt if held else 0),
        "failures": F.lit(1 if failed or attempt == 2 else 0),
        "worker": (worker if held else nothing).cast("string"),
        "lease": (lease if held else nothing).cast("string"),
        "delay_ms": (F.lit(1_000) if failed else nothing).cast("bigint"),
        "reason": nothing.cast("string"),
        "error_type": (F.lit("TimeoutError") if failed else nothing).cast("string"),
        "error_message": (failure if failed else nothing).cast("string"),
        "error_traceback": (F.lit(TRACE) if failed else nothing).cast("string"),
        "duration_ms": (_chance(2, 3_000) + 5 if kind in ("completed", "retried") else nothing).cast("bigint"),
    }
    return F.struct(*(value.alias(name) for name, value in values.items()))


def _chance(salt: int, below: int) -> Column:
    return F.pmod(F.hash("id", F.lit(salt)), F.lit(below))


def _one_of(names: tuple[str, ...]) -> Column:
    return F.element_at(F.array(*map(F.lit, names)), (F.pmod("id", F.lit(len(names))) + 1).cast("int"))


def timed(spark: SparkSession, place: LakePlace, feed: EventFeed, what: str, quiet: bool) -> dict[str, Any]:
    began = perf_counter()
    taken = take(place, spark, feed, TakeRequest(), (lambda _: None) if quiet else (lambda text: say("  " + text)))
    seconds = perf_counter() - began
    rate = taken.events / seconds
    say(f"{what}: {taken.events:,} events in {seconds:.1f} s, {rate:,.0f} events/s")
    return {"what": what, "events": taken.events, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description="Taking history into a lake.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--more", type=int, default=100_000, help="events of each increment")
    parser.add_argument("--times", type=int, default=3, help="increments")
    parser.add_argument("--memory", help="of Spark's driver; a quarter of the machine's unless told")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--quiet", action="store_true", help="only the totals")
    parser.add_argument("--audit", action="store_true", help="audit the lake in the end")
    parser.add_argument("--json", action="store_true", help="print JSON in the end")
    asked = parser.parse_args()
    found: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="millrace-lake-") as folder:
        local = {"spark.local.dir": f"{folder}/scratch"}
        spark = session("millrace-bench", asked.master, memory=asked.memory, settings=local)
        place = LakePlace(Path(folder) / "lake")
        feed = MadeUp(spark, asked.events + asked.more * asked.times)
        total = feed.end
        feed.end = asked.events
        found.append(timed(spark, place, feed, "first run", asked.quiet))
        for number in range(asked.times):
            feed.end += asked.more
            found.append(timed(spark, place, feed, f"increment {number + 1}", asked.quiet))
        assert feed.end == total
        size = sum(file.bytes for files in place.require().files.values() for file in files)
        say(f"the lake: {size / 1e6:.0f} MB")
        if asked.audit:
            began = perf_counter()
            verdict = audit(Lake(place.path, spark))
            say(f"audit: {'sound' if verdict.sound else verdict.findings[:3]} in {perf_counter() - began:.1f} s")
        spark.stop()
    if asked.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
