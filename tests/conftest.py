"""Tests start processes and send them signals, so no signal may be ignored because of how the tests were started.

A shell starts what it puts into the background with SIGINT ignored, nohup does so with SIGHUP, and children inherit it.

What needs a database server is marked so, whichever file it is in: it has an area of its own in tools/run_areas.py.
In an area with several processes, slow tests go first, so that none of them is left alone at the end.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent
SERVERS = ("postgres", "redis")  # stores, and folders of tests/store
SHARED = ("regressions", "store")  # folders whose tests run on every store

# A machine that is busy is no failure, and what a test draws is the same each time.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if needs_a_server(item):
            item.add_marker(pytest.mark.server)
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        items.sort(key=_time_of, reverse=True)


def _time_of(item: pytest.Item) -> float:
    """Return a measure of how long a test takes: the time limit of a slow one, and 0 for all others."""
    slow, limit = item.get_closest_marker("slow"), item.get_closest_marker("timeout")
    if slow is None:
        return 0
    return float(limit.args[0]) if limit is not None else 1


def needs_a_server(item: pytest.Item) -> bool:
    folder, *parts = item.path.relative_to(ROOT).parts
    if folder not in SHARED:
        return folder == "servers"
    call = getattr(item, "callspec", None)
    given = {call.params.get(name) for name in ("name", "store")} if call else set()
    return parts[0] in SERVERS or bool(given & set(SERVERS))
