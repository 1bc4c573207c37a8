"""`millrace move`: to another store with one command, and nothing is forgotten or done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")
TO = ("--to", "sqlite:///new.db")


@pytest.fixture
def filled(cli: Stage) -> Stage:
    cli("submit", "charge", '{"card": 1}', "--id", "dead", *SHOP)
    cli("worker", "--burst", *SHOP)
    cli("submit", "pack", "--id", "ready")
    cli("pause", "mail")
    return cli


def test_a_dry_run_counts_by_queue_and_state_and_changes_nothing(filled: Stage) -> None:
    filled("init", "--url", "sqlite:///new.db")
    ran = filled("move", *TO, "--dry-run", "--json")

    assert ran.json["jobs"] == 2
    [queue] = [queue for queue in ran.json["queues"] if queue["queue"] == "default"]
    assert (queue["waiting"], queue["dead"], queue["running"]) == (1, 1, 0)
    assert "would be moved" in filled("move", *TO, "--dry-run").err
    filled("submit", "pack", "--id", "still-open")


def test_moved_jobs_are_in_the_new_store_and_the_old_one_names_it(filled: Stage) -> None:
    history = filled("history", "dead").rows
    ran = filled("move", "--from", filled.url, *TO)

    assert "2 jobs and 0 schedules moved to sqlite:///new.db" in ran.err
    refused = filled.refused("submit", "pack")
    assert refused.code == 3 and "moved to sqlite:///new.db" in refused.err
    assert filled("history", "dead", "--url", "sqlite:///new.db").rows == history
    filled("worker", "--burst", *SHOP, "--url", "sqlite:///new.db")
    assert filled("status", "ready", "--url", "sqlite:///new.db", "--json").json["state"] == "completed"
    assert filled("move", *TO, "--json").json["imported"] == 0


def test_a_store_with_jobs_is_refused_as_a_target(filled: Stage) -> None:
    filled("init", "--url", "sqlite:///new.db")
    filled("submit", "pack", "--url", "sqlite:///new.db")

    ran = filled.refused("move", *TO)
    assert ran.code == 2 and "has 1 jobs already" in ran.err
    filled("submit", "pack")


def test_wrong_use_of_move_says_what_to_do(filled: Stage) -> None:
    assert "to itself" in filled.refused("move", "--to", filled.url).err
    assert "exclude each other" in filled.refused("move", *TO, "--abort", "--dry-run").err
    assert "there is no database" in filled.refused("move", *TO, "--dry-run").err
    assert filled.refused("move", "--from", "sqlite:///nowhere.db", *TO).code == 3
    assert "--to is missing" in filled.refused("move").err
    assert "only for --abort" in filled.refused("move", *TO, "--force").err
    ran = filled.refused("move", "--abort")
    assert ran.code == 1 and "is not being moved" in ran.err


def test_a_moved_store_is_opened_again_only_by_force_and_without_the_new_one(filled: Stage) -> None:
    filled("move", "--from", filled.url, *TO)
    ran = filled.refused("move", "--abort", *TO)
    assert ran.code == 2 and "--force" in ran.err

    for file in Path().glob("new.db*"):
        file.unlink()
    assert "replaced or emptied" in filled.refused("move", *TO).err
    assert "is open again" in filled("move", "--abort", "--force").err
    filled("submit", "pack")
