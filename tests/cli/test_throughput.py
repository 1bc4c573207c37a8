"""`millrace queues --throughput`, and `millrace list --after`."""

from __future__ import annotations

from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


def test_the_last_quarter_of_an_hour_is_shown_minute_by_minute(cli: Stage):
    cli("submit", "send_email", '{"to": "ada"}', *SHOP)
    cli("worker", "--burst", *SHOP)
    series = cli("queues", "--throughput", "--json").json

    assert series["step"] == 10 and len(series["points"]) in (89, 90)
    assert sum(point["completed"] for point in series["points"]) <= 1  # the step it ended in may not be over
    rows = cli("queues", "--throughput").rows
    assert len(rows) in (14, 15) and set(rows[0]) == {"until", "completed", "dead"}


def test_throughput_is_of_all_queues(cli: Stage):
    assert cli.refused("queues", "mail", "--throughput").code == 2


def test_a_list_can_be_of_what_runs_after_a_job(cli: Stage):
    cli("submit", "pack", "--id", "first")
    cli("submit", "pack", "--id", "second", "--after", "first")
    cli("submit", "pack", "--id", "third", "--after", "second")

    assert [job["id"] for job in cli("list", "--after", "first", "--json").json["jobs"]] == ["second"]
