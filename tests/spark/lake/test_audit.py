"""The conservation audit finds what is broken, in each way that it can be, and names the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millrace.domain.event import Event, Kind
from millrace.domain.job import Job
from millrace.spark.lake import Lake
from millrace.spark.lake.audit import audit
from millrace.spark.lake.audit_store import differences
from millrace.spark.lake.lives import broken_steps
from tests.spark.lake.history import an_event, frame
from tests.spark.lake.test_take import copied

HELD: dict[str, Any] = {"attempt": 1, "lease": "a", "worker": "w"}


def a_run(seq: int, end: Kind = Kind.COMPLETED, **facts: Any) -> list[Event]:
    return [
        an_event(1, Kind.ENQUEUED, seq=seq),
        an_event(2, Kind.CLAIMED, seq=seq, **HELD),
        an_event(3, end, seq=seq, **{**HELD, **facts}),
    ]


BROKEN: dict[str, tuple[set[str], list[Event]]] = {
    "sound": (set(), a_run(1)),
    "retried": (set(), a_run(2, Kind.RETRIED, failures=1)),
    "cut off": (set(), a_run(3, Kind.CANCELLED, lease=None, worker=None, reason="obliterated")),
    "cut off by nobody": ({"fence"}, a_run(17, Kind.CANCELLED, lease=None, worker=None)),
    "taken over": (
        set(),
        [
            *a_run(4)[:2],
            an_event(3, Kind.RECLAIMED, seq=4, **{**HELD, "lease": "r"}),
            an_event(4, Kind.BURIED, seq=4, failures=1, **{**HELD, "lease": "r"}),
        ],
    ),
    "two leases": ({"two_leases"}, [*a_run(5)[:2], an_event(3, Kind.CLAIMED, seq=5, attempt=2, lease="b", worker="v")]),
    "finished and runs": (
        {"transition"},
        [*a_run(6), an_event(4, Kind.CLAIMED, seq=6, attempt=2, lease="b", worker="v")],
    ),
    "never begun": ({"beginning"}, [an_event(1, Kind.CLAIMED, seq=7, **HELD)]),
    "by another": ({"fence"}, a_run(8, lease="somebody else's")),
    "by nobody": ({"fence"}, a_run(9, lease=None)),
    "to nowhere": ({"transition"}, a_run(10, Kind.COMPLETED, state="waiting")),
    "an attempt too many": ({"attempt"}, a_run(11, attempt=3)),
    "a failure too many": ({"failures"}, a_run(12, failures=2)),
    "a failure uncounted": ({"failures"}, a_run(13, Kind.RETRIED)),
    "a number twice": ({"numbering"}, [*a_run(14), an_event(3, Kind.COMPLETED, seq=14, **HELD)]),
    "after the end": (
        {"after_the_end"},
        [
            *a_run(15),
            an_event(4, Kind.PRUNED, seq=15, attempt=1, state="completed"),
            an_event(5, Kind.REPLAYED, seq=15, attempt=1),
        ],
    ),
    "a number left out": (set(), [*a_run(16)[:2], an_event(4, Kind.COMPLETED, seq=16, **HELD)]),  # counted elsewhere
}


def test_every_way_to_break_a_life_is_found(spark: SparkSession) -> None:
    events = [event for _, life in BROKEN.values() for event in life]

    found: dict[str, set[str]] = {}
    for row in broken_steps(frame(spark, events)).collect():
        found.setdefault(row["job"], set()).add(row["rule"])

    assert found == {life[0].job: rules for rules, life in BROKEN.values() if rules}


def test_a_busy_history_is_sound(at_once: Lake, history: tuple[list[Event], list[Job]]) -> None:
    verdict = audit(at_once)

    events, records = history
    assert (verdict.sound, verdict.findings) == (True, [])
    assert verdict.figures["accepted"] == sum(event.kind is Kind.ENQUEUED for event in events)
    assert verdict.figures["live"] + verdict.figures["finished"] == len(records)
    assert verdict.figures["removed"] == verdict.figures["known"] - len(records)


def test_a_file_that_was_deleted_is_named_and_so_are_its_jobs(
    spark: SparkSession, at_once: Lake, events: Sequence[Event], tmp_path: Path
) -> None:
    place = copied(at_once, tmp_path)
    lost = [file for file in place.require().of("events") if file.day == "2023-11-15"]
    for file in lost:
        (Path(place.location.root) / "events" / file.path).unlink()
    expected = {event.job for event in events if event.at >= 1_700_006_400_000}

    verdict = audit(Lake(place.location.root, spark))

    assert not verdict.sound
    told = [finding.text for finding in verdict.findings if finding.rule == "files"]
    assert len(told) == len(lost) and all(any(file.path in text for text in told) for file in lost)
    assert verdict.broken["rows"] == len({event.seq for event in events if event.at >= 1_700_006_400_000})
    named = {finding.job for finding in verdict.findings if finding.rule == "rows"}
    assert named and named <= expected


def test_events_that_were_never_taken_are_missed(spark: SparkSession, at_once: Lake, tmp_path: Path) -> None:
    """A file of the table jobs holds what a run took: without it, numbers are missing, or jobs."""
    place = copied(at_once, tmp_path)
    for file in place.require().of("jobs"):
        (Path(place.location.root) / "jobs" / file.path).unlink()

    verdict = audit(Lake(place.location.root, spark))

    assert not verdict.sound
    assert verdict.broken["rows"] == at_once.jobs().count()


def test_the_store_is_compared_with_its_history(spark: SparkSession) -> None:
    known = [
        (1, "same", "completed", None, 3, None),
        (2, "vanished", "waiting", None, 1, None),
        (3, "came back", "completed", 9, 4, None),
        (4, "behind", "waiting", None, 1, None),
        (5, "ahead", "completed", None, 3, None),
        (6, "differs", "completed", None, 3, None),
        (7, "moved on", "completed", None, 3, True),
        (8, "moved and gone", "completed", 9, 4, True),
        (9, "removed", "completed", 9, 4, None),
    ]
    records = [
        (1, "same", 3, "completed"),
        (3, "came back", 4, "completed"),
        (4, "behind", 2, "running"),
        (5, "ahead", 2, "running"),
        (6, "differs", 3, "dead"),
        (7, "moved on", 2, "running"),
        (8, "moved and gone", 3, "completed"),
        (10, "without history", 1, "waiting"),
    ]
    told = spark.createDataFrame(known, "seq long, job string, state string, pruned_at long, last_n int, moved boolean")
    there = spark.createDataFrame(records, "seq long, id string, events int, state string")

    found = {row["job"]: row["rule"] for row in differences(told, there, whole=True).collect()}

    assert found == {
        "vanished": "vanished",
        "came back": "came_back",
        "behind": "behind",
        "ahead": "ahead",
        "differs": "differs",
        "without history": "without_history",
    }
