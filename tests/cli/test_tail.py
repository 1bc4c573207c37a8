"""`millrace tail`: the store's events, from a cursor on."""

from __future__ import annotations

import json
from typing import Any

import pytest

import millrace.cli.jobs.tail
from millrace.store.memory import MemoryStore
from millrace.store.object.store import ObjectStore
from millrace.store.sqlite import SqliteStore
from tests.cli.stage import Ran, Stage


@pytest.fixture
def busy(cli: Stage) -> Stage:
    for number in range(4):
        cli("submit", "pack", "--id", f"job-{number}", "--queue", "a" if number % 2 else "b")
    cli("cancel", "job-0")
    return cli


def lines(ran: Ran) -> list[dict[str, object]]:
    return [json.loads(line) for line in ran.out.splitlines()]


def test_it_begins_with_the_latest(busy: Stage):
    events = lines(busy("tail", "--no-follow", "--lines", "2", "--json"))

    assert [(event["job"], event["kind"]) for event in events] == [("job-3", "enqueued"), ("job-0", "cancelled")]


def test_all_of_it_ends_with_a_cursor_to_go_on_from(busy: Stage):
    events = lines(busy("tail", "--all", "--no-follow", "--json"))
    assert [event["kind"] for event in events] == ["enqueued"] * 4 + ["cancelled"]
    cursor = events[-1]["cursor"]
    assert isinstance(cursor, str)

    busy("submit", "pack", "--id", "new")

    assert [event["job"] for event in lines(busy("tail", "--cursor", cursor, "--no-follow", "--json"))] == ["new"]


def test_a_page_that_is_cut_short_promises_no_cursor(busy: Stage):
    """Whoever resumed from it would miss the rest of the page."""
    events = lines(busy("tail", "--all", "--limit", "2", "--json"))

    assert [event["cursor"] for event in events] == [None, None]


def test_it_can_be_narrowed(busy: Stage):
    ran = busy("tail", "--all", "--no-follow", "--queue", "b", "--kind", "enqueued", "--json")
    assert [event["job"] for event in lines(ran)] == ["job-0", "job-2"]

    ran = busy("tail", "--no-follow", "--job", "job-0")
    assert [line.split("\t")[1].strip() for line in ran.out.splitlines()] == ["enqueued", "cancelled"]


def test_following_ends_once_it_has_shown_as_many_as_asked_for(busy: Stage):
    assert len(lines(busy("tail", "--all", "--limit", "5", "--json"))) == 5


@pytest.mark.parametrize(
    "arguments", [("--kind", "exploded"), ("--cursor", "x"), ("--cursor", "1", "--all"), ("--lines", "-1")]
)
def test_what_can_never_be_right_is_wrong_usage(cli: Stage, arguments: tuple[str, ...]):
    assert cli.refused("tail", "--no-follow", *arguments).code == 2


def test_from_now_on_it_reads_nothing_of_what_was(busy: Stage, monkeypatch: pytest.MonkeyPatch):
    asked: list[str | None] = []

    def spied(events: Any) -> Any:
        async def spy(self: Any, cursor: str | None, limit: int) -> Any:
            asked.append(cursor)
            return await events(self, cursor, limit)

        return spy

    for store in (MemoryStore, SqliteStore, ObjectStore):
        monkeypatch.setattr(store, "events", spied(store.events))

    assert busy("tail", "--no-follow", "--lines", "0", "--json").out == ""
    assert [str(cursor).partition("-")[0] for cursor in asked] == ["end", "5"]


def test_it_looks_back_only_as_far_as_it_has_to(busy: Stage, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []

    def spied(events_before: Any) -> Any:
        async def spy(self: Any, cursor: str | None, limit: int) -> Any:
            found, further = await events_before(self, cursor, limit)
            seen.append(len(found))
            return found, further

        return spy

    for store in (MemoryStore, SqliteStore, ObjectStore):
        monkeypatch.setattr(store, "events_before", spied(store.events_before))
    monkeypatch.setattr(millrace.cli.jobs.tail, "LOOK_BACK", 2)

    events = lines(busy("tail", "--no-follow", "--lines", "2", "--json"))
    assert [event["job"] for event in events] == ["job-3", "job-0"]
    assert sum(seen) == 2

    events = lines(busy("tail", "--no-follow", "--lines", "2", "--queue", "a", "--json"))
    assert [event["job"] for event in events] == ["job-1", "job-3"]  # further back than the first look


def test_what_comes_after_the_lines_it_began_with_is_not_missed_and_not_doubled(busy: Stage):
    *_, last = lines(busy("tail", "--no-follow", "--lines", "3", "--json"))
    assert isinstance(last["cursor"], str)
    busy("submit", "pack", "--id", "new")

    assert [one["job"] for one in lines(busy("tail", "--cursor", last["cursor"], "--no-follow", "--json"))] == ["new"]


def test_a_cursor_that_is_none_is_refused_in_words_of_the_command_line(busy: Stage):
    assert "None" not in busy.refused("tail", "--no-follow", "--cursor", "x").err
