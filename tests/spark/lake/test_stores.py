"""A lake of each store that Spark can reach, through the source; and the audit against the store itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace.domain.errors import CursorExpired
from millrace.domain.request import Claim
from millrace.spark.lake import Lake, LakePlace, StoreFeed, TakeRequest, take
from millrace.spark.lake.audit import audit
from millrace.spark.lake.audit_store import audit_store
from millrace.spark.lake.verdict import AuditResult
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from millrace.testing.builders import settings_in_seconds, specs
from millrace.testing.clock import VirtualClock
from tests.spark.conftest import BY_NIGHT, Place
from tests.spark.filled import all_events, fill
from tests.spark.lake.conftest import quietly


@pytest.mark.parametrize("place", BY_NIGHT, indirect=True)
def test_a_lake_holds_the_history_of_a_store_and_agrees_with_it(
    spark: SparkSession, place: Place, empty: LakePlace
) -> None:
    """What happens after the run is not in the lake, and the audit knows: it reads the rest of the feed."""
    with place.open() as opened:
        opened.run(fill(opened.store))
        expected = opened.run(all_events(opened.store))
    feed = StoreFeed(spark, url=place.url)

    taken = take(empty, spark, feed, TakeRequest(), quietly)

    lake = Lake(empty.location.root, spark)
    found = {(row["seq"], row["n"]) for row in lake.events().select("seq", "n").collect()}
    assert taken.events == len(expected)
    assert found == {(event.seq, event.n) for event in expected}
    assert lake.groups().count() == len([1 for number in range(20) if number % 7 == 0])
    assert lake.state.whole

    with place.open() as opened:
        opened.run(go_on(opened.store))
    verdict = audit_store(audit(lake), lake, feed)
    assert (verdict.sound, verdict.findings) == (True, [])

    verdict = audit_store(AuditResult(), lake, Amnesiac(spark, url=place.url), patience=0)
    assert not verdict.sound
    assert [(finding.rule, finding.job) for finding in verdict.findings] == [("vanished", "job-4")]


async def go_on(store: Store) -> None:
    await store.replay(["job-1"])
    [job] = await store.claim(Claim(("mail", "parcels"), "w-2", limit=1))
    assert job.state == "running"


class Amnesiac(StoreFeed):
    """A store that has lost one job, and does not know it."""

    def jobs(self) -> DataFrame:
        return super().jobs().where("id <> 'job-4'")


def test_a_lake_that_began_at_an_instant_is_told_of_trimmed_events_too(tmp_path: Path) -> None:
    async def trimmed_after() -> str:
        """The cursor after the first of two events that retention has removed; a third one is kept."""
        clock = VirtualClock()
        store = SqliteStore(tmp_path / "jobs.db", clock=clock)
        await store.connect()
        await store.control("store", "", settings_in_seconds({"keep_events": 60}))
        await store.enqueue(specs(2))
        cursor = (await store.events(None, 1)).cursor
        clock.advance(60)
        await store.enqueue(specs(1))
        await store.maintain()
        await store.close()
        return cursor

    cursor = asyncio.run(trimmed_after())
    feed = StoreFeed(None, url=f"sqlite:///{tmp_path}/jobs.db")  # type: ignore[arg-type] # planning needs no session
    with pytest.raises(CursorExpired):
        feed.ahead(cursor, None, since=0)
    assert feed.ahead(None, None, since=0).count == 1


def test_memory_cannot_be_reached(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="memory:// lives inside one process"):
        StoreFeed(spark, url="memory://")
