"""Shadow replays on Spark: jobs of a store or a lake run again in a sandbox, and the store stays as it is."""

from __future__ import annotations

import json
import re
import sys
import typing
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millrace import InvalidInput
from millrace.cli.pipeline.shadow import ShadowChoice
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim
from millrace.spark.lake import Lake, LakePlace, StoreFeed, TakeRequest, take
from millrace.spark.lake.errors import OtherStore
from millrace.spark.open import opened
from millrace.spark.shadow import PastJobs, ShadowRequest, ShadowResult, candidates, shadow
from millrace.spark.shadow.comparing import ShadowOutcome
from millrace.spark.shadow.payloads import keep_payloads
from millrace.spark.shadow.sandbox import COMPARED
from millrace.store.protocol import Store
from tests.cli.stage import Stage
from tests.project.page import Session, assert_printed, blocks_of
from tests.servers.read_only import KINDS, Limited, filled
from tests.spark.conftest import Place
from tests.spark.filled import fill
from tests.spark.programs.shadow_shop import app

APP = "tests.spark.programs.shadow_shop:app"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-shadow.md"
NOW = datetime.now(UTC)
# Of the jobs that `fill` makes, those of the task `send` completed with numbers 5, 9, 15, 19, and died with 1, 11.
SENT = {"same_result": 0, "other_result": 2, "now_fails": 2, "now_succeeds": 1, "other_error": 1}


def past(task: str, **store: str) -> PastJobs:
    return PastJobs(task, NOW - timedelta(days=1), NOW + timedelta(days=1), store or None)


def counts(found: ShadowResult) -> dict[str, int]:
    return {one.outcome: one.jobs for one in found.outcomes}


def expected() -> dict[str, int]:
    return {outcome: count for outcome, count in SENT.items() if count}


@pytest.fixture(params=KINDS)
def limited(request: pytest.FixtureRequest, environment: None) -> Iterator[Limited]:
    with filled(request.param, lambda: request.getfixturevalue("s3_server")) as made:
        yield made


@pytest.fixture
def full(sqlite: Place) -> Place:
    with sqlite.open() as found:
        found.run(fill(found.store))
    return sqlite


@pytest.fixture
def cli(shared_session: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "_connection", app._connection)  # the commands give the app the store of --url
    return Stage(monkeypatch)


def test_a_shadow_replay_needs_no_right_to_write_and_changes_nothing(
    limited: Limited, spark: SparkSession, tmp_path: Path
):
    """The handler enqueues in three ways, and reports progress."""
    file = tmp_path / "url"
    file.write_text(limited.reader)

    with limited.unchanged():
        found = shadow(spark, app, ShadowRequest(past("send", urlFile=str(file))))

    assert counts(found) == expected()
    assert (found.total.jobs, found.differing) == (6, 5)
    assert {row["job"]: row["outcome"] for row in found.examples} == {
        "job-5": "other_result",
        "job-9": "other_result",
        "job-11": "other_error",
        "job-1": "now_succeeds",
        "job-15": "now_fails",
        "job-19": "now_fails",
    }


def lake_of(spark: SparkSession, place: Place, folder: Path, payloads: frozenset[str] | None) -> Lake:
    made, feed = LakePlace(folder), StoreFeed(spark, url=place.url)
    take(made, spark, feed, TakeRequest(groups=False), lambda _text: None)
    if payloads is not None:
        keep_payloads(made, spark, feed, payloads, lambda _text: None)
    return Lake(folder, spark)


def test_a_lake_with_payloads_needs_no_store(spark: SparkSession, full: Place, tmp_path: Path):
    lake = lake_of(spark, full, tmp_path / "lake", frozenset({"send"}))

    found = shadow(spark, app, ShadowRequest(past("send")), lake)

    assert counts(found) == expected()
    assert counts(shadow(spark, app, ShadowRequest(past("pack")), lake)) == {"no_payload": found_of(lake, "pack")}
    assert candidates(spark, past("send"), lake) == {"completed": 4, "dead": 2}


def found_of(lake: Lake, task: str) -> int:
    return lake.jobs().where(f"task = '{task}' AND state IN ('completed', 'dead')").count()


def test_what_the_lake_lacks_is_read_from_the_store(spark: SparkSession, full: Place, tmp_path: Path):
    lake = lake_of(spark, full, tmp_path / "lake", None)

    assert counts(shadow(spark, app, ShadowRequest(past("send", url=full.url)), lake)) == expected()


def test_a_lake_of_another_store_is_refused(spark: SparkSession, full: Place, tmp_path: Path):
    lake = lake_of(spark, full, tmp_path / "lake", None)
    other = f"sqlite:///{tmp_path}/other.db"
    with opened(other):
        pass

    with pytest.raises(OtherStore, match="moved"):
        shadow(spark, app, ShadowRequest(past("send", url=other)), lake)
    with pytest.raises(OtherStore, match="moved"):
        candidates(spark, past("send", url=other), lake)


def test_after_a_move_jobs_of_the_lake_get_their_own_payloads(spark: SparkSession, full: Place, tmp_path: Path):
    """The new store gives its jobs other sequence numbers."""
    lake = lake_of(spark, full, tmp_path / "lake", None)
    moved = f"sqlite:///{tmp_path}/moved.db"
    with opened(moved) as found:
        jobs = [Spec(f"job-{n}", "send", "mail", b'{"n":%d,"to":"x"}' % n) for n in reversed(range(20))]
        found.run(found.store.enqueue(jobs))
        found.run(_finish_all(found.store))
    request = msgspec.structs.replace(past("send", url=moved), moved=True)

    assert counts(shadow(spark, app, ShadowRequest(request), lake)) == expected()


