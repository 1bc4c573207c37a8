"""Statements that the shared unit of work runs: each store has them, with as many arguments."""

import re
from pathlib import Path

import pytest

import millrace.store.sql
from millrace.store.postgres.sql import statements
from millrace.store.sqlite.connection import _STATEMENTS, many_rows

SHARED = Path(millrace.store.sql.__file__).parent
RUN = re.compile(r"\b(rows|rows_of|write|delete|value|seqs)\(\s*\"(\w+)\"")
ONLY_ALONE = {"any_dependency", "any_past"}  # asked only where no other step runs meanwhile
WALKS = {name + back for name in ("walk_all", "walk_key", "walk_group") for back in ("", "_back")}
BY_UPKEEP = {"entering", "expiring", "dead_shown", "due_retries", "dead", "finished", "expired_results"}
MORE_COLUMNS = {"put_worker"}  # PostgreSQL has columns for what a record says


def run_by_the_unit():
    found = {(how, name) for file in SHARED.glob("*.py") for how, name in RUN.findall(file.read_text("utf-8"))}
    return sorted(found | {("seqs", name) for name in WALKS | BY_UPKEEP})


@pytest.mark.parametrize(("how", "name"), [(how, name) for how, name in run_by_the_unit() if name not in ONLY_ALONE])
def test_both_stores_have_the_statement_with_as_many_arguments(how, name):
    postgres = len(set(re.findall(r"\$\d+", statements("s")[name])))
    if how == "write":
        assert many_rows(name).width == postgres
    elif how in ("rows_of", "delete"):
        assert len(set(_STATEMENTS[name][1])) == 1  # a JSON list of all keys
        assert postgres > 1
    elif name not in MORE_COLUMNS:
        assert len(set(_STATEMENTS[name][1])) == postgres


def test_the_statements_of_the_unit_are_found():
    assert {"children", "members", "past", "put_lines", "drop_holds", "schedules"} <= {n for _, n in run_by_the_unit()}
