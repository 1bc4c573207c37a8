"""`millrace pipeline load`: jobs out of files, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from pyspark.sql import SparkSession

from millrace.spark.sink.ids import job_id
from tests.cli.stage import Stage
from tests.spark.conftest import Place
from tests.spark.sinking import APP, jobs_in, numbers, payloads

ORDERS = [{"order": number, "to": f"user{number}@example.com", "level": number % 3} for number in range(30)]


@pytest.fixture
def cli(shared_session: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    monkeypatch.chdir(tmp_path)
    return Stage(monkeypatch)


def written(kind: str, folder: Path, rows: list[dict[str, Any]] = ORDERS) -> str:
    path = folder / f"orders.{kind}"
    match kind:
        case "parquet":
            parquet.write_table(pa.Table.from_pylist(rows), path)
        case "csv":
            csv.write_csv(pa.Table.from_pylist(rows), path)
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"{kind}:{path}"


def command(place: Place, source: str, *more: str) -> list[str]:
    return ["pipeline", "load", "--url", place.url, "--from", source, "--task", "send", "--id-columns", "order", *more]


def test_the_rows_of_a_file_become_jobs_once(cli: Stage, place: Place, tmp_path: Path):
    source = written("parquet", tmp_path)

    shown = cli(*command(place, source, "--json")).json
    assert (shown["dry_run"], shown["rows"], shown["valid"], shown["invalid"]) == (True, 30, 30, 0)
    assert shown["jobs"] == {"default": {"send": 30}} and jobs_in(place) == []

    first = cli(*command(place, source, "--yes", "--json")).json
    again = cli(*command(place, source, "--yes", "--json")).json

    assert (first["queued"], first["duplicates"], again["queued"], again["duplicates"]) == (30, 0, 0, 30)
    jobs = jobs_in(place)
    assert {job.id for job in jobs} == {job_id("send", number) for number in range(30)}
    assert sorted(payloads(job.spec for job in jobs), key=lambda one: one["order"]) == ORDERS


def test_all_formats_give_the_same_jobs_with_a_map(cli: Stage, sqlite: Place, tmp_path: Path):
    mapped = ["--map", "n=cast(order as int)", "--map", "to=upper(to)", "--queue", "mail"]
    mapped += ["--option", "priorityColumn=level"]
    found = []
    for kind in ("parquet", "jsonl"):
        shown = cli(*command(sqlite, written(kind, tmp_path), *mapped, "--json")).json
        done = cli(*command(sqlite, written(kind, tmp_path), *mapped, "--yes", "--json")).json
        found.append((shown["jobs"], done["queued"], done["duplicates"], done["differing"]))
    text = [*mapped[:6], "--option", "priority=2"]  # all columns of a CSV file are text, and so its ids are others
    found.append(cli(*command(sqlite, written("csv", tmp_path), *text, "--yes", "--json")).json["queued"])

    assert found == [({"mail": {"send": 30}}, 30, 0, 0), ({"mail": {"send": 30}}, 0, 30, 0), 30]
    jobs = jobs_in(sqlite)
    assert numbers(jobs) == sorted([*range(30), *range(30)])
    assert {(job.priority, job.queue) for job in jobs} == {(0, "mail"), (1, "mail"), (2, "mail")}
    upper = {str(row["to"]).upper() for row in ORDERS}
    assert {payload["to"] for payload in payloads(job.spec for job in jobs)} == upper


def test_invalid_rows_are_shown_and_stop_the_load_or_go_to_a_table(
    spark: SparkSession, cli: Stage, sqlite: Place, tmp_path: Path
):
    bad = {"order": None, "to": "nobody", "level": 0}
    source = written("parquet", tmp_path, [*ORDERS[:5], bad])
    rejects = ("--rejects", str(tmp_path / "rejects"))

    shown = cli(*command(sqlite, source), ok=False)
    refused = cli(*command(sqlite, source, "--yes"), ok=False)
    assert (shown.code, refused.code) == (1, 1)
    assert "invalid: row 5 of partition 0: column 'order' is null, but idColumns needs it" in shown.err
    assert "use --yes to do it" not in shown.err and "--rejects DIR" in shown.err
    assert "cannot become a job: column 'order' is null" in refused.err
    assert jobs_in(sqlite) == []

    done = cli(*command(sqlite, source, *rejects, "--yes", "--json"), ok=False)
    assert (done.code, done.json["queued"], done.json["rejected"]) == (1, 5, 1)
    assert [row.to for row in spark.read.parquet(str(tmp_path / "rejects")).collect()] == ["nobody"]


def test_payloads_are_checked_by_the_app(cli: Stage, sqlite: Place, tmp_path: Path):
    mapped = ("--app", APP, "--map", "to=to", "--map", "n=level")

    good = cli(*command(sqlite, written("parquet", tmp_path), *mapped, "--json"))
    text = ("--app", APP, "--map", "to=to", "--map", "n=to")
    wrong = cli(*command(sqlite, written("parquet", tmp_path), *text), ok=False)

    assert (good.json["valid"], good.json["jobs"]) == (30, {"mail": {"send": 30}})  # the queue of the app's task
    assert wrong.code == 1 and wrong.err.count("invalid: row") == 10
    assert jobs_in(sqlite) == []


def test_what_cannot_work_is_refused_in_plain_words(cli: Stage, sqlite: Place, tmp_path: Path):
    source = written("jsonl", tmp_path)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"order": 1}\n{"order": \n', "utf-8")

    for arguments, text in [
        (("pipeline", "load", "--url", sqlite.url, "--task", "t"), "--from FORMAT:PATH --task NAME"),
        (("pipeline", "load", "--url", sqlite.url, "--task", "t", "--from", source), "by --id-columns"),
        (command(sqlite, "s3://bucket/x"), "is not FORMAT:PATH"),
        (command(sqlite, "parquet:nowhere"), "nowhere"),
        (command(sqlite, source, "--map", "order"), "--map 'order' needs a name and a value"),
        (command(sqlite, source, "--map", "x=missing"), "missing"),
        (command(sqlite, source, "--map", "x=(("), "Spark cannot read these rows"),
        (command(sqlite, source, "--option", "prioritty=3"), "Did you mean 'priority'?"),
        (command(sqlite, f"delta:{tmp_path}"), "--packages io.delta:delta-spark"),
        (command(sqlite, f"jsonl:{broken}", "--yes"), "Malformed"),
    ]:
        assert text in cli.refused(*arguments).err, arguments
    assert jobs_in(sqlite) == []
