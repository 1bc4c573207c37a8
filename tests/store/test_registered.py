"""Stores of other packages: registered under a URL scheme by an entry point, and reached wherever a URL is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace import App, InvalidInput, StoreError
from millrace.store.connect import connect
from millrace.store.memory import MemoryStore
from millrace.store.sqlite import SqliteStore

MODULE = """
from urllib.parse import urlsplit

from millrace.store.sqlite import SqliteStore


class ShopStore(SqliteStore):
    pass


def open_store(url):
    return ShopStore(urlsplit(url).path, url=url)


def broken(url):
    return None
"""
POINTS = """
[millrace.stores]
shop = shop_store:open_store
broken = shop_store:broken
missing = no_such_module:open_store
redis = shop_store:open_store
"""

SPARK_READS = """
from millrace.spark.open import opened, url_from
with opened(url_from({{"url": {url!r}}})) as here:
    print(here.run(here.store.count()))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as pip leaves it: a module, and its metadata beside it."""
    folder = tmp_path / "site"
    metadata = folder / "shop_store-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "shop_store.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-store\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "shop_store", raising=False)
    return folder


async def test_a_store_of_another_package_is_reached_by_its_scheme(installed: Path, tmp_path: Path):
    app = App(f"shop://{tmp_path}/jobs.db")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        assert await double.call(n=2) == 4
    assert type(app.store).__name__ == "ShopStore"


def test_the_command_line_and_spark_reach_it(installed: Path, tmp_path: Path):
    url = f"shop://{tmp_path}/jobs.db"
    environment = {**os.environ, "PYTHONPATH": str(installed), "MILLRACE_URL": url}
    for program in (
        ["-m", "millrace", "queues", "--json"],
        ["-c", SPARK_READS.format(url=url)],
    ):
        done = subprocess.run(
            [sys.executable, *program], env=environment, capture_output=True, text=True, check=False, timeout=580
        )
        assert done.returncode == 0, done.stderr


def test_ours_cannot_be_replaced(installed: Path):
    assert isinstance(connect("memory://"), MemoryStore)
    assert type(connect("sqlite:///jobs.db")) is SqliteStore
    assert type(connect("redis://127.0.0.1:1/0")).__name__ == "RedisStore"


@pytest.mark.parametrize(
    ("url", "kind", "told"),
    [
        ("shops://x", InvalidInput, "no store for shops://; known ones are memory://.*shop://"),
        ("missing://x", StoreError, "missing://.*cannot be imported.*no_such_module"),
        ("broken://x", StoreError, "shop_store:broken.*made None"),
    ],
)
def test_what_is_wrong_with_it_is_told(installed: Path, url: str, kind: type[Exception], told: str):
    with pytest.raises(kind, match=told):
        connect(url)
