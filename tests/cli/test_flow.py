"""`millrace flow`: progress, replay and cancel of a flow."""

from __future__ import annotations

from millrace import App
from tests.cli import shop
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


def enqueue(cli: Stage) -> None:
    app = App(cli.url)
    parts = [shop.send_email.spec("ada"), shop.charge.spec(7)]
    specs = shop.app.chain([app.gather(parts), shop.pack.spec()]).specs("summer")
    with app.sync:
        app.sync.enqueue(specs)


def test_a_flow_shows_its_progress_and_what_failed(cli: Stage):
    enqueue(cli)
    cli("worker", "--burst", *SHOP)
    shown = cli("flow", "summer", ok=False)
    flow = cli("flow", "summer", "--json", ok=False).json

    assert shown.code == 1
    assert "1 of 3 done, 1 failed" in shown.out
    assert "summer/2: max_attempts_exceeded card 7 was refused" in shown.out
    assert (flow["state"], flow["done"], flow["total"]) == ("failed", 1, 3)
    assert [job["id"] for job in flow["failed"]] == ["summer/2"]
    assert cli("status", "summer/1", "--json").json["flow"] == "summer"


def test_a_flow_is_replayed_and_cancelled(cli: Stage):
    enqueue(cli)
    cli("worker", "--burst", *SHOP)

    assert "2 jobs replayed" in cli("flow", "summer", "--replay").err
    cancelled = cli("flow", "summer", "--cancel")
    assert "2 jobs cancelled" in cancelled.err and "summer: cancelled" in cancelled.out
    assert "pass one of them" in cli.refused("flow", "summer", "--cancel", "--replay").err


def test_an_unknown_flow_is_not_found(cli: Stage):
    assert "nobody" in cli.refused("flow", "nobody").err
