"""The audit on Spark and `millrace.domain.audit` say the same of the same histories, legal and broken ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millrace.domain.audit import Evidence, check
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, Spec, State
from millrace.domain.rules.legal import GRANTS, LAST, LEGAL, MAY_FAIL, UNDER_A_LEASE
from millrace.spark.lake.audit_store import differences
from millrace.spark.lake.jobs import job_parts, jobs
from millrace.spark.lake.lives import broken_steps
from millrace.spark.lake.steps import by_run, gathered
from tests.spark.lake.history import BEGIN, frame

HISTORIES = 600
RULES = {"numbering", "beginning", "after_the_end", "transition", "two_leases", "lease", "fence", "attempt", "failures"}
SAME = {"finished_runs": "transition", "cancelled_starts": "transition"}
Break = Callable[[random.Random, list[Event]], list[Event]]


def a_legal_history(chance: random.Random, seq: int) -> list[Event]:
    """A walk through the table of legal steps."""
    events = [Event(f"job-{seq}", seq, 1, 1, Kind.ENQUEUED, BEGIN, "mail", "send", "waiting")]
    held: str | None = None
    for n in range(2, chance.randrange(3, 12)):
        last = events[-1]
        if last.kind in LAST:
            break
        kind = chance.choice([kind for kind, (froms, _) in LEGAL.items() if State(last.state) in froms])
        if kind in GRANTS:
            held = f"lease-{seq}-{n}"
        facts: dict[str, Any] = {"lease": None, "reason": None}
        if kind in GRANTS or (last.state == "running" and kind in (*UNDER_A_LEASE, Kind.CANCELLED)):
            facts["lease"] = held
        if kind is Kind.CANCELLED and last.state == "running" and chance.random() < 0.5:
            facts = {"lease": None, "reason": "obliterated"}
        failures = 0 if kind is Kind.REPLAYED else last.failures + chance.choice(MAY_FAIL.get(kind, (0,)))
        state = (LEGAL[kind][1] or State(last.state)).value
        attempt = last.attempt + (kind is Kind.CLAIMED)
        at = BEGIN + n * 1_000
        events.append(replace(last, n=n, kind=kind, at=at, state=state, attempt=attempt, failures=failures, **facts))
    return events


def changed(fact: str, value: Callable[[random.Random, Event], Any]) -> Break:
    def doctor(chance: random.Random, events: list[Event]) -> list[Event]:
        at = chance.randrange(len(events))
        wrong = replace(events[at], **{fact: value(chance, events[at])})
        return [*events[:at], wrong, *events[at + 1 :]]

    return doctor


def one_left_out(chance: random.Random, events: list[Event]) -> list[Event]:
    at = chance.randrange(len(events))
    return events[:at] + events[at + 1 :] or events


def one_twice(chance: random.Random, events: list[Event]) -> list[Event]:
    at = chance.randrange(len(events))
    return events[: at + 1] + events[at:]


def one_more(chance: random.Random, events: list[Event]) -> list[Event]:
    last, kind = events[-1], chance.choice(list(Kind))
    state = (LEGAL.get(kind, (None, None))[1] or State(last.state)).value
    lease, attempt = chance.choice((None, "another")), last.attempt + (kind is Kind.CLAIMED)
    return [*events, replace(last, n=last.n + 1, at=last.at + 1, kind=kind, state=state, lease=lease, attempt=attempt)]


BREAKS: dict[str, Break] = {
    "kind": changed("kind", lambda chance, _: chance.choice(list(Kind))),
    "state": changed("state", lambda chance, _: chance.choice(list(State)).value),
    "attempt": changed("attempt", lambda chance, event: event.attempt + chance.choice((-1, 1))),
    "failures": changed("failures", lambda chance, event: event.failures + chance.choice((-1, 1, 2))),
    "lease": changed("lease", lambda chance, _: chance.choice((None, "another"))),
    "reason": changed("reason", lambda chance, _: chance.choice((None, "obliterated"))),
    "one left out": one_left_out,
    "one twice": one_twice,
    "one more": one_more,
}


@pytest.fixture(scope="module")
def histories() -> dict[int, list[Event]]:
    """Each third is legal; of the others one fact is changed, or two."""
    made: dict[int, list[Event]] = {}
    for seq in range(1, HISTORIES + 1):
        chance = random.Random(seq)
        made[seq] = a_legal_history(chance, seq)
        for _ in range(seq % 3):
            made[seq] = BREAKS[chance.choice(list(BREAKS))](chance, sorted(made[seq], key=lambda event: event.n))
    return made


def names(events: list[Event], records: list[Job]) -> set[str]:
    return {SAME.get(found.name, found.name) for found in check(Evidence(records, events))}


def has_a_gap(events: list[Event]) -> bool:
    return [event.n for event in events] != list(range(1, len(events) + 1))


@pytest.fixture(scope="module")
def on_spark(spark: SparkSession, histories: dict[int, list[Event]]) -> dict[int, set[str]]:
    """The rules that Spark finds broken, by history."""
    found: dict[int, set[str]] = {seq: set() for seq in histories}
    for row in broken_steps(frame(spark, (event for events in histories.values() for event in events))).collect():
        found[row["seq"]].add(row["rule"])
    return found


def test_every_history_is_judged_alike(histories: dict[int, list[Event]], on_spark: dict[int, set[str]]) -> None:
    here = {seq: names(events, []) & RULES for seq, events in histories.items()}

    whole = [seq for seq, events in histories.items() if not has_a_gap(events)]
    assert {seq: on_spark[seq] for seq in whole} == {seq: here[seq] for seq in whole}
    assert [seq for seq in histories if not on_spark[seq] <= here[seq]] == []  # of a gap Spark judges only both sides
    found = {rule: sum(rule in rules for rules in here.values()) for rule in RULES}
    assert min(found.values()) >= 5, found
    assert sum(not rules for rules in here.values()) >= HISTORIES / 3


def test_numbers_that_are_missing_or_there_twice_are_counted_alike(
    spark: SparkSession, histories: dict[int, list[Event]], on_spark: dict[int, set[str]]
) -> None:
    """A number that is there twice may hide one that is missing from the count; the rule finds that one."""
    told = frame(spark, (event for events in histories.values() for event in events))
    known = jobs(job_parts(gathered(by_run(told), 2)))

    missing = {row["seq"] for row in known.where("last_n != events").select("seq").collect()}

    missing |= {seq for seq, rules in on_spark.items() if "numbering" in rules}
    assert missing == {seq for seq, events in histories.items() if has_a_gap(events)}
    assert all(names(histories[seq], []) & {"numbering", "beginning"} for seq in missing)


def test_records_are_compared_alike(spark: SparkSession) -> None:
    """By rule of the lake: what the checker calls it."""
    alike = {"vanished": "lost", "came_back": "lost", "without_history": "without_events"}
    alike |= dict.fromkeys(("behind", "ahead", "differs"), "record")
    events: list[Event] = []
    records: list[Job] = []
    for seq in range(1, 121):
        history = a_legal_history(random.Random(seq), seq)
        record = a_record(history)
        match seq % 6:
            case 0:
                record.events += 1
            case 1:
                record.events -= 1
            case 2:
                record.state = next(state for state in State if state != record.state)
            case _:
                pass
        if seq % 6 != 4:  # of the fourth the record is gone, unless it was removed anyway
            records.append(record)
        if seq % 6 != 5:  # of the fifth there is only the record
            events += history

    known = jobs(job_parts(gathered(by_run(frame(spark, events)), 2))).withColumn("moved", F.lit(None).cast("boolean"))
    rows = [(job.seq, job.id, job.events, job.state.value) for job in records]
    there = spark.createDataFrame(rows, "seq long, id string, events int, state string")
    on_spark = {row["job"]: row["rule"] for row in differences(known, there, whole=True).collect()}
    here: dict[str, set[str]] = {}
    for found in check(Evidence(records, events)):
        here.setdefault(found.where, set()).add(found.name)

    told = set(alike.values())
    assert {job: alike[rule] for job, rule in on_spark.items()}.keys() == {job for job in here if here[job] & told}
    assert [job for job, rule in on_spark.items() if alike[rule] not in here[job]] == []
    assert set(on_spark.values()) == set(alike)


def a_record(history: list[Event]) -> Job:
    last = history[-1]
    job = Job(Spec(last.job, last.task, last.queue), last.seq, 1, State(last.state), BEGIN, BEGIN)
    job.attempt, job.failures, job.events = last.attempt, last.failures, last.n
    job.lease_id = last.lease if last.state == "running" else None
    job.archived = next((e.kind is Kind.ARCHIVED for e in reversed(history) if e.kind in _HIDES), False)
    return job


_HIDES = (Kind.ARCHIVED, Kind.UNARCHIVED, Kind.REPLAYED)
