"""A lake whose store went back to an earlier state: two histories are never mixed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.job import Spec
from millrace.spark.lake.audit_store import _differences
from millrace.spark.lake.errors import HistoryReplaced
from millrace.spark.lake.feed import StoreFeed
from millrace.spark.lake.taking import TakeRequest, _ahead
from tests.spark.conftest import Place


def test_a_lake_that_is_ahead_of_its_store_takes_nothing_more(sqlite: Place, tmp_path: Path):
    """Not even where gaps are accepted: what it holds may never have happened."""
    file, copy = Path(sqlite.url.partition("?")[0].removeprefix("sqlite:///")), tmp_path / "backup.db"
    with sqlite.open() as found:
        found.run(found.store.enqueue([Spec("kept", "t")]))
    shutil.copy(file, copy)
    with sqlite.open() as found:
        found.run(found.store.enqueue([Spec("lost", "t")]))
    spark: Any = None  # nothing is read yet
    feed = StoreFeed(spark, url=sqlite.url)
    taken: Any = SimpleNamespace(cursor=feed.ahead(None, None).until, take=1)
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    shutil.copy(copy, file)
    with sqlite.open() as found:
        found.run(found.store.enqueue([Spec(f"new-{number}", "t") for number in range(5)]))

    for asked in (TakeRequest(), TakeRequest(accept_gap=True)):
        with pytest.raises(HistoryReplaced, match=r"restored from a backup.*begin a new one: --lake"):
            _ahead(feed, taken, 100, asked)
    lake: Any = SimpleNamespace(state=taken)
    with pytest.raises(HistoryReplaced):
        _differences(lake, feed, spark)
