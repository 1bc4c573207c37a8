"""Bulk operations by predicate, from a program and as they are typed, on every store that Spark can reach."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.cli import exits
from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job, Spec
from millrace.domain.request import Claim
from millrace.spark import bulk
from millrace.spark.bulk_run import Pace
from millrace.store.protocol import Store
from millrace.views.fingerprint import fingerprint
from tests.cli.stage import Stage
from tests.spark.conftest import Place
from tests.spark.filled import ERROR, all_jobs, fill

ROOT = Path(__file__).resolve().parents[2]


def filled(place: Place, jobs: int = 20) -> dict[str, Job]:
    with place.open() as opened:
        opened.run(fill(opened.store, jobs))
        return now(place)


def now(place: Place) -> dict[str, Job]:
    with place.open() as opened:
        return {job.id: job for job in opened.run(all_jobs(opened.store))}


async def one_more_dies(store: Store) -> None:
    await store.enqueue([Spec("late", "send", "mail", payload=b"{}", priority=9)])
    [late] = await store.claim(Claim(("mail",), "w-2", limit=1))
    await store.settle([(late.lease, Change.bury(ERROR, "explicit_fail"))])


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["is"] == kind]


def test_what_a_predicate_means_is_replayed_and_nothing_else(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    before = filled(place)
    dead = {job.id for job in before.values() if job.state == "dead" and job.task == "send"}
    manifest = tmp_path / "back.jsonl"

    found = bulk.select(spark, place.url, "task = 'send' and error like '%no such address%'")
    outcome = bulk.apply(found, place.url, "replay", manifest=manifest)
    again = bulk.apply(found, place.url, "replay", manifest=manifest)

    after = now(place)
    assert len(dead) == 2 and outcome.answers == {"replayed": 2} and not outcome.stopped
    assert {job.id for job in after.values() if job.replays} == dead
    assert {name: job.state for name, job in after.items() if name not in dead} == {
        name: job.state for name, job in before.items() if name not in dead
    }
    assert [(line["id"], line["state"], line["answer"]) for line in lines(manifest, "answered")] == [
        (name, "dead", "replayed") for name in sorted(dead, key=lambda name: before[name].seq)
    ]
    assert again == outcome  # it is done; asked again, nothing more happens


@pytest.fixture
def cli(shared_session: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    monkeypatch.chdir(tmp_path)
    return Stage(monkeypatch)


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.suffix == ".jsonl")


def test_without_yes_it_only_shows_what_it_would_do(cli: Stage, sqlite: Place, tmp_path: Path) -> None:
    before = filled(sqlite)

    ran = cli("pipeline", "cancel", "--url", sqlite.url, "--where", "state = 'waiting'")
    told = cli("pipeline", "cancel", "--url", sqlite.url, "--where", "failures > 0", "--json").json
    none = cli("pipeline", "cancel", "--url", sqlite.url, "--where", "false", "--yes")

    waiting = Counter((job.queue, job.task) for job in before.values() if job.state == "waiting")
    assert {(row["queue"], row["task"]): int(row["jobs"]) for row in ran.rows} == waiting
    assert f"{waiting.total()} jobs would be cancelled. Nothing was changed; use --yes to do it." in ran.err
    assert (told["dry_run"], told["matched"], len(told["sample"])) == (True, 4, 4)
    assert told["sample"][0]["error"].startswith("ValueError: no such address")
    assert "No job matches." in none.err
    assert now(sqlite) == before and files(tmp_path) == []


def test_what_was_shown_is_what_is_done(cli: Stage, sqlite: Place, tmp_path: Path) -> None:
    before = filled(sqlite)
    manifest = str(tmp_path / "dead.jsonl")
    dead = [job for job in before.values() if job.state == "dead"]
    mark = fingerprint(dead[0])
    meant = sorted((job for job in dead if fingerprint(job) == mark), key=lambda job: job.seq)

    where = ("--table", "dead", "--where", f"fingerprint = '{mark}' and size(attempts) = 1", "--limit", "2")
    shown = cli("pipeline", "archive", "--url", sqlite.url, *where, "--manifest", manifest)
    untouched = now(sqlite)
    with sqlite.open() as opened:
        opened.run(one_more_dies(opened.store))  # of the same error; but it was not shown
    done = cli("pipeline", "archive", "--url", sqlite.url, "--manifest", manifest, "--yes", "--json").json
    once = cli("pipeline", "archive", "--url", sqlite.url, "--manifest", manifest, "--yes", "--json").json

    assert f"--manifest {manifest} --yes" in shown.err and untouched == before
    assert (done["matched"], done["answers"], done["done"], done["left"]) == (2, {"done": 2}, 2, 0)
    assert once == done
    assert {job.id for job in now(sqlite).values() if job.archived} == {"job-0", *(job.id for job in meant[:2])}

    back = cli("pipeline", "unarchive", "--url", sqlite.url, "--where", "id <> 'job-0'", "--yes")
    assert back.rows == [{"answer": "done", "jobs": "2"}]
    assert {job.id for job in now(sqlite).values() if job.archived} == {"job-0"}
    assert [name for name in files(tmp_path) if name.startswith("millrace-unarchive-20")] != []  # always kept


def test_jobs_that_are_not_acted_on_are_counted_by_reason(cli: Stage, directory: Place, tmp_path: Path) -> None:
    before = filled(directory)
    manifest = tmp_path / "m.jsonl"
    where = ("--where", "state = 'dead' or state = 'cancelled'", "--manifest", str(manifest))
    cli("pipeline", "replay", "--url", directory.url, *where)
    with directory.open() as opened:
        opened.run(opened.store.replay(["job-1", "job-6"]))  # both are back; then one ends once more
        opened.run(opened.store.cancel(["job-1"]))

    ran = cli.refused("pipeline", "replay", "--url", directory.url, *where, "--yes", "--rate", "1000/s")

    finished = [name for name, job in before.items() if job.state in ("dead", "cancelled")]
    assert ran.code == exits.NO
    assert {row["answer"]: int(row["jobs"]) for row in ran.rows} == {"replayed": len(finished) - 1, "changed": 1}
    assert f"{len(finished) - 1} jobs replayed, 1 refused" in ran.err
    answers = {line["id"]: line["answer"] for line in lines(manifest, "answered")}
    assert (answers["job-1"], answers["job-6"]) == ("changed", "replayed")


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "acts"), [(b"y\n", True), (b"\n", False)])
def test_somebody_who_is_there_is_asked(
    cli: Stage, sqlite: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bytes, acts: bool
) -> None:
    filled(sqlite, 5)
    typing = SimpleNamespace(BytesIO=Terminal, TextIOWrapper=io.TextIOWrapper)
    monkeypatch.setattr("tests.cli.stage.io", typing)
    monkeypatch.setenv("TERM", "xterm")

    ran = cli("pipeline", "archive", "--url", sqlite.url, "--where", "task = 'send'", stdin=typed, ok=False)

    assert "Archive 2 jobs? [y/N]" in ran.err
    assert "the oldest of them" in ran.out and "job-1" in ran.out and "ValueError: no such address" in ran.out
    assert ran.code == (exits.OK if acts else exits.NO)
    assert sum(job.archived for job in now(sqlite).values()) == (3 if acts else 1)
    assert len(files(tmp_path)) == (1 if acts else 0)


def test_what_cannot_be_is_refused_before_anything_happens(cli: Stage, sqlite: Place, tmp_path: Path) -> None:
    before = filled(sqlite, 5)

    def refused(*arguments: str) -> str:
        ran = cli.refused("pipeline", "replay", "--url", sqlite.url, *arguments)
        assert ran.code == exits.USAGE
        return ran.err

    assert "The columns of jobs are: after, " in refused("--where", "nonsense = 1", "--yes")
    assert "which jobs? Use --where" in refused("--yes")
    assert "which jobs? Use --where" in refused("--manifest", "new.jsonl")
    assert "--yes and --dry-run cannot be used together" in refused("--where", "true", "--yes", "--dry-run")
    assert "such as 100/s" in refused("--where", "true", "--rate", "fast")
    (tmp_path / "notes.jsonl").write_text("mine\n")
    assert "is not a manifest" in refused("--where", "true", "--manifest", "notes.jsonl", "--yes")
    unreadable = cli.refused("pipeline", "replay", "--url", sqlite.url, "--where", "cast(id as int) = 3", "--yes")
    assert unreadable.code == exits.NO and "Nothing was changed" in unreadable.err and "job-" in unreadable.err
    assert now(sqlite) == before and files(tmp_path) == ["notes.jsonl"]


def test_a_program_is_refused_likewise(spark: SparkSession, sqlite: Place) -> None:
    filled(sqlite, 5)
    found = bulk.select(spark, sqlite.url, "true", "archive")

    with pytest.raises(InvalidInput, match="lack finished_ms"):
        bulk.apply(found.drop("finished_ms"), sqlite.url, "archive")
    with pytest.raises(InvalidInput, match="limit is a whole number"):
        bulk.apply(found, sqlite.url, "archive", limit=0)
    with pytest.raises(InvalidInput, match="one of url, url_env and url_file"):
        bulk.select(spark, None, "true")
    with pytest.raises(InvalidInput, match="lives inside one process"):
        bulk.apply(found, "memory://", "archive")


def test_a_stopped_run_says_how_to_go_on(
    cli: Stage, sqlite: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(sqlite, 10)
    admit = Pace.admit
    batches = iter(range(1, 10))

    def interrupted(pace: Pace, jobs: int) -> bool:
        if next(batches) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return admit(pace, jobs)

    archive = ("pipeline", "archive", "--url", sqlite.url, "--manifest", "m.jsonl", "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(Pace, "admit", interrupted)
        ran = cli(*archive, "--where", "true", "--rate", "120/h", ok=False)
    went_on = cli(*archive, "--json").json

    assert ran.code == exits.INTERRUPTED
    assert "Stopped with 6 jobs left. To continue: millrace pipeline archive --manifest m.jsonl --yes" in ran.err
    assert ran.rows == [{"answer": "done", "jobs": "1"}]
    assert (went_on["matched"], went_on["answers"], went_on["left"]) == (7, {"done": 7}, 0)


CONNECT = """
import sys
from pyspark.sql import SparkSession
from millrace.domain.errors import InvalidInput
from millrace.spark import bulk, register
from millrace.spark.java import use_java

use_java()
builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
register(spark)
try:
    bulk.select(spark, sys.argv[1], "taks = 'send'")
except InvalidInput as error:
    print("The columns of jobs are" in str(error))
for where, operation in (("error like 'ValueError%'", "replay"), ("state = 'completed'", "archive")):
    outcome = bulk.apply(bulk.select(spark, sys.argv[1], where, operation), sys.argv[1], operation, limit=3)
    print(outcome.answers)
spark.stop()
"""


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_all_of_it_works_through_spark_connect(sqlite: Place) -> None:
    filled(sqlite)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}

    command = [sys.executable, "-c", CONNECT, sqlite.url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-3:] == ["True", "{'replayed': 3}", "{'done': 3}"]
    assert sum(job.replays for job in now(sqlite).values()) == 3
