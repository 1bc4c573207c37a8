"""Each test types in an empty folder, with no settings around it but its own store."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.stage import Stage


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    """No store, no app, no settings."""
    for name in [name for name in os.environ if name.startswith(("MILLRACE_", "QO_", "S3_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name in ("tests.cli.shop", "tests.cli.fuzz_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # a command may have put the app on another store
    return Stage(monkeypatch)


@pytest.fixture(params=["memory", "sqlite", "file"])
def cli(request: pytest.FixtureRequest, bare: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    """An empty store of each kind, named by MILLRACE_URL."""
    urls = {"memory": f"memory://cli-{uuid4().hex}", "sqlite": "sqlite:///jobs.db", "file": f"file://{tmp_path}/jobs"}
    bare.url = urls[request.param]
    monkeypatch.setenv("MILLRACE_URL", bare.url)
    monkeypatch.setenv("MILLRACE_FEED_DELAY_MS", "0")  # one process writes at a time here
    bare("init")
    return bare
