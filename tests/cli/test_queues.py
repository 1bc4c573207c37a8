"""Queues: counts, settings, pause, resume, drain."""

from __future__ import annotations

import pytest

from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


@pytest.fixture
def filled(cli: Stage) -> Stage:
    cli("submit", "send_email", '{"to": "ada"}', *SHOP)
    cli("worker", "--burst", *SHOP)
    cli("submit", "pack", "-", "--many", stdin="{}\n" * 5)
    cli("submit", "pack", "--delay", "1h")
    return cli


def test_queues_are_shown_with_their_counts(filled: Stage):
    found = {queue["queue"]: queue for queue in filled("queues", "--json").json}
    default, mail = found["default"], found["mail"]

    assert (default["queue"], default["ready"], default["scheduled"], default["waiting"]) == ("default", 5, 1, 6)
    assert (mail["queue"], mail["completed"], mail["processed"]) == ("mail", 1, 1)
    assert default["oldest_ready"] >= 0 and mail["oldest_ready"] is None
    assert {row["queue"]: row["ready"] for row in filled("queues").rows} == {"default": "5", "mail": "0", "orders": "0"}


def test_a_queue_that_was_never_used_is_a_no(filled: Stage):
    assert filled.refused("queues", "other").code == 1
    assert filled.refused("queues", "no queue!").code == 2


def test_settings_are_changed_and_shown(filled: Stage):
    changes = ("--set", "max_running=2", "--set", "rate=1.5", "--set", "keep_dead=2d", "--set", "max-depth=100")
    settings = filled("queues", "default", *changes, "--json").json["settings"]

    assert (settings["max_running"], settings["rate"], settings["max_depth"]) == (2, 1.5, 100)
    assert settings["keep_dead"] == 2 * 86_400
    assert filled("queues").rows[0]["limits"] == "max_running=2 rate=1.5 max_depth=100"
    assert filled("queues", "default", "--set", "rate=none", "--json").json["settings"]["rate"] is None


@pytest.mark.parametrize(
    "change", ["rate", "rate=fast", "rate=-1", "nothing=1", "max_running=1.5", "paused=true", "=1"]
)
def test_a_setting_that_can_never_be_right_is_wrong_usage(filled: Stage, change: str):
    before = filled("queues", "default", "--json").json["settings"]

    assert filled.refused("queues", "default", "--set", change).code == 2
    assert filled("queues", "default", "--json").json["settings"] == before


def test_pause_stops_claims_until_resume(filled: Stage):
    assert filled("pause", "default", "--json").json["paused"] is True
    filled("worker", "--burst", *SHOP)
    assert filled("queues", "default", "--json").json["ready"] == 5
    assert filled("queues").rows[0]["limits"] == "paused"

    assert filled("resume", "default", "--json").json["paused"] is False
    filled("worker", "--burst", *SHOP)
    assert filled("queues", "default", "--json").json["completed"] == 5


def test_lanes_are_shown_paused_and_resumed(cli: Stage):
    cli("queues", "orders", "--set", "lanes=3", ok=False)
    cli("submit", "pack", "--queue", "orders", "--group", "ada")

    assert cli("pause", "orders", "--lane", "1", "--json").json["paused_lanes"] == [1]
    pool = cli("queues", "orders", "--json").json
    assert [lane["paused"] for lane in pool["lanes"]] == [False, True, False]
    assert sum(lane["waiting"] for lane in pool["lanes"]) == 1
    assert cli("resume", "orders", "--lane", "1", "--json").json["paused_lanes"] == []
    assert cli.refused("pause", "orders", "--lane", "3").code == 2


def test_one_lane_is_drained_and_what_is_said_of_a_lane_is_of_it_alone(cli: Stage):
    cli("queues", "orders", "--set", "lanes=3", ok=False)
    for who in ("ada", "ada", "bob", "cyd", "dan", "eve"):
        cli("submit", "pack", "--queue", "orders", "--group", who)
    waiting = [lane["waiting"] for lane in cli("queues", "orders", "--json").json["lanes"]]
    chosen, jobs = waiting.index(max(waiting)), max(waiting)
    assert 0 < jobs < sum(waiting)

    assert f"{jobs} jobs wait" in cli("pause", "orders", "--lane", str(chosen)).err
    assert cli("drain", "orders", "--lane", str(chosen), "--dry-run").out.strip() == str(jobs)
    drained = cli("drain", "orders", "--lane", str(chosen), "--yes", "--json").json
    assert (drained["lane"], drained["cancelled"]) == (chosen, jobs)
    assert cli("queues", "orders", "--json").json["waiting"] == sum(waiting) - jobs
    assert "lanes 0 to 2" in cli.refused("drain", "orders", "--lane", "3", "--yes").err


def test_drain_cancels_what_waits_once_somebody_said_yes(filled: Stage):
    assert filled("drain", "default", "--dry-run").out.strip() == "6"
    assert filled.refused("drain", "default").code == 2
    assert filled("queues", "default", "--json").json["waiting"] == 6

    assert filled("drain", "default", "--yes", "--json").json["cancelled"] == 6
    assert filled("queues", "default", "--json").json["waiting"] == 0
    assert filled("drain", "default", "--yes").out.strip() == "0"


def test_pausing_a_queue_that_was_never_used_says_so(filled: Stage):
    assert "did you mean default?" in filled("pause", "defualt").err
    assert "never used" not in filled("pause", "default").err


def test_a_bad_value_of_a_setting_is_said_in_plain_words(filled: Stage):
    assert "rate takes a number or none, not a word" in filled.refused("queues", "mail", "--set", "rate=fast").err


def test_big_limits_are_written_out(filled: Stage):
    filled("queues", "default", "--set", "max_depth=10000000", "--set", "rate=250000")

    assert filled("queues").rows[0]["limits"] == "rate=250000 max_depth=10000000"
