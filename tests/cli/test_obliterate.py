"""`millrace obliterate`: nothing is left, and nobody does it by accident."""

from __future__ import annotations

import pytest

from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


@pytest.fixture
def filled(cli: Stage) -> Stage:
    cli("submit", "charge", '{"card": 1}', "--id", "dead", *SHOP)
    cli("worker", "--burst", *SHOP)
    cli("archive", "dead")
    cli("submit", "pack", "--id", "ready")
    cli("submit", "send_email", '{"to": "ada"}', "--id", "other", *SHOP)
    return cli


def test_without_force_nothing_is_removed(filled: Stage):
    ran = filled.refused("obliterate", "default")
    assert ran.code == 2 and "--force" in ran.err

    ran = filled("obliterate", "default", "--dry-run")
    assert ran.out.strip() == "2" and "1 waiting, 1 dead" in ran.err
    assert {job["id"] for job in filled("list", "--all", "--json").json["jobs"]} == {"dead", "ready", "other"}


def test_with_force_every_job_of_the_queue_is_gone_and_no_other(filled: Stage):
    assert filled("obliterate", "default", "--force", "--json").json == {
        "queue": "default",
        "dry_run": False,
        "jobs": 2,
        "removed": 2,
    }

    assert [job["id"] for job in filled("list", "--all", "--json").json["jobs"]] == ["other"]
    assert filled.refused("status", "dead").code == 1
    assert filled("history", "dead").rows[-1]["kind"] == "pruned"
    assert filled("obliterate", "default", "--force").out.strip() == "0"


def test_a_misspelt_queue_is_a_no(filled: Stage):
    ran = filled.refused("obliterate", "defualt", "--force", "--json")

    assert (ran.code, ran.json["removed"]) == (1, 0)
    assert filled.refused("obliterate", "no queue!", "--force").code == 2
