"""`millrace tail`: the store's events, from a cursor on."""

from __future__ import annotations

import json

import pytest

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
