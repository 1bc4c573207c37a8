"""Pools and schedules, as an operator sees them."""

from __future__ import annotations

import asyncio

import pytest

from millrace import App
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


@pytest.fixture
def shop(cli: Stage) -> Stage:
    cli("worker", "--burst", *SHOP)  # tells the store of its pools
    asyncio.run(_scheduled(cli.url))
    return cli


async def _scheduled(url: str) -> None:
    """Whoever first controls a declared schedule tells the store of it, as a scheduler would."""
    async with App(url) as app:
        app.cron("0 3 * * *", tz="Europe/Berlin", name="nightly")(app.task(name="tidy")(lambda: None))
        await app.schedules.pause("nightly")
        await app.schedules.resume("nightly")


def test_a_submitted_job_stands_in_the_lane_of_its_partition(shop: Stage):
    first, again, other = (
        shop("submit", "orders", f'{{"customer": "{name}"}}', *SHOP, "--json").json for name in ("ada", "ada", "bob")
    )

    assert first["lane"] == again["lane"] is not None and again["position"] == 1
    [pool] = shop("pools", "--json").json
    assert (pool["pool"], pool["waiting"], len(pool["lanes"])) == ("orders", 3, 3)
    assert pool["lanes"][first["lane"]]["waiting"] == 2 + (other["lane"] == first["lane"])
    assert [row["lanes"] for row in shop("pools").rows] == ["3"]


def test_lanes_are_shown_and_those_that_are_paused_say_so(shop: Stage):
    shop("pause", "orders", "--lane", "1")

    assert [row["state"] for row in shop("pools", "orders").rows] == ["idle", "paused", "idle"]
    assert shop.refused("pools", "nowhere").code == 1
    assert shop.refused("pools", "no pool!").code == 2


def test_schedules_are_shown_paused_resumed_and_removed(shop: Stage):
    [schedule] = shop("schedules", "--json").json
    assert (schedule["name"], schedule["expression"], schedule["tz"]) == ("nightly", "0 3 * * *", "Europe/Berlin")
    assert schedule["next_tick"].endswith("Z") and schedule["paused"] is False

    assert shop("schedules", "nightly", "--pause", "--json").json["paused"] is True
    assert shop("schedules").rows[0]["state"] == "paused"
    assert shop("schedules", "nightly", "--resume", "--json").json["paused"] is False
    assert shop.refused("schedules", "nightly", "--remove").code == 2
    shop("schedules", "nightly", "--remove", "--yes")
    assert shop("schedules", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "code"), [(("nothing",), 1), (("--pause",), 2), (("x", "--pause", "--resume"), 2)]
)
def test_a_schedule_that_is_not_there_is_a_no(shop: Stage, arguments: tuple[str, ...], code: int):
    assert shop.refused("schedules", *arguments).code == code
