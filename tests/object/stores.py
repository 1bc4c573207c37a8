"""The engine on what it is for, a directory and a bucket, for the suites that every store passes."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from millrace.store.clock import Clock
from millrace.store.object.directory import DirectoryBlobs
from millrace.store.object.keys import MARKERS
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore

if TYPE_CHECKING:
    from tests.object.conftest import Bucket

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a test is not about durability
OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=20)  # time is the test's own, and nothing is late

Make = Callable[[Clock | None], ObjectStore]  # each time another client of the same jobs


def quick_folder() -> Path:
    """A new one, in memory where there is one; whoever asks removes it."""
    return Path(tempfile.mkdtemp(prefix="millrace-object-", dir=IN_MEMORY))


@contextmanager
def a_quick_folder() -> Iterator[Path]:
    folder = quick_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_folder(folder: Path, level: Literal["full", "relaxed"] = "relaxed", options: ObjectOptions = OPTIONS) -> Make:
    def make(clock: Clock | None) -> ObjectStore:
        return ObjectStore(
            lambda: DirectoryBlobs(folder, durability=level, keep_versions=["tasks/"], markers=MARKERS, clock=clock),
            clock=clock,
            options=options,
        )

    return make


def in_bucket(bucket: Bucket, prefix: str | None = None, options: ObjectOptions = OPTIONS) -> Make:
    """Under a random prefix, so that no test sees another's jobs and nothing else in the bucket is touched."""
    prefix = prefix or secrets.token_hex(8)

    def make(clock: Clock | None) -> ObjectStore:
        return ObjectStore(lambda: bucket.driver(prefix), clock=clock, options=options)

    return make


@dataclass
class Site:
    """One place with jobs, and its clients."""

    make: Make
    clock: Clock | None  # None: that of the place
    environment: dict[str, str]  # for other processes: STORE_URL, and what else it takes to get there
    open: list[ObjectStore] = field(default_factory=list)
    others_were_here: bool = False  # processes with the real clock: one that stood still may tell an event again

    async def client(self) -> ObjectStore:
        store = self.make(self.clock)
        await store.connect()
        self.open.append(store)
        return store

    async def clients(self, number: int) -> list[ObjectStore]:
        return [await self.client() for _ in range(number)]


@asynccontextmanager
async def a_site(
    request: pytest.FixtureRequest, kind: str, clock: Clock | None, options: ObjectOptions = OPTIONS
) -> AsyncIterator[Site]:
    """`kind` is "directory" or "s3"."""
    with a_quick_folder() as folder:
        if kind == "directory":
            site = Site(in_folder(folder, options=options), clock, {"STORE_URL": f"file://{folder}?durability=relaxed"})
        else:
            bucket: Bucket = request.getfixturevalue("bucket")
            prefix = secrets.token_hex(8)
            address = bucket.server.address(prefix)
            keys = {"AWS_ACCESS_KEY_ID": address.access_key or "", "AWS_SECRET_ACCESS_KEY": address.secret_key or ""}
            make = in_bucket(bucket, prefix, options)
            site = Site(make, clock, {"STORE_URL": address.url, "MILLRACE_ALLOW_NO_VERSIONING": "1", **keys})
        try:
            yield site
        finally:
            for store in site.open:
                await store.close()
