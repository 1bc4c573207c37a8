"""Acting on jobs: cancel, replay, archive, unarchive, delete, by id and by filter."""

from __future__ import annotations

import pytest

from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


@pytest.fixture
def dead(cli: Stage) -> Stage:
    """Three that died of one cause, one of another, and two that wait."""
    for number in range(3):
        cli("submit", "charge", f'{{"card": {number}}}', "--id", f"dead-{number}", *SHOP)
    cli("submit", "charge", '{"card": "none"}', "--id", "odd", "--queue", "default")
    cli("worker", "--burst", *SHOP)
    cli("submit", "pack", "--id", "wait-1", "--queue", "line")
    cli("submit", "pack", "--id", "wait-2", "--queue", "line")
    return cli


def state(cli: Stage, job: str) -> str:
    return str(cli("status", job, "--json").json["state"])


def test_by_id_each_gets_its_answer_and_any_refusal_is_a_no(dead: Stage):
    ran = dead.refused("cancel", "wait-1", "dead-0", "nowhere", "--json")

    assert ran.code == 1
    assert ran.json["jobs"] == [
        {"id": "wait-1", "answer": "cancelled"},
        {"id": "dead-0", "answer": "dead"},
        {"id": "nowhere", "answer": "not_found"},
    ]
    assert state(dead, "wait-1") == "cancelled"


def test_ids_come_from_stdin(dead: Stage):
    rows = dead("cancel", "-", stdin="wait-1\n\nwait-2\n").rows

    assert rows == [{"id": "wait-1", "answer": "cancelled"}, {"id": "wait-2", "answer": "cancelled"}]
    assert dead.refused("cancel", "-", stdin=b"\xff\n").code == 2


def test_a_dry_run_shows_which_and_changes_nothing(dead: Stage):
    ran = dead("cancel", "--queue", "line", "--dry-run", "--json")

    assert ran.json == {"dry_run": True, "matched": 2, "ids": ["wait-1", "wait-2"]}
    assert dead("cancel", "--queue", "line", "--dry-run").out.split() == ["wait-1", "wait-2"]
    assert state(dead, "wait-1") == "ready"


def test_by_filter_nothing_is_done_without_a_yes(dead: Stage):
    ran = dead.refused("cancel", "--queue", "line")

    assert ran.code == 2 and "--yes" in ran.err
    assert state(dead, "wait-1") == "ready"
    assert dead("cancel", "--queue", "line", "--yes", "--json").json["answers"] == {"cancelled": 2}


def test_a_limit_takes_the_oldest(dead: Stage):
    dead("cancel", "--queue", "line", "--limit", "1", "--yes")

    assert (state(dead, "wait-1"), state(dead, "wait-2")) == ("cancelled", "ready")


def test_a_filter_that_finds_nothing_is_no_failure(dead: Stage):
    assert "No job matches" in dead("cancel", "--queue", "other", "--yes").err


def test_replay_takes_dead_jobs_unless_told_otherwise(dead: Stage):
    assert dead("replay", "--queue", "default", "--yes", "--json").json["matched"] == 4
    assert state(dead, "dead-0") == "ready"
    dead("cancel", "dead-0")
    assert dead("replay", "--status", "cancelled", "--yes", "--json").json["answers"] == {"replayed": 1}


def test_dead_jobs_are_gathered_by_cause_and_brought_back_by_it(dead: Stage):
    found = dead("dead", "--json").json
    first, second = found["causes"]

    assert found["total"] == 4
    assert (first["count"], first["error"], first["task"]) == (3, "ValueError: card … was refused", "charge")
    assert (second["count"], second["reason"]) == (1, "payload_invalid")
    listed = dead("dead", "--error", first["fingerprint"], "--json").json["jobs"]
    assert {job["id"] for job in listed} == {"dead-0", "dead-1", "dead-2"}

    dead("replay", "--error", first["fingerprint"], "--yes")
    assert [state(dead, job) for job in ("dead-0", "dead-1", "dead-2", "odd")] == ["ready"] * 3 + ["dead"]


def test_the_dead_are_told_as_a_table(dead: Stage):
    assert [(row["count"], row["task"]) for row in dead("dead").rows] == [("3", "charge"), ("1", "charge")]
    assert {row["id"] for row in dead("dead", "--jobs").rows} == {"dead-0", "dead-1", "dead-2", "odd"}
    assert dead.refused("dead", "--status", "ready").code == 2


