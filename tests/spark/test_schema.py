"""The published schemas: whoever reads them today reads them tomorrow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.spark.schema import DEAD, EVENTS, JOBS, SCHEMA_VERSION, TABLES, table_named

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = (Path(__file__).parent / "schemas.txt").read_text(encoding="utf-8")


def test_the_schemas_are_as_published():
    """A column more goes to the end of its table and of schemas.txt. Anything else needs another SCHEMA_VERSION."""
    assert SCHEMA_VERSION == 1
    for name, table in TABLES.items():
        assert f"{name}: {table.ddl}\n" in PUBLISHED, name
    assert PUBLISHED.count("\n") == len(TABLES)


def test_events_have_the_columns_on_which_the_lake_is_built():
    assert EVENTS.ddl == (
        "job string NOT NULL, seq bigint NOT NULL, generation int NOT NULL, n int NOT NULL, kind string NOT NULL, "
        "at timestamp NOT NULL, queue string NOT NULL, task string NOT NULL, state string NOT NULL, "
        "attempt int NOT NULL, failures int NOT NULL, worker string, lease string, delay_ms bigint, reason string, "
        "error_type string, error_message string, error_traceback string, duration_ms bigint"
    )


@pytest.mark.parametrize("name", TABLES)
def test_arrow_and_spark_mean_the_same(name: str):
    """Spark compares what a task sends with its own idea of the schema, to the last name inside a list."""
    table = TABLES[name]

    assert to_arrow_schema(table.spark(), timezone="UTC") == table.arrow()


@pytest.mark.parametrize("name", TABLES)
def test_the_ddl_says_the_same_as_the_types(spark, name: str):
    table = TABLES[name]

    assert StructType.fromDDL(table.ddl) == table.spark()


def test_every_fact_of_an_event_is_in_the_table():
    columns = {re.sub(r"_ms$", "", name) for name in EVENTS.names}

    assert set(Event.__struct_fields__) - {"error"} <= columns


def test_a_table_can_be_pruned_and_reordered():
    assert JOBS.pruned(["state", "id"]).names == ("state", "id")
    for wrong in ([], ["id", "id"]):
        with pytest.raises(InvalidInput, match="each only once"):
            JOBS.pruned(wrong)
    with pytest.raises(InvalidInput, match="Did you mean 'died_at'"):
        DEAD.pruned(["dead_at"])
    with pytest.raises(InvalidInput, match="no table 'event'. Did you mean 'events'"):
        table_named("event")


@pytest.mark.parametrize("name", TABLES)
def test_the_documentation_lists_every_column(name: str):
    page = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    section = re.search(rf"^### `{name}`\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
    assert section is not None
    listed = re.findall(r"^\| `(\w+)` \| (.+?) \| (yes)? *\| (.*) \|$", section[1], re.MULTILINE)

    assert [(column, kind, bool(null), words) for column, kind, null, words in listed] == [
        (one.name, f"`{one.type}`", one.nullable, one.help) for one in TABLES[name].columns
    ]
