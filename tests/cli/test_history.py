"""`millrace history`: what happened to a job, and what each event changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace import App
from millrace.views.timeline import facts_after
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


@pytest.fixture
def broke(cli: Stage) -> Stage:
    """A job that died, was replayed, cancelled and archived."""
    cli("submit", "charge", '{"card": 1}', "--id", "broke", *SHOP)
    cli("worker", "--burst", "--name", "w", *SHOP)
    cli("replay", "broke")
    cli("cancel", "broke")
    cli("archive", "broke")
    return cli


def steps(cli: Stage, *arguments: str) -> list[dict[str, tuple[Any, Any]]]:
    """The facts that each step changed, with their values before and after."""
    document = cli("history", "broke", "--diff", *arguments, "--json").json
    return [{one["fact"]: (one["before"], one["after"]) for one in step["changes"]} for step in document]


def test_a_difference_tells_what_each_event_changed(broke: Stage):
    enqueued, claimed, buried, replayed, cancelled, archived = steps(broke)

    assert {name: enqueued[name][1] for name in ("state", "queue", "task", "generation")} == {
        "state": "waiting",
        "queue": "default",
        "task": "charge",
        "generation": 1,
    }
    assert claimed["state"] == ("waiting", "running") and claimed["worker"] == (None, "w")
    assert claimed["attempt"] == (0, 1) and claimed["lease"][1] and "failures" not in claimed
    assert buried["state"] == ("running", "dead") and buried["failures"] == (0, 1) and buried["worker"] == ("w", None)
    assert buried["error"][1]["message"] == "card 1 was refused"
    assert buried["reason"] == (None, "max_attempts_exceeded")
    assert replayed["error"][1] is None and replayed["failures"] == (1, 0) and replayed["finished_at"][1] is None
    assert cancelled["state"] == ("waiting", "cancelled")
    assert archived == {"archived": (False, True)}


def test_two_events_are_compared_over_all_that_lies_between(broke: Stage):
    [between] = steps(broke, "--from", "1", "--to", "5")

    assert between["state"] == ("waiting", "cancelled")
    assert between["attempt"] == (0, 1)
    assert "failures" not in between and "error" not in between  # it failed once, and the replay forgave it
    assert steps(broke, "--from", "3", "--to", "3") == [{}]
    assert "archived" in steps(broke, "--from", "5")[0]


def test_a_range_narrows_the_history_itself(broke: Stage):
    assert [row["kind"] for row in broke("history", "broke", "--from", "2", "--to", "3").rows] == ["claimed", "buried"]
    assert [one["n"] for one in broke("history", "broke", "--from", "5", "--json").json] == [5, 6]


def test_in_a_pipe_a_difference_is_columns(broke: Stage):
    rows = broke("history", "broke", "--diff").rows

    assert {(row["n"], row["fact"], row["before"], row["after"]) for row in rows} >= {
        ("2", "state", "waiting", "running"),
        ("3", "error", "-", "ValueError: card 1 was refused"),
        ("6", "archived", "no", "yes"),
    }
    assert all(row["after"].endswith("Z") for row in rows if row["fact"] == "started_at")


def test_an_event_of_an_earlier_generation_is_named_with_it(cli: Stage):
    cli("submit", "pack", "--id", "again", *SHOP)
    cli("obliterate", "default", "--force")
    cli("submit", "send_email", '{"to": "ada"}', "--id", "again", *SHOP)

    events = cli("history", "again").rows
    assert [row["n"] for row in events] == ["1:1", "1:2", "1:3", "2:1"]
    [between] = cli("history", "again", "--diff", "--from", "1:1", "--json").json
    assert (between["from"], between["to"]) == ({"generation": 1, "n": 1}, {"generation": 2, "n": 1})
    assert {one["fact"] for one in between["changes"]} >= {"generation", "queue", "task"}


@pytest.mark.parametrize("numbers", [("--from", "9"), ("--to", "x"), ("--from", "3", "--to", "2"), ("--to", "2:1")])
def test_an_event_that_is_not_there_is_wrong_usage(broke: Stage, numbers: tuple[str, ...]):
    ran = broke.refused("history", "broke", *numbers)

    assert (ran.code, ran.out) == (2, "")


def test_the_facts_after_the_last_event_are_those_of_the_job(cli: Stage):
    """They are carried on by rules of their own, so they are held against the job after every kind of step."""

    async def check() -> int:
        async with App(cli.url) as app:
            compared = 0
            async for found in app.jobs.find(limit=100, archived=None):
                job = found.record
                last = facts_after(await app.jobs.history(job.id))[-1]
                assert (last.generation, last.queue, last.task) == (job.generation, job.queue, job.task)
                assert (last.state, last.attempt, last.failures) == (job.state, job.attempt, job.failures)
                assert (last.due_at, last.started_at, last.finished_at) == (
                    job.available_at,
                    job.started_at,
                    job.finished_at,
                )
                assert (last.worker, last.lease, last.reason) == (job.worker, job.lease_id, job.reason)
                assert (last.error, last.archived) == (job.error, job.archived)
                compared += 1
            return compared

    cli("submit", "send_email", '{"to": "ada"}', "--id", "done", *SHOP)
    for name in ("dead", "again", "gone"):
        cli("submit", "charge", '{"card": 1}', "--id", name, *SHOP)
    cli("submit", "charge", '{"card": 2}', "--id", "retried", "--max-attempts", "3", *SHOP)
    cli("submit", "pack", "--id", "later", "--delay", "1h", *SHOP)
    cli("submit", "pack", "--id", "child", "--after", "later", *SHOP)
    assert asyncio.run(check()) == 7

    cli("worker", "--burst", *SHOP)
    assert asyncio.run(check()) == 7

    cli("replay", "again")
    cli("cancel", "retried", "later")
    cli("archive", "dead", "done", "gone")
    cli("unarchive", "gone")
    assert asyncio.run(check()) == 7
