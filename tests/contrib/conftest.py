"""The stores on which task modules in Celery's style run. The rules of stores are tested elsewhere, on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from millrace.contrib.celery import Celery

STORES = ["memory", "sqlite"]
SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("redis", "postgres")]


def url_of(store: str, folder: Path) -> str:
    match store:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder / 'jobs.db'}"
        case "redis":
            return str(import_module("tests.servers.redis_server").url_for(folder))
        case _:
            return str(import_module("tests.servers.postgres").url_for(folder))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def on_store(store: str, tmp_path: Path) -> Iterator[Callable[[Celery], Celery]]:
    """Give the app of a module a new store, and close it when the test has ended."""
    used: list[Celery] = []

    def use(app: Celery) -> Celery:
        app.millrace.use(url_of(store, tmp_path))
        used.append(app)
        return app

    yield use
    for app in used:
        app.close()
    if store == "postgres":
        import_module("tests.servers.postgres").release(tmp_path)
