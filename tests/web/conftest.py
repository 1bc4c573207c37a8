"""The same server over each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from millrace import App
from tests.servers import postgres, redis_server
from tests.web.stage import Web, opened

SERVERS = {"redis": redis_server.url_for, "postgres": postgres.url_for}


@pytest.fixture(params=["memory", "sqlite", "file", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MILLRACE_FEED_DELAY_MS", "0")  # one process writes at a time here
    if request.param in SERVERS:
        return SERVERS[request.param](tmp_path)
    urls = {
        "memory": f"memory://web-{uuid4().hex}",
        "sqlite": f"sqlite:///{tmp_path}/jobs.db",
        "file": f"file://{tmp_path}/jobs",
    }
    return urls[request.param]


@pytest.fixture
async def web(url: str) -> AsyncIterator[Web]:
    async with opened(App(url)) as made:
        yield made
