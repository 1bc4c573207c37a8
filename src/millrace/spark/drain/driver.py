"""The driver's side of a Spark drain, which runs a backlog of jobs on executors. Each partition runs an ordinary
worker.

The driver runs no jobs. It starts one Spark job with a row for each partition, and collects the results. Meanwhile it
renews the flag (see `flag.py`) that lets the workers continue.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from millrace.app.duration import Duration, milliseconds, optional_milliseconds
from millrace.app.spark_drain import DrainFailed, DrainKeywords, DrainOutcome, DrainProgress
from millrace.domain.errors import InvalidInput, QueueError
from millrace.domain.request import QueueCounts
from millrace.spark import require_spark
from millrace.spark.drain.app import address_of
from millrace.spark.drain.flag import BEAT, Flag
from millrace.spark.drain.partition import RunPartition
from millrace.spark.drain.plan import OUTCOME, DrainPlan, read_plan, worker_of
from millrace.spark.open import OpenedStore, opened, url_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.app.app import App

SLACK = 20.0  # seconds after the grace; then Spark kills what still runs
NOTHING = QueueCounts("")


def begin(app: App, spark: SparkSession, options: DrainKeywords) -> SparkDrain:
    """Check the options, start workers on the executors, and return the running drain.

    If this raises an exception, nothing was started.
    """
    require_spark()
    plan, url, lasting = checked(app, options)
    if options.get("partitions") is None:
        plan = msgspec.structs.replace(plan, partitions=parallelism(spark))
    drain = SparkDrain(spark, plan, url, lasting)
    drain.start()
    return drain


def checked(app: App, options: DrainKeywords) -> tuple[DrainPlan, str, float | None]:
    """Check the options as far as possible without a Spark session. Return the plan, the store's URL, and the maximum
    duration in seconds (None for no limit). Raises InvalidInput for an invalid option.
    """
    lasting = optional_milliseconds("duration", options.get("duration"))
    partitions = options.get("partitions")
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise InvalidInput(f"partitions must be a whole number from 1 up, not {partitions!r}")
    plan = read_plan(app, options, address_of(app, options.get("address")), partitions or 1)
    return plan, url_from(plan.store), None if lasting is None else lasting / 1000


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at once, according to its settings. This also works with Spark Connect."""
    from pyspark.sql import functions as F

    return max(1, spark.range(10_000).select(F.spark_partition_id().alias("at")).distinct().count())


