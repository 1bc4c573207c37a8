"""Bulk operations by predicate: select jobs with Spark SQL, then replay, cancel, archive or unarchive them.

`select` reads and changes nothing. `apply` reads the selection once, writes it down, and acts on exactly those jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.domain.errors import InvalidInput, QueueError
from millrace.runtime.settings import masked
from millrace.spark import FORMAT, require_spark
from millrace.spark.bulk_deeds import Deed, deed_named
from millrace.spark.bulk_manifest import Asked, Manifest, Planned, Tally, opened_manifest
from millrace.spark.bulk_rate import Pace, read_rate
from millrace.spark.bulk_run import carry_out, instant
from millrace.spark.bulk_where import chosen, understood
from millrace.spark.open import opened, url_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELDS = Planned.__struct_fields__


class SelectionFailed(QueueError):
    """Spark could not read the jobs, or not evaluate the predicate on one of them."""


class BulkOutcome(msgspec.Struct, frozen=True):
    """What came of it. `answers` are counted by kind; `refused` are those that mean that nothing was done."""

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
    """The jobs that `where` means and to which the operation can be done: id, seq, queue, task, state, error, and
    finished_ms and replays, by which `apply` sees whether a job was touched since. Nothing is changed.

    Of replay: dead jobs, unless `where` speaks of `state`. `push_filters` suits a DataFrame that is queried once.
    """
    require_spark()
    deed = deed_named(operation, also_running)
    store = store_options(url, url_env, url_file)
    predicate = understood(spark, where, table, deed)
    options = {name: given for name, given in store.items() if given is not None}
    options |= {"table": predicate.table.name, "columns": ",".join(predicate.columns), "pushFilters": push_filters}
    options |= {"compacted": "without"}  # what is in files alone cannot be acted on
    rows = spark.read.format(FORMAT).options(**options).load()
    return chosen(rows, predicate, deed)


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
    """Act on what `select` answered, oldest first, at most `limit` of them, at most `rate` per second. It blocks.

    With a manifest that an earlier run left unfinished, that run goes on: with its jobs, none of them twice, and
    `jobs` is not read again. `where` is only written down, to say what the manifest is about.
    """
    deed = deed_named(operation, also_running)
    pace = Pace(read_rate(rate), None if stop is None else stop.wait)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidInput(f"limit is a whole number from 1 up, not {limit!r}")
    address = url_from(store_options(url, url_env, url_file))
    asked = Asked(deed.name, masked(address), where, instant(), limit=limit, also_running=also_running)
    with TemporaryDirectory(prefix="millrace-bulk-") as scratch:
        path = Path(scratch) / "manifest.jsonl" if manifest is None else Path(manifest)
        with opened_manifest(path) as kept:
            if not resumed(kept, asked):
                kept.select(asked, planned(jobs, limit))
            act(kept, deed, address, pace)
            return outcome_of(kept.tally, deed, None if manifest is None else path)


def store_options(url: str | None, url_env: str | None = None, url_file: str | None = None) -> dict[str, Any]:
    """As the source takes them; exactly one of them names the store."""
    named = {name: given for name, given in (("url", url), ("urlEnv", url_env), ("urlFile", url_file)) if given}
    if len(named) != 1:
        raise InvalidInput("name the store by one of url, url_env and url_file")
    return {"url": None, "urlEnv": None, "urlFile": None, **named}


def planned(jobs: DataFrame, limit: int | None = None) -> Iterator[Planned]:
    """The selection, oldest first. Read once: a global sort would read the store twice, to learn of its ranges."""
    missing = [name for name in _FIELDS if name not in jobs.columns]
    if missing:
        raise InvalidInput(f"the jobs to act on lack {', '.join(missing)}. Take them as bulk.select answers them")
    try:
        rows = jobs.select(*_FIELDS).repartition(1).sortWithinPartitions("seq", "id").toLocalIterator()
        for row in islice(rows, limit):
            yield Planned(*row)
    except Exception as error:  # Spark's own, or what the bridge to its JVM makes of them
        from millrace.spark.drain import reason

        raise SelectionFailed(f"the jobs could not be selected: {reason(str(error))}. Nothing was changed") from error


def resumed(manifest: Manifest, asked: Asked) -> bool:
    """Does it hold a selection to go on with? InvalidInput when that is of something else."""
    before = manifest.tally.asked
    if before is None:
        return False
    differing = before.differs(asked)
    if differing is not None:
        raise InvalidInput(
            f"{manifest.path} is the manifest of something else: its {differing} is {getattr(before, differing)!r}, "
            f"not {getattr(asked, differing)!r}. Name a new file, or ask for the same again"
        )
    return True


def act(
    manifest: Manifest, deed: Deed, url: str, pace: Pace, tell: Callable[[int], None] = lambda _answered: None
) -> None:
    """Go through what the manifest holds. What goes wrong in the middle is said with the way to go on."""
    if manifest.tally.ended:
        return
    try:
        with opened(url) as found:
            carry_out(found, manifest, deed, pace, tell)
    except QueueError as error:
        error.add_note(
            f"{manifest.tally.answered:,} of {manifest.tally.jobs:,} jobs have their answer in {manifest.path}; the "
            "same again with this manifest goes on from there"
        )
        raise


def outcome_of(tally: Tally, deed: Deed, manifest: Path | None) -> BulkOutcome:
    done = sum(count for answer, count in tally.answers.items() if answer in deed.done)
    return BulkOutcome(
        deed.name,
        tally.jobs,
        dict(tally.answers.most_common()),
        done,
        tally.answered - done,
        tally.left,
        None if manifest is None else str(manifest),
    )
