"""The record of a job: what the statements select is what `record.py` expects, and no field of a job is left out."""

import re
import sqlite3
from contextlib import closing

import msgspec
import pytest

from millrace.domain.job import Attempt, Job, Spec, State
from millrace.domain.outcome import Failure
from millrace.store.postgres.migrate import functions
from millrace.store.postgres.sql import statements
from millrace.store.sql.record import (
    CLAIMED_COLUMNS,
    COLUMNS,
    LEASE,
    OPEN_COLUMNS,
    PACKED,
    claimed_job_from_row,
    encode_spec,
    job_from_row,
    open_job_from_row,
    pack,
    pack_beside_lease,
    unpack_into,
)
from millrace.store.sqlite.connection import SQL
from millrace.store.sqlite.file import SCHEMA
from tests.narrowing import the


def job(**facts):
    return Job(Spec("a", "work"), 1, 1, facts.pop("state", State.WAITING), 1000, 1000, **facts)


FACTS = {
    "stalls": 1,
    "snoozes": 2,
    "releases": 3,
    "replays": 4,
    "auto_retries": 5,
    "cancel_requested": True,
    "result_expired": True,
    "error": Failure("ValueError", "no"),
    "reason": "unknown",
    "attempts": (Attempt(1, 5),),
    "progress": b"1",
    "failed_parent": "p",
    "has_dependents": True,
    "carried": ("a", "b"),
    "log": b"[]",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("jobs_by_seq", COLUMNS), ("jobs_by_id", COLUMNS), ("ready_jobs", OPEN_COLUMNS)],
)
def test_sqlite_selects_the_columns_of_a_record(name, expected):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        columns = [column[0] for column in connection.execute(SQL[name], ("[]",)).description]
    assert [{"last_event": "newest"}.get(column, column) for column in columns] == list(expected)


def test_postgres_selects_the_columns_of_a_record_and_of_a_lease():
    view = re.search(r'VIEW "s".record AS\s+SELECT (.*?)\nFROM', functions("s"), re.DOTALL)
    columns = re.findall(r"(?:AS )?(\w+)(?:,|$)", re.sub(r"coalesce\([^)]*\)", "", the(view)[1]))
    assert columns == [*COLUMNS, *LEASE, "combo", "id"]
    assert "record" in statements("s")["look_at_seqs"]


def test_a_claim_on_the_fast_path_returns_the_columns_of_a_claimed_job():
    claim = re.search(r'"s".claim_plain\(.*?RETURNS TABLE \((.*?)\)', functions("s"), re.DOTALL)
    columns = [column.split()[0] for column in the(claim)[1].split(",")]
    assert [{"now": "started_at"}.get(column, column) for column in columns] == list(CLAIMED_COLUMNS)


def test_the_shorter_records_give_the_same_jobs():
    facts = dict.fromkeys([*COLUMNS, *LEASE]) | {
        "seq": 1,
        "generation": 2,
        "state": 0,
        "enqueued_at": 3,
        "available_at": 4,
        "expires_at": 5,
        "started_at": 6,
        "attempt": 7,
        "failures": 8,
        "blocked": 0,
        "events": 9,
        "extra": pack(job(stalls=1)),
        "newest": 10,
        "spec": encode_spec(Spec("a", "work")),
    }
    waiting = facts | {"line": "l:3", "place": 2, "open": True}
    assert open_job_from_row([waiting[name] for name in OPEN_COLUMNS]) == job_from_row([waiting[n] for n in COLUMNS])
    running = facts | {"worker": "w", "lease_id": "l", "lease_until": 11, "cancelling": False}
    claimed = claimed_job_from_row([running[name] for name in CLAIMED_COLUMNS], "w")
    assert claimed == job_from_row([running[name] for name in (*COLUMNS, *LEASE)])


def test_every_field_of_a_job_has_a_column_or_is_packed():
    derived = {"lane": "line", "in_line": "place", "holds": "place"}
    fields = {derived.get(field.name, field.name) for field in msgspec.structs.fields(Job)}
    assert fields - {"lost_worker"} <= {*COLUMNS, *PACKED}
    assert FACTS.keys() == set(PACKED)


def test_a_job_without_rare_facts_packs_nothing():
    assert pack(job()) is None
    assert pack_beside_lease(job(cancel_requested=True, progress=b"1", state=State.RUNNING)) is None


@pytest.mark.parametrize("name", FACTS)
def test_every_rare_fact_comes_back(name):
    found = job()
    unpack_into(found, the(pack(job(**{name: FACTS[name]}))))
    assert found == job(**{name: FACTS[name]})


def test_a_lease_has_its_own_facts():
    packed = the(pack_beside_lease(job(**FACTS, state=State.RUNNING)))
    found = job(state=State.RUNNING)
    unpack_into(found, packed)
    assert found == job(**{**FACTS, "cancel_requested": False, "progress": None}, state=State.RUNNING)
    spec = msgspec.msgpack.encode(Spec("a", "work"))
    row = [1, 1, 0, 1000, 1000, None, 5, None, 1, 0, 0, 2, None, False, None, "w", "l", 9, False, None, None, None]
    from_row = job_from_row([*row, packed, 7, None, spec, True, b"1", 3, "a"])
    assert (from_row.state, from_row.cancel_requested, from_row.progress) == (State.RUNNING, True, b"1")
    assert from_row.error == FACTS["error"]