def test_a_job_that_was_replayed_runs_once(spark: SparkSession, full: Place, tmp_path: Path):
    lake = lake_of(spark, full, tmp_path / "lake", frozenset({"send"}))
    with full.open() as found:
        found.run(found.store.replay(["job-5"]))
        found.run(_finish_all(found.store))
    lake = lake_of(spark, full, tmp_path / "lake", frozenset({"send"}))

    assert lake.payloads().where("job = 'job-5'").count() == 2
    assert sum(counts(shadow(spark, app, ShadowRequest(past("send")), lake)).values()) == found_of(lake, "send")


async def _finish_all(store: Store) -> None:
    while jobs := await store.claim(Claim(("mail", "parcels"), "w-1", limit=50)):
        await store.settle([(job.lease, Change.completed(b'{"ok": true}')) for job in jobs])


def test_the_payloads_of_each_finished_job_are_copied_once(spark: SparkSession, full: Place, tmp_path: Path):
    place, feed = LakePlace(tmp_path / "lake"), StoreFeed(spark, url=full.url)
    copied = []
    for part in range(3):
        with full.open() as opened:
            if part:
                opened.run(opened.store.replay(["job-6" if part == 1 else "job-16"]))
        take(place, spark, feed, TakeRequest(groups=False), lambda _text: None)
        copied += [keep_payloads(place, spark, feed, (), lambda _text: None) for _ in range(2)]

    rows = Lake(tmp_path / "lake", spark).payloads().collect()

    assert copied == [12, 0, 0, 0, 0, 0]
    assert Counter(row.state for row in rows) == {"completed": 8, "dead": 4}
    assert json.loads(bytes(next(row.payload for row in rows if row.job == "job-5"))) == {"n": 5, "to": "ä"}
    assert {row.job for row in rows if row.headers} == {"job-0", "job-5", "job-10", "job-15"}
    assert DeltaTable(tmp_path / "lake" / "payloads").to_pyarrow_table().num_rows == 12


def test_at_most_so_many_jobs_run(spark: SparkSession, full: Place):
    request = past("send", url=full.url)
    few = PastJobs(request.task, request.since, request.until, request.store, max_jobs=2)

    assert shadow(spark, app, ShadowRequest(few)).total.jobs == 2
    assert sum(candidates(spark, few).values()) == 2


def test_without_jobs_there_is_nothing_to_compare(spark: SparkSession, full: Place):
    found = shadow(spark, app, ShadowRequest(past("snooze", url=full.url)))

    assert (found.outcomes, found.total.jobs, found.examples) == ([], 0, [])


def test_it_needs_a_store_or_a_lake(spark: SparkSession):
    with pytest.raises(InvalidInput, match="name a store, a lake, or both"):
        shadow(spark, app, ShadowRequest(past("send")))


# ── the command ───────────────────────────────────────────────────────────────────────────────


def test_the_command_warns_then_runs_and_writes_a_table(cli: Stage, full: Place, tmp_path: Path):
    command = ["pipeline", "shadow", "--app", APP, "--url", full.url, "--task", "send"]

    shown = cli(*command)
    assert shown.rows == [{"state": "completed", "jobs": "4"}, {"state": "dead", "jobs": "2"}]
    assert "mails, payments" in shown.err and "use --yes to do it" in shown.err
    assert cli(*command, "--json").json["jobs"] == {"completed": 4, "dead": 2}

    done = cli(*command, "--yes", "--out", str(tmp_path / "out"), ok=False)
    again = cli(*command, "--yes", "--json", ok=False)

    assert (done.code, again.code) == (1, 1)
    assert "5 jobs differ" in done.err
    document: dict[str, Any] = again.json
    assert {one["outcome"]: one["jobs"] for one in document["outcomes"]} == expected()
    assert (document["total"]["jobs"], document["total"]["share"]) == (6, 1.0)
    table = DeltaTable(tmp_path / "out" / "compared").to_pyarrow_table()
    assert Counter(table["outcome"].to_pylist()) == expected()


def test_the_command_says_what_is_missing(cli: Stage, full: Place):
    for arguments, text in [
        (("--app", APP, "--url", full.url), "--task NAME"),
        (("--url", full.url, "--task", "send"), "--app module:name"),
        (("--app", APP, "--task", "send"), "--lake DIR, or --url"),
        (("--app", APP, "--url", full.url, "--task", "sent"), "Did you mean 'send'?"),
        (("--app", APP, "--url", full.url, "--task", "send", "--since", "1d", "--until", "2d"), "must be earlier"),
    ]:
        assert text in cli.refused("pipeline", "shadow", *arguments).err, arguments


# ── the page ──────────────────────────────────────────────────────────────────────────────────


async def test_the_examples_of_the_page_run_and_print_what_they_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    session = Session(PAGE, tmp_path, lambda: capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "page", session.module)
    try:
        for block in blocks_of(PAGE.read_text(encoding="utf-8")):
            assert_printed(block, await session.run(block))
    finally:
        sys.modules.pop("new_shop", None)
        await session.module.old.close()


def test_the_page_lists_every_option_outcome_and_column():
    page = PAGE.read_text(encoding="utf-8")
    hints = typing.get_type_hints(ShadowChoice, include_extras=True)
    flags = {flag for hint in hints.values() for flag in flags_of(hint)} - {"--dry-run"}

    assert {flag for flag in flags if f"`{flag}" not in page} == set()
    assert re.findall(r"^\| `(\w+)` \| (?:completed|dead)", page, re.MULTILINE) == list(typing.get_args(ShadowOutcome))
    assert [name for name in COMPARED.names if f"`{name}`" not in page] == []


def flags_of(annotated: Any) -> list[str]:
    option = typing.get_args(annotated)[1]
    return [flag for flag in (option.param_decls or ()) if flag.startswith("--")]
