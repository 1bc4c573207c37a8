"""Looking: status, history, list (O-31), and what a reader of the output may rely on."""

from __future__ import annotations

import pytest

from millrace.domain.job import ALIASES
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


@pytest.fixture
def shop(cli: Stage) -> Stage:
    """A job in nearly every state."""
    cli("submit", "send_email", '{"to": "ada"}', "--id", "done", *SHOP)
    cli("submit", "charge", '{"card": 1}', "--id", "broke", *SHOP)
    cli("worker", "--burst", *SHOP)
    cli("submit", "send_email", '{"to": "bob"}', "--id", "later", "--delay", "1h", "--key", "bob", *SHOP)
    cli("submit", "send_email", '{"to": "eve"}', "--id", "child", "--after", "later", "--group", "eve", *SHOP)
    cli("submit", "pack", "--id", "now", *SHOP)
    cli("submit", "pack", "--id", "gone", *SHOP)
    cli("cancel", "gone")
    return cli


def states(cli: Stage, *arguments: str) -> dict[str, str]:
    return {job["id"]: job["state"] for job in cli("list", *arguments, "--json").json["jobs"]}


def test_a_list_shows_every_job_newest_first(shop: Stage):
    assert list(states(shop).items()) == [
        ("gone", "cancelled"),
        ("now", "ready"),
        ("child", "blocked"),
        ("later", "scheduled"),
        ("broke", "dead"),
        ("done", "completed"),
    ]
    assert next(iter(states(shop, "--oldest"))) == "done"


def test_a_list_is_sorted_by_last_change(cli: Stage):
    """O-27"""
    for job in ("a", "b", "c"):
        cli("submit", "pack", "--id", job)
    cli("cancel", "a")

    def ids(*flags: str) -> list[str]:
        return [row["id"] for row in cli("list", "--sort", "changed", *flags).rows]

    assert ids() == ["a", "c", "b"]
    assert ids("--status", "ready") == ["c", "b"]
    first = cli("list", "--sort", "changed", "--limit", "2", "--json").json
    assert ids("--cursor", first["cursor"]) == ["b"]
    assert "oldest" in cli.refused("list", "--sort", "changed", "--oldest").err
    assert "enqueued or changed" in cli.refused("list", "--sort", "size").err


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (("--status", "dead"), {"broke"}),
        (("--status", "waiting"), {"now", "child", "later"}),
        (("--status", "READY"), {"now"}),
        (("--queue", "mail"), {"done", "later", "child"}),
        (("--task", "pack"), {"now", "gone"}),
        (("--type", "pack", "--state", "cancelled"), {"gone"}),
        (("--group", "eve"), {"child"}),
        (("--key", "bob"), {"later"}),
        (("--since", "1h"), {"done", "broke", "later", "child", "now", "gone"}),
        (("--until", "1h"), set()),
        (("--since", "2099-01-01"), set()),
        (("--finished-from", "1h"), {"done", "broke", "gone"}),
        (("--finished-from", "1h", "--status", "dead"), {"broke"}),
        (("--finished-to", "1h"), set()),
        (("--status", "archived"), set()),
    ],
)
def test_a_list_is_narrowed(shop: Stage, filters: tuple[str, ...], ids: set[str]):
    assert set(states(shop, *filters)) == ids


@pytest.mark.parametrize(("alias", "word"), sorted(ALIASES.items()))
def test_words_of_the_designs_mean_what_they_mean_there(shop: Stage, alias: str, word: str):
    assert states(shop, "--status", alias) == states(shop, "--status", word)


def test_pages_follow_each_other_without_a_gap(shop: Stage):
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        page = shop("list", "--limit", "4", *cursor, "--json").json
        seen += [job["id"] for job in page["jobs"]]
        if page["cursor"] is None:
            break
        cursor = ["--cursor", page["cursor"]]

    assert seen == ["gone", "now", "child", "later", "broke", "done"]
    assert "--cursor" in shop("list", "--limit", "4").err


def test_in_a_pipe_a_list_is_columns_between_tabs(shop: Stage):
    rows = shop("list").rows

    assert [row["id"] for row in rows] == ["gone", "now", "child", "later", "broke", "done"]
    assert rows[4]["details"] == "max_attempts_exceeded ValueError: card 1 was refused"
    assert all(row["enqueued"].endswith("Z") for row in rows)


def test_status_shows_a_result(shop: Stage):
    job = shop("status", "done", "--json").json

    assert (job["state"], job["result"], job["attempt"]) == ("completed", "sent to ada", 1)


def test_status_shows_what_a_job_died_of(shop: Stage):
    job = shop("status", "broke", "--json").json

    assert (job["state"], job["reason"], job["error"]["type"]) == ("dead", "max_attempts_exceeded", "ValueError")
    assert "card 1 was refused" in job["error"]["traceback"]
    assert "ValueError: card 1 was refused" in shop("status", "broke").out


def test_status_of_several_shows_those_that_are_there_and_says_which_is_not(shop: Stage):
    ran = shop.refused("status", "done", "nowhere", "--json")

    assert ran.code == 1
    assert [job["id"] for job in ran.json] == ["done"]
    assert "'nowhere'" in ran.err
    assert shop.refused("status", "nowhere", "--json").json is None


def why(cli: Stage, job: str) -> str:
    return " ".join(cli("status", job, "--json").json["why"])


def test_status_says_why_a_job_does_not_run(shop: Stage):
    assert "due in 5" in why(shop, "later")
    assert "waits for 1 other job: later" in why(shop, "child")
    assert "no worker is alive" in why(shop, "now")
    assert why(shop, "done") == ""

    shop("pause", "default")
    assert "queue default is paused" in why(shop, "now")


def test_status_says_that_a_line_is_held_by_another(cli: Stage):
    cli("submit", "pack", "--id", "first", "--group", "g")
    cli("submit", "pack", "--id", "second", "--group", "g")
    cli("queues", "default", "--set", "max_running=0")

    assert "limit is 0" in why(cli, "second")


def test_history_tells_every_step(shop: Stage):
    events = shop("history", "broke", "--json").json

    assert [event["kind"] for event in events] == ["enqueued", "claimed", "buried"]
    assert [row["kind"] for row in shop("history", "broke").rows] == ["enqueued", "claimed", "buried"]
    assert shop.refused("history", "nowhere").code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--status", "sleeping"),
        ("list", "--limit", "0"),
        ("list", "--limit", "many"),
        ("list", "--cursor", "x"),
        ("list", "--since", "yesterday"),
        ("list", "--since", "2026-02-30"),
        ("list", "--finished-from", "2026-02-30"),
        ("list", "--queue", "a b"),
        ("status",),
        ("history",),
        ("status", "x", "--wait", "long"),
    ],
)
def test_what_can_never_be_right_is_wrong_usage(cli: Stage, arguments: tuple[str, ...]):
    ran = cli.refused(*arguments)

    assert (ran.code, ran.out) == (2, "")


def test_what_was_enqueued_cannot_drive_the_readers_terminal(cli: Stage):
    evil = "a\x1b[2J\tb\nc\u202e\x9b31m"
    cli("submit", "pack", "--id", evil, "--group", evil)

    for command in (("list",), ("status", evil), ("tail", "--no-follow")):
        out = cli(*command).out
        assert "\\x1b[2J\\tb\\nc\\u202e\\x9b31m" in out
        assert not set(out) & set("\x1b\x9b\u202e")
    assert cli("list", "--json").json["jobs"][0]["id"] == evil
