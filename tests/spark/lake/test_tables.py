"""The tables of a lake against the same, computed event by event (DESIGN 7.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from millrace.domain.event import Event, Kind
from millrace.spark.lake import Lake
from tests.spark.lake import oracle


def ms(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value


def rows(found: DataFrame) -> list[dict[str, Any]]:
    names = found.columns
    return [{name: ms(value) for name, value in zip(names, row, strict=True)} for row in found.collect()]


def test_the_history_has_something_of_everything(events: Sequence[Event]) -> None:
    kinds = Counter(event.kind for event in events)

    assert set(kinds) == set(Kind) - {Kind.EVICTED}
    assert any(event.kind is Kind.CANCELLED and event.reason == "obliterated" for event in events)
    assert len({event.at // 86_400_000 for event in events}) > 1


def test_every_event_is_there_once(at_once: Lake, events: Sequence[Event]) -> None:
    found = {(row["seq"], row["n"]): (row["kind"], ms(row["at"])) for row in at_once.events().collect()}

    assert at_once.events().count() == len(events)
    assert found == {(event.seq, event.n): (event.kind.value, event.at) for event in events}


def test_every_run_that_ended_is_an_attempt(at_once: Lake, events: Sequence[Event]) -> None:
    expected = oracle.attempts(events)
    found = {(row["seq"], row["attempt"]): row for row in rows(at_once.attempts())}

    assert found.keys() == expected.keys()
    assert at_once.attempts().count() == len(expected)
    for key, wanted in expected.items():
        assert {name: found[key][name] for name in wanted} == wanted


def test_every_job_is_there_as_its_events_tell(at_once: Lake, events: Sequence[Event]) -> None:
    expected = oracle.jobs(events)
    found = {row["seq"]: row for row in rows(at_once.jobs())}

    assert found.keys() == expected.keys()
    for seq, wanted in expected.items():
        assert {name: found[seq][name] for name in wanted} == wanted


def test_what_is_open_is_what_waits_or_runs(at_once: Lake) -> None:
    live = {row["seq"]: row["attempts"] for row in rows(at_once.jobs()) if row["state"] in ("waiting", "running")}
    running = {row["seq"] for row in rows(at_once.jobs()) if row["state"] == "running"}
    found = {row["seq"]: row for row in rows(at_once.open_runs())}

    assert found.keys() == live.keys()
    assert {seq for seq, row in found.items() if row["claimed_at"] is not None} == running


def test_throughput_counts_every_event_in_its_minute(at_once: Lake, events: Sequence[Event]) -> None:
    expected = Counter((event.at // 60_000 * 60_000, event.queue, event.task, event.kind.value) for event in events)
    found = Counter[tuple[int, str, str, str]]()
    for row in rows(at_once.throughput()):
        for kind in Kind:
            found[row["at"], row["queue"], row["task"], kind.value] += row[kind.value]

    assert +found == expected


def test_hours_are_the_sums_of_their_minutes(at_once: Lake, events: Sequence[Event]) -> None:
    found = {row["at"]: 0 for row in rows(at_once.throughput(by="hour"))}
    for row in rows(at_once.throughput(by="hour")):
        found[row["at"]] += row["claimed"]

    assert found == {
        hour: sum(event.kind is Kind.CLAIMED for event in events if event.at // 3_600_000 * 3_600_000 == hour)
        for hour in {event.at // 3_600_000 * 3_600_000 for event in events}
    }