def _mark(spark: Any, tag: str) -> None:
    """Tag the Spark jobs that this thread starts, so that another thread can cancel them. Without Spark Connect, the
    tag is set on the SparkContext, because tags of a session are valid in one thread only.
    """
    if _is_remote(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def _cancel(spark: Any, tag: str) -> None:
    if _is_remote(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def _is_remote(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def reason(text: str) -> str:
    """Return the cause from Spark's long error text: the first line that names an exception, or else the first line."""
    if "No module named 'millrace'" in text:
        return (
            "the Python of its executors has no millrace. Install it there, or have them use an environment that has "
            "it: PYSPARK_PYTHON, or spark.pyspark.python"
        )
    found = re.search(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt): .*)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (found[1] if found else lines[0] if lines else "it gave no reason").rstrip(".")


class SparkDrain:
    """A running Spark drain. Its methods can be called from any thread, and block."""

    def __init__(self, spark: SparkSession, plan: DrainPlan, url: str, lasting: float | None) -> None:
        self.id = plan.drain
        self._spark = spark
        self._plan = plan
        self._url = url
        self._lasting = lasting
        self._flag = Flag(plan.drain)
        self._open = contextlib.ExitStack()
        self._began = time.monotonic()
        self._over = threading.Event()
        self._closed = threading.Event()
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._stop_at: float | None = None
        self._rows: list[Any] = []
        self._error: BaseException | None = None
        self._outcome: DrainOutcome | None = None
        self._before: dict[str, QueueCounts] = {}
        self._last = DrainProgress(0, 0, 0, 0, 0, 0)

    def start(self) -> None:
        self._store: OpenedStore = self._open.enter_context(opened(self._url))
        try:
            self._before = self._counts()
            self._store.run(self._flag.show(self._store.store))
        except BaseException:
            self._open.close()
            raise
        threading.Thread(target=self._hold_up, name=f"millrace {self.id} flag", daemon=True).start()
        threading.Thread(target=self._execute, name=f"millrace {self.id}", daemon=True).start()

    # ── public methods ───────────────────────────────────────────────────────────────────────

    @property
    def done(self) -> bool:
        return self._over.is_set()

    def progress(self) -> DrainProgress:
        with self._lock:
            if self._closed.is_set():
                return self._last
            return self._look()

    def wait(self, timeout: float | None = None) -> DrainOutcome:
        if not self._closed.wait(timeout):
            raise TimeoutError(f"{self.id} has not ended after {timeout:g} s; it continues")
        if self._outcome is None:
            raise self._failure() from self._error
        return self._outcome

    def stop(self, grace: Duration | None = None) -> None:
        seconds = (self._plan.grace if grace is None else milliseconds("grace", grace)) / 1000
        stop_at = time.monotonic() + seconds
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        self._news.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._closed.wait()

    # ── threads ───────────────────────────────────────────────────────────────────────────────

    def _execute(self) -> None:
        """Run the Spark job and keep its rows or its error. This runs in its own thread, because the call blocks until
        the last partition has ended.
        """
        try:
            _mark(self._spark, self.id)
            count = self._plan.partitions
            self._rows = self._spark.range(0, count, 1, count).mapInArrow(RunPartition(self._plan), OUTCOME).collect()
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()
            self._news.set()

    def _hold_up(self) -> None:
        """Renew the flag until the Spark job has ended, then remove the flag and close the store. If the Spark job
        still runs some time after the grace period, cancel it.
        """
        cut = False
        while not self._over.is_set():
            now = time.monotonic()
            if self._lasting is not None and now >= self._began + self._lasting and self._stop_at is None:
                self._stop_at = now + self._plan.grace / 1000
            with contextlib.suppress(Exception):  # the next heartbeat comes before the flag expires
                self._beat(now)
            if self._stop_at is not None and now > self._stop_at + SLACK and not cut:
                cut = True
                _cancel(self._spark, self.id)
            self._news.wait(self._until_next(now))
            self._news.clear()
        self._close()

    def _beat(self, now: float) -> None:
        grace = None if self._stop_at is None else max(0.0, self._stop_at - now)
        self._store.run(self._flag.show(self._store.store, grace))

    def _until_next(self, now: float) -> float:
        if self._lasting is None or self._stop_at is not None:
            return BEAT
        return max(0.01, min(BEAT, self._began + self._lasting - now))

    def _close(self) -> None:
        with self._lock:
            with contextlib.suppress(Exception):
                self._store.run(self._flag.strike(self._store.store))
                self._last = self._look()
            with contextlib.suppress(Exception):
                self._open.close()
            if self._error is None:
                workers = sorted(map(worker_of, self._rows), key=lambda one: one.partition)
                if any(one.refused is None for one in workers):
                    self._outcome = DrainOutcome(tuple(workers), time.monotonic() - self._began)
                elif workers:
                    self._error = InvalidInput(workers[0].refused or "")
            self._closed.set()

    def _failure(self) -> QueueError:
        if isinstance(self._error, QueueError):
            return self._error
        return DrainFailed(
            f"Spark gave {self.id} up: {reason(str(self._error))}. No job is lost: what its workers held is taken over "
            "by others when its lease has run out, by the next drain as well"
        )

    # ── the store ─────────────────────────────────────────────────────────────────────────────

    def _look(self) -> DrainProgress:
        counts = self._counts().values()
        before = self._before
        return DrainProgress(
            sum(one.ready for one in counts),
            sum(one.running for one in counts),
            sum(one.waiting - one.ready for one in counts),
            sum(one.processed - before.get(one.queue, NOTHING).processed for one in counts),
            sum(one.died - before.get(one.queue, NOTHING).died for one in counts),
            self._flag.alive(self._store.run(self._store.store.workers())),
        )

    def _counts(self) -> dict[str, QueueCounts]:
        found = self._store.run(self._store.store.count())
        return {one.queue: one for one in found if one.queue in self._plan.queues}
