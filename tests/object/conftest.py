"""The places under test: every driver, and every driver behind a network that fails."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from millrace.store.object.blobs import Blobs, RetryBudget
from millrace.store.object.directory import DirectoryBlobs
from millrace.store.object.driver import Driver
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.probe import Findings
from millrace.store.object.s3 import S3Blobs
from proof.blob_faults import BlobFault, FaultyBlobs, seeded_faults
from tests.servers.ministack import S3Server, ministack_server, s3_server

__all__ = ["ministack_server", "s3_server"]

IMPATIENT = RetryBudget(attempts=14, first=0.0005, longest=0.01)
NETWORK = {
    BlobFault.LOST_REPLY: 0.06,
    BlobFault.LOST_REQUEST: 0.04,
    BlobFault.SERVER_ERROR: 0.03,
    BlobFault.CONFLICT: 0.04,
    BlobFault.TWICE: 0.04,
    BlobFault.NO_TAG: 0.03,
    BlobFault.SLOW: 0.02,
}
DRIVERS = ("memory", "directory", "directory-relaxed", "s3")
PLACES = (*DRIVERS, *(f"{name}+faults" for name in DRIVERS))


@dataclass
class Place:
    """One place with objects, and as many clients of it as a test wants."""

    name: str
    make: Callable[[], Driver]
    seeds: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    open: list[Driver] = field(default_factory=list)

    @property
    def faulty(self) -> bool:
        return self.name.endswith("+faults")

    async def client(self) -> Blobs:
        driver = self.make()
        await driver.connect()
        self.open.append(driver)
        if self.faulty:
            return Blobs(FaultyBlobs(driver, seeded_faults(next(self.seeds), NETWORK)), patience=IMPATIENT)
        return Blobs(driver, patience=IMPATIENT)


@dataclass(frozen=True)
class Bucket:
    """A bucket that has been set up, and what a probe found out about it."""

    server: S3Server
    quotes: bool
    findings: Findings

    def driver(self, prefix: str) -> S3Blobs:
        """Not probed again: that is a test of its own."""
        driver = S3Blobs(self.server.address(prefix), check=False)
        driver.quotes, driver.findings = self.quotes, self.findings
        return driver


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> Bucket:
    return prepared(s3_server)


@pytest.fixture(scope="session")
def ministack_bucket(ministack_server: S3Server) -> Bucket:
    return prepared(ministack_server)


def prepared(server: S3Server) -> Bucket:
    driver = S3Blobs(server.address("setup"))
    if server.ours:
        driver.admin.setup()

    async def prove() -> Findings:
        await driver.connect()
        await driver.close()
        assert driver.findings is not None
        return driver.findings

    with ThreadPoolExecutor(1) as aside:  # the test that asks first may have a loop of its own running
        findings = aside.submit(lambda: asyncio.run(prove())).result()
    assert findings.versioned or not server.ours
    return Bucket(server, driver.quotes, findings)


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    kind = request.param.removesuffix("+faults")
    made: Callable[[], Driver]
    if kind == "memory":
        shared = MemoryBlobs()
        made = lambda: shared  # noqa: E731
    elif kind == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        prefix = f"{abs(hash(request.node.nodeid)):x}"
        made = lambda: bucket.driver(prefix)  # noqa: E731
    else:
        level: Literal["full", "relaxed"] = "relaxed" if kind.endswith("relaxed") else "full"
        made = lambda: DirectoryBlobs(tmp_path / "store", durability=level, keep_versions=["tasks/"])  # noqa: E731
    found = Place(request.param, made)
    try:
        yield found
    finally:
        for driver in found.open:
            await driver.close()


@pytest.fixture
async def blobs(place: Place) -> Blobs:
    return await place.client()


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[DirectoryBlobs]:
    """A directory, for tests of what lies on the disk."""
    made = DirectoryBlobs(tmp_path / "store", keep_versions=["tasks/"])
    await made.connect()
    yield made
    await made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A part that is left out is not left out in silence."""
    from tests.object.test_conformance import LONG

    if not os.environ.get("S3_ENDPOINT"):
        terminalreporter.write_line(f"on the bucket at night only: {', '.join(sorted(LONG))}")
