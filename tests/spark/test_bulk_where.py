"""Predicates over jobs: which rows they choose, on rows made by hand, and what is said of those that make no sense."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace.domain.errors import InvalidInput
from millrace.spark.bulk import action_named
from millrace.spark.bulk_where import SELECTED, chosen, understood
from millrace.spark.schema import JOBS
from millrace.views.bulk import ACTIONS

DAY = datetime(2026, 11, 15, tzinfo=UTC)
TYPES = {column.name: column.type for column in JOBS.columns}
COLUMNS = [*("id", "seq", "queue", "task", "state", "group", "archived", "cancel_requested", "finished_at", "replays")]
COLUMNS += ["error_type", "error_message", "payload"]
ROWS: list[tuple[Any, ...]] = [
    ("timed-out", 1, "mail", "send", "dead", "a", False, False, DAY, 0, "Timeout", "timeout of 5 s", b'{"n": 1}'),
    ("refused", 2, "mail", "send", "dead", None, False, False, DAY, 1, "ValueError", "no", b'{"n": 2}'),
    ("hidden", 3, "mail", "send", "dead", None, True, False, DAY, 0, "Timeout", "timeout of 9 s", b'{"n": 3}'),
    ("fine", 4, "mail", "send", "completed", None, False, False, DAY, 0, None, None, b'{"n": 4}'),
    ("waits", 5, "mail", "pack", "waiting", None, False, False, None, 0, None, None, b'{"n": 5}'),
    ("runs", 6, "mail", "pack", "running", None, False, False, None, 0, None, None, b'{"n": 6}'),
    ("ending", 7, "mail", "pack", "running", None, False, True, None, 0, None, None, b'{"n": 7}'),
]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, ", ".join(f"`{name}` {TYPES[name]}" for name in COLUMNS))


def ids(rows: DataFrame, where: str, operation: str = "replay", also_running: bool = False) -> list[str]:
    deed = action_named(operation, also_running)
    found = chosen(rows, understood(rows.sparkSession, where, "jobs", deed), deed)
    return sorted(row.id for row in found.collect())


def test_a_replay_means_dead_jobs_unless_the_predicate_speaks_of_the_state(rows: DataFrame) -> None:
    assert ids(rows, "task = 'send'") == ["refused", "timed-out"]
    assert ids(rows, "task = 'send' and STATE <> 'cancelled'") == ["fine", "refused", "timed-out"]
    assert ids(rows, "task = 'send' or error like '%state archived%'") == ["refused", "timed-out"]  # only as text
    assert ids(rows, "archived or not archived") == ["hidden", "refused", "timed-out"]
    assert ids(rows, "state = 'waiting'") == []  # it could not be done


def test_other_operations_mean_the_jobs_they_can_be_done_to(rows: DataFrame) -> None:
    assert ids(rows, "true", "cancel") == ["waits"]
    assert ids(rows, "true", "cancel", also_running=True) == ["runs", "waits"]
    assert ids(rows, "true", "archive") == ["fine", "refused", "timed-out"]
    assert ids(rows, "archived or not archived", "archive") == ["fine", "refused", "timed-out"]
    assert ids(rows, "true", "unarchive") == ["hidden"]


def test_aliases_say_what_columns_say_only_together(rows: DataFrame) -> None:
    assert ids(rows, "error like 'Timeout: timeout%'") == ["timed-out"]
    assert ids(rows, "error is null", "archive") == ["fine"]
    assert ids(rows, "payload_text like '%2%' or died_at < '2026-01-01'") == ["refused"]
    assert ids(rows, "group = 'a'") == ["timed-out"]


def test_the_predicate_stays_one_whatever_it_is_made_of(rows: DataFrame) -> None:
    assert ids(rows, "id = 'waits' or true -- and then", "archive") == ["fine", "refused", "timed-out"]


def test_what_is_selected_has_the_declared_columns(spark: SparkSession, rows: DataFrame) -> None:
    deed = ACTIONS["replay"]

    found = chosen(rows, understood(spark, "id = 'refused'", "jobs", deed), deed)

    assert [(field.name, field.dataType) for field in found.schema] == [
        (field.name, field.dataType) for field in spark.createDataFrame([], SELECTED).schema
    ]
    assert [tuple(row) for row in found.collect()] == [
        ("refused", 2, "mail", "send", "dead", "ValueError: no", int(DAY.timestamp() * 1000), 1)
    ]


def test_what_a_predicate_does_not_speak_of_is_not_read(spark: SparkSession) -> None:
    def read(where: str) -> set[str]:
        return set(understood(spark, where, "jobs", ACTIONS["replay"]).columns)

    assert not {"payload", "result", "headers", "group"} & read("task = 'send' and died_at is not null")
    assert "payload" in read("Payload_Text like '%x%'") and "result" not in read("payload_text = ''")
    assert read("to_json(struct(*)) like '%x%'") == set(JOBS.names)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("taks = 'send'", "`taks` cannot be resolved"),
        ("task = ", "Syntax error"),
        ("task", "task"),
        ("count(*) > 3", "count"),
        ("fingerprint = 'x'", "fingerprint is in the table dead: choose that one (--table dead)"),
    ],
)
def test_a_predicate_that_makes_no_sense_is_answered_with_the_columns(
    spark: SparkSession, where: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        understood(spark, where, "jobs", ACTIONS["replay"])

    assert said in str(error.value)
    assert "The columns of jobs are: after, archived, attempt, " in str(error.value)
    assert ", error, " in str(error.value) and ", task, " in str(error.value)
    assert "SQLSTATE" not in str(error.value) and "\n" not in str(error.value)


def test_a_table_or_an_operation_that_cannot_be_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="nothing in the table dead can be cancelled"):
        understood(spark, "true", "dead", ACTIONS["cancel"])
    with pytest.raises(InvalidInput, match="from the table jobs or dead, not events"):
        understood(spark, "true", "events", ACTIONS["replay"])
    with pytest.raises(InvalidInput, match="the predicate is empty"):
        understood(spark, "  ", "jobs", ACTIONS["replay"])
    with pytest.raises(InvalidInput, match="there is no operation 'reply'"):
        action_named("reply")
    with pytest.raises(InvalidInput, match="running jobs cannot be archived"):
        action_named("archive", also_running=True)
