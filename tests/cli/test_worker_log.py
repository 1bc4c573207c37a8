"""What a worker says of itself while it works."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace.cli.workers.run
from millrace import InvalidInput
from millrace.app.telemetry.log_levels import LEVELS, levels_of
from millrace.store.trace import TRACE
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


def test_now_and_then_it_says_what_was_done_since(cli: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(millrace.cli.workers.run, "BETWEEN_SUMMARIES", 0.05)
    cli("submit", "pack", '{"seconds": 1}')
    cli("submit", "charge", '{"card": 1}', "--max-attempts", "1")
    cli("submit", "pack")

    err = cli("worker", "--burst", *SHOP).err

    found = re.findall(r"(\d+) completed and (\d+) failed in the last 0.05 s, (\d+) running", err)
    assert 1 <= len(found) <= 3  # silent while nothing was done
    assert sum(int(failed) for _, failed, _ in found) == 1


@pytest.fixture
def restored() -> Iterator[None]:
    """A command sets levels for the process; this one goes on."""
    names = (
        "millrace",
        "millrace.store",
        "millrace.store.object",
        "millrace.jobs",
        "millrace.worker",
        "asyncio",
        "a.b",
    )
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("warn", {"millrace": logging.WARNING}),
        ("WARNING", {"millrace": logging.WARNING}),
        ("trace", {"millrace": TRACE}),
        ("off", {"millrace": LEVELS["off"]}),
        ("millrace.store=debug,warn", {"millrace.store": logging.DEBUG, "millrace": logging.WARNING}),
        (" error , a.b = trace ", {"millrace": logging.ERROR, "a.b": TRACE}),
    ],
)
def test_a_filter_names_levels_for_all_of_ours_and_for_modules(text: str, levels: dict[str, int]):
    """O-37"""
    assert levels_of("--log-level", text) == levels


@pytest.mark.parametrize("text", ["loud", "", "millrace.store=loud", "=debug", "a b=debug", "warn,error", "info,,"])
def test_a_filter_that_makes_no_sense_is_refused_in_words(text: str):
    with pytest.raises(InvalidInput, match={"warn,error": "two levels"}.get(text, "one of trace, debug")):
        levels_of("--log-level", text)


def test_a_worker_writes_what_its_filter_lets_through(bare: Stage, tmp_path: Path, restored: None):
    """O-37: quiet but for one module, by flag and by variable; and everything, down to each request of the store."""
    url = ("--url", f"file://{tmp_path}/jobs?durability=relaxed")
    bare("init", *url)

    def said(*flags: str) -> str:
        bare("submit", "pack", *url, *SHOP)
        return bare("worker", "--burst", *flags, *url, *SHOP).err

    assert "has stopped" in said()
    assert "has stopped" not in said("--log-level", "warn")
    of_jobs = said("--log-level", "millrace.jobs=debug,warn")
    assert "pack" in of_jobs and "completed" in of_jobs and "has stopped" not in of_jobs
    assert "TRACE" in said("--log-level", "trace") and "read tasks/" in said("--log-level", "trace")


def test_the_filter_may_stand_in_the_environment(cli: Stage, monkeypatch: pytest.MonkeyPatch, restored: None):
    monkeypatch.setenv("MILLRACE_LOG", "millrace.jobs=debug,warn")
    cli("submit", "pack")
    ran = cli("worker", "--burst", *SHOP)

    assert "completed" in ran.err and "has stopped" not in ran.err
    assert cli("config", "--json").json["unknown_variables"] == []
    assert "one of trace" in cli.refused("worker", "--log-level", "x=loud", *SHOP).err


def test_a_worker_stops_after_so_many_jobs(cli: Stage):
    for _ in range(5):
        cli("submit", "pack")

    assert cli("worker", "--max-jobs", "3", "--json", *SHOP).json["completed"] == 3
    assert [row["state"] for row in cli("list").rows].count("completed") == 3
    assert cli("worker", "--max-jobs", "9", "--burst", "--json", *SHOP).json["completed"] == 2
    assert "max-jobs" in cli.refused("worker", "--max-jobs", "0", *SHOP).err


def test_a_failure_is_told_once_with_its_traceback(cli: Stage):
    cli("submit", "charge", '{"card": 1}', "--max-attempts", "1")

    err = cli("worker", "--burst", "--name", "w", *SHOP).err

    assert err.count("is dead (max_attempts_exceeded)") == 1
    assert "Traceback (most recent call last)" in err
    assert (err.count("worker w: "), err.count("worker w has stopped")) == (1, 1)
