"""Whether a lake grows without growing costs: take after take of a made-up history, then audit, report and compaction.

    python -m benchmarks.lake_scale                                    two minutes of takes of 500,000 events
    python -m benchmarks.lake_scale --minutes 10 --take 1000000 --memory 2g

For each take and each phase, the time, the CPU time of all processes, and the largest memory of the driver, the JVM and
Spark's Python processes. Memory and CPU per event of the last take should be those of the first ones after the JVM has
warmed up. The history is that of benchmarks.spark_lake.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.lab.child import say
from benchmarks.spark_lake import MadeUpFeed
from benchmarks.spark_read import descendants, processes_cpu
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from millrace.spark.lake.audit import audit
from millrace.spark.lake.maintenance import compact
from millrace.spark.report import Wanted, html, report_of
from millrace.spark.session import session

LOOK = 0.25  # seconds


class Memory:
    """The largest resident memory of each kind of process, in megabytes, since the last `take`."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def taken(self) -> dict[str, int]:
        self._look()
        found, self._most = self._most, {}
        return found

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            self._look()

    def _look(self) -> None:
        now: dict[str, int] = {}
        for pid in descendants(os.getpid()):
            try:
                kind = "driver" if pid == os.getpid() else kind_of(pid)
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            now[kind] = now.get(kind, 0) + pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000
        for kind, size in now.items():
            self._most[kind] = max(size, self._most.get(kind, 0))


def kind_of(pid: int) -> str:
    return "jvm" if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] else "python"


@contextmanager
def phase(found: list[dict[str, Any]], memory: Memory, what: str, events: int = 0) -> Iterator[dict[str, Any]]:
    """Measure the block. It may set `events` in the row that it gets."""
    memory.taken()
    row: dict[str, Any] = {"what": what, "events": events}
    began, cpu = perf_counter(), processes_cpu()
    yield row
    seconds, used, sizes = perf_counter() - began, processes_cpu() - cpu, memory.taken()
    per_event, load = round(used / max(1, row["events"]) * 1e6, 2), round(os.getloadavg()[0], 1)
    found.append({**row, "seconds": round(seconds, 1), "cpu_us_per_event": per_event, "mb": sizes, "load": load})
    said = ", ".join(f"{kind} {size:,} MB" for kind, size in sorted(sizes.items()))
    say(f"{what}: {row['events']:,} events, {seconds:.1f} s, {per_event} µs CPU per event; {said}; load {load}")


def measure(given: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    settings = {"spark.local.dir": f"{folder}/tmp", "spark.ui.enabled": "false"}
    spark = session("millrace-scale", given.master, memory=given.memory, settings=settings)
    feed, place = MadeUpFeed(given.of), LakePlace(given.lake or Path(folder) / "lake")
    began, total = perf_counter(), 0
    try:
        with Memory() as memory:
            while total < given.of and (not total or perf_counter() - began < given.minutes * 60):
                with phase(found, memory, f"take {len(found) + 1}") as row:
                    request = TakeRequest(limit=given.take, groups=False)
                    row["events"] = take(place, spark, feed, request, lambda _text: None).events
                total += row["events"]
            with phase(found, memory, "audit", total):
                verdict = audit(Lake(place.location.root, spark))
            with phase(found, memory, "report", total):
                page = html(report_of(Lake(place.location.root, spark), Wanted(audit=False)))
            before = place.require()
            with phase(found, memory, "compact", total):
                compact(place, lambda _text: None)
        after = place.require()
        sound = "sound" if verdict.sound else verdict.findings[:3]
        say(f"{total:,} events: {before.files:,} files, {after.files:,} after the compaction; audit {sound}")
        for name, table in after.tables.items():
            size, rows = sum(file.bytes for file in table.files), sum(file.rows for file in table.files)
            say(f"  {name}: {rows:,} rows, {len(table.files):,} files, {size / total:.2f} bytes per event")
        say(f"a report of {len(page):,} bytes")
    finally:
        spark.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Take after take into one lake.")
    parser.add_argument("--minutes", type=float, default=2, help="how long to make takes")
    parser.add_argument("--take", type=int, default=500_000, help="events of a take")
    parser.add_argument("--of", type=int, default=100_000_000, help="events of the whole history, over ten days")
    parser.add_argument("--memory", help="of Spark's driver; a quarter of the machine's unless told")
    parser.add_argument("--lake", help="a new lake; without it, one in a temporary directory")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", action="store_true", help="print JSON in the end")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="millrace-scale-") as folder:
        found = measure(given, folder)
    if given.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
