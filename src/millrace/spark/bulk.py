"""Bulk operations: select jobs with a Spark SQL predicate, then replay, cancel, archive, unarchive or delete them.

`select` changes nothing. `apply` reads the selection once, records it in a manifest, and acts on exactly these jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.app.format import instant
from millrace.app.local_path import local_path
from millrace.app.settings import masked
from millrace.domain.errors import InvalidInput, QueueError, did_you_mean
from millrace.spark import FORMAT, require_spark
from millrace.spark.bulk_manifest import BulkManifest, BulkRequest, ManifestTally, Planned, opened_manifest
from millrace.spark.bulk_run import Pace, carry_out, read_rate
from millrace.spark.bulk_where import chosen, understood
from millrace.spark.open import opened, url_from
from millrace.store.clock import system_clock
from millrace.views.bulk import ACTIONS, BulkAction, bulk_action

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELDS = Planned.__struct_fields__


class SelectionFailed(QueueError):
    """Spark could not read the jobs, or could not evaluate the predicate."""


class BulkOutcome(msgspec.Struct, frozen=True):
    """The result of a bulk operation. `answers` maps each answer, such as `replayed` or `changed`, to its number of
    jobs. `done` and `refused` count the jobs that were changed and that were not; `left` counts the jobs not processed
    yet.
    """

    operation: str
    jobs: int
    answers: dict[str, int]
    done: int
    refused: int
    left: int
    manifest: str | None

    @property
    def stopped(self) -> bool:
        return self.left > 0


def select(
    spark: SparkSession,
    url: str | None,
    where: str,
    operation: str = "replay",
    *,
    table: str = "jobs",
    also_running: bool = False,
    url_env: str | None = None,
    url_file: str | None = None,
    push_filters: bool = False,
) -> DataFrame:
    """Return the jobs that match `where` and that the operation applies to, as a DataFrame. Changes nothing.

    The columns are id, seq, queue, task, state, error, finished_ms and replays. `apply` uses the last two to detect
    jobs that have changed since. A replay selects only dead jobs, unless `where` uses the column `state`. Set
    `push_filters` only if the DataFrame is queried once.
    """
    require_spark()
    action = action_named(operation, also_running)
    store = store_options(url, url_env, url_file)
    predicate = understood(spark, where, table, action)
    options = {name: given for name, given in store.items() if given is not None}
    options |= {"table": predicate.table.name, "columns": ",".join(predicate.columns), "pushFilters": push_filters}
    options |= {"compacted": "without"}  # compacted jobs cannot be changed
    rows = spark.read.format(FORMAT).options(**options).load()
    return chosen(rows, predicate, action)


def apply(
    jobs: DataFrame,
    url: str | None,
    operation: str = "replay",
    *,
    rate: str | float | None = None,
    limit: int | None = None,
    manifest: str | Path | None = None,
    also_running: bool = False,
    where: str = "",
    url_env: str | None = None,
    url_file: str | None = None,
    stop: threading.Event | None = None,
) -> BulkOutcome:
    """Process the jobs from `select`, oldest first: at most `limit` jobs, and at most `rate` per second. Return the
    counts.

    This call blocks until all jobs are processed or `stop` is set. If `manifest` is the file of an unfinished
    operation, the call continues that operation: it processes the jobs recorded in the file that have no answer yet,
    and does not read `jobs`. `where` is a description that is recorded in the manifest.
    """
    action = action_named(operation, also_running)
    pace = Pace(read_rate(rate), None if stop is None else stop.wait)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidInput(f"limit is a whole number from 1 up, not {limit!r}")
    address = url_from(store_options(url, url_env, url_file))
    request = BulkRequest(
        action.verb, masked(address), where, instant(system_clock()), limit=limit, also_running=also_running
    )
    with TemporaryDirectory(prefix="millrace-bulk-") as scratch:
        path = Path(scratch) / "manifest.jsonl" if manifest is None else local_path(manifest, "manifest")
        with opened_manifest(path) as kept:
            if not resumed(kept, request):
                kept.select(request, planned(jobs, limit))
            act(kept, action, address, pace)
            return outcome_of(kept.tally, action, None if manifest is None else path)


def action_named(operation: str, also_running: bool = False) -> BulkAction:
    if operation not in ACTIONS:
        raise InvalidInput(f"there is no operation {operation!r}. {did_you_mean(operation, ACTIONS)}")
    if also_running and operation != "cancel":
        raise InvalidInput(f"also_running is for cancel: running jobs cannot be {ACTIONS[operation].past}")
    return bulk_action(operation, also_running=also_running)


def store_options(url: str | None, url_env: str | None = None, url_file: str | None = None) -> dict[str, Any]:
    """Return the options of the Spark source that name the store. Raises InvalidInput unless exactly one of the
    arguments is given.
    """
    named = {name: given for name, given in (("url", url), ("urlEnv", url_env), ("urlFile", url_file)) if given}
    if len(named) != 1:
        raise InvalidInput("name the store by one of url, url_env and url_file")
    return {"url": None, "urlEnv": None, "urlFile": None, **named}


def planned(jobs: DataFrame, limit: int | None = None) -> Iterator[Planned]:
    """Yield the selected jobs, oldest first. Spark sorts them in one partition, because a sort over several partitions
    would read the store twice. Raises SelectionFailed if Spark fails.
    """
    missing = [name for name in _FIELDS if name not in jobs.columns]
    if missing:
        raise InvalidInput(f"the jobs to act on lack {', '.join(missing)}. Use the result of bulk.select")
    try:
        rows = jobs.select(*_FIELDS).repartition(1).sortWithinPartitions("seq", "id").toLocalIterator()
        for row in islice(rows, limit):
            yield Planned(*row)
    except Exception as error:  # errors of Spark, or of the bridge to its JVM
        from millrace.spark.drain.driver import reason

        raise SelectionFailed(f"the jobs could not be selected: {reason(str(error))}. Nothing was changed") from error


def resumed(manifest: BulkManifest, request: BulkRequest) -> bool:
    """Return whether the manifest already holds a selection. Raises InvalidInput if that selection belongs to a
    different request.
    """
    before = manifest.tally.request
    if before is None:
        return False
    differing = before.differs(request)
    if differing is not None:
        raise InvalidInput(
            f"{manifest.path} is the manifest of something else: its {differing} is {getattr(before, differing)!r}, "
            f"not {getattr(request, differing)!r}. Name a new file, or repeat the same request"
        )
    return True


def act(
    manifest: BulkManifest,
    action: BulkAction,
    url: str,
    pace: Pace,
    on_progress: Callable[[int], None] = lambda _answered: None,
) -> None:
    """Process the jobs in the manifest that have no answer yet. If a QueueError interrupts this, a note on the
    exception says how to continue.
    """
    if manifest.tally.ended:
        return
    try:
        with opened(url) as found:
            carry_out(found, manifest, action, pace, on_progress)
    except QueueError as error:
        error.add_note(
            f"{manifest.tally.answered:,} of {manifest.tally.jobs:,} jobs are recorded in {manifest.path}; run it "
            "again with this manifest to continue"
        )
        raise


def outcome_of(tally: ManifestTally, action: BulkAction, manifest: Path | None) -> BulkOutcome:
    done = sum(count for answer, count in tally.answers.items() if answer in action.done)
    return BulkOutcome(
        action.verb,
        tally.jobs,
        dict(tally.answers.most_common()),
        done,
        tally.answered - done,
        tally.left,
        None if manifest is None else str(manifest),
    )