def test_archived_jobs_are_out_of_sight_and_come_back_as_they_were(dead: Stage):
    dead("archive", "--status", "dead", "--yes")
    assert dead("list", "--status", "dead", "--json").json["jobs"] == []
    assert len(dead("list", "--status", "archived", "--json").json["jobs"]) == 4
    assert len(dead("list", "--all", "--json").json["jobs"]) == 6

    dead("unarchive", "--queue", "default", "--yes")
    assert state(dead, "dead-0") == "dead"
    assert len(dead("list", "--status", "dead", "--json").json["jobs"]) == 4


def test_what_is_said_of_archived_jobs_is_done_to_no_others(dead: Stage):
    dead("archive", "dead-0")

    assert dead("cancel", "--status", "archived", "--yes", "--json").json["matched"] == 0
    assert dead("replay", "--status", "Archived", "--dry-run", "--json").json["ids"] == ["dead-0"]
    assert dead("unarchive", "--status", "archived", "--yes", "--json").json["answers"] == {"done": 1}
    assert [state(dead, job) for job in ("wait-1", "dead-0", "dead-1")] == ["ready", "dead", "dead"]


def test_a_job_that_waits_cannot_be_archived(dead: Stage):
    ran = dead.refused("archive", "wait-1", "--json")

    assert ran.code == 1 and ran.json["answers"] == {"not_finished": 1}


@pytest.mark.parametrize("command", ["cancel", "replay", "archive", "unarchive"])
def test_ids_or_filters_but_not_both_and_not_neither(cli: Stage, command: str):
    assert cli.refused(command).code == 2
    assert cli.refused(command, "x", "--queue", "q").code == 2


def test_delete_by_id_answers_for_each(dead: Stage):
    ran = dead.refused("delete", "dead-0", "wait-1", "nowhere", "--json")

    assert ran.code == 1
    assert ran.json["jobs"] == [
        {"id": "dead-0", "answer": "deleted"},
        {"id": "wait-1", "answer": "not_finished"},
        {"id": "nowhere", "answer": "not_found"},
    ]
    assert dead.refused("status", "dead-0").code == 1
    assert state(dead, "wait-1") == "ready"


def test_dead_letters_of_one_queue_are_purged_by_filter_once_somebody_agrees(dead: Stage):
    chosen = ("delete", "--status", "dead", "--task", "charge")
    looked = dead(*chosen, "--dry-run", "--json").json
    assert looked["dry_run"] and looked["matched"] == 4

    assert dead.refused(*chosen).code == 2
    assert dead(*chosen, "--yes", "--json").json["answers"] == {"deleted": 4}
    assert dead("dead", "--json").json["total"] == 0
    assert state(dead, "wait-1") == "ready"


def test_delete_without_a_state_is_about_finished_jobs_only(dead: Stage):
    assert dead("delete", "--queue", "line", "--yes", "--json").json["matched"] == 0
    assert state(dead, "wait-1") == "ready"


@pytest.fixture
def family(dead: Stage) -> Stage:
    """A child that died of its parent."""
    dead("submit", "pack", "--id", "child", "--queue", "line", "--after", "dead-0")
    assert state(dead, "child") == "dead"
    return dead


def test_children_come_back_with_their_parent(family: Stage):
    ran = family("replay", "dead-0", "--json")

    assert ran.json["answers"] == {"replayed": 1}
    assert state(family, "child") == "blocked"


def test_children_stay_dead_where_that_is_said(family: Stage):
    family("replay", "dead-0", "--no-children")

    assert state(family, "child") == "dead"


def test_a_filter_that_finds_parent_and_child_is_told_that_both_are_back(family: Stage):
    assert family("replay", "--status", "dead", "--yes", "--json").json["answers"] == {"replayed": 5}
    assert state(family, "child") == "blocked"


def test_a_dead_job_says_when_it_expires(dead: Stage):
    [listed, *_] = dead("dead", "--jobs", "--json").json["jobs"]
    shown = dead("status", listed["id"], "--json").json

    assert shown["expires_at"] == listed["expires_at"] > shown["finished_at"]
    assert "expires" in dead("status", listed["id"]).out
