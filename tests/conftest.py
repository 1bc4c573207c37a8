"""Tests start processes and send them signals, so no signal may be ignored because of how the tests were started.

A shell starts what it puts into the background with SIGINT ignored, nohup does so with SIGHUP, and children inherit it.

What needs a database server is marked so, whichever file it is in: it has an area of its own in tools/run_areas.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SERVERS = ("postgres", "redis")  # stores, and folders of tests/store
SHARED = ("regressions", "store")  # folders whose tests run on every store

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if needs_a_server(item):
            item.add_marker(pytest.mark.server)


def needs_a_server(item: pytest.Item) -> bool:
    folder, *parts = item.path.relative_to(ROOT).parts
    if folder not in SHARED:
        return folder == "servers"
    call = getattr(item, "callspec", None)
    given = {call.params.get(name) for name in ("name", "store")} if call else set()
    return parts[0] in SERVERS or bool(given & set(SERVERS))
