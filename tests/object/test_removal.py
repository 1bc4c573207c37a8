"""Removing an object exactly: only if what is there still has the tag that was seen, on every driver that can."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.store.object.blobs import Blobs, Won
from millrace.store.object.driver import Removing
from millrace.store.object.memory import MemoryBlobs
from tests.object.conftest import Place

KEY = "tasks/0/a.json"


async def written(blobs: Blobs, body: bytes, tag: str | None = None) -> str:
    outcome = await (blobs.create(KEY, body) if tag is None else blobs.swap(KEY, body, tag))
    assert isinstance(outcome, Won)
    return outcome.tag


async def test_what_is_as_it_was_seen_goes_for_good(place: Place):
    blobs = await place.client()
    if not blobs.keeps_versions:  # only in a bucket that the environment names
        pytest.skip("this bucket keeps no versions, and without them no removal is exact")
    tag = await written(blobs, b"second", await written(blobs, b"first"))

    removed = await blobs.remove(KEY, tag)

    assert removed or place.faulty  # a lost answer makes it be asked again, when it is gone already
    assert await blobs.get(KEY) is None
    assert (await blobs.list("tasks/")).entries == ()
    assert isinstance(await blobs.create(KEY, b"third"), Won)


async def test_what_somebody_has_changed_meanwhile_stays(place: Place):
    blobs = await place.client()
    seen = await written(blobs, b"first")
    await written(blobs, b"second", seen)

    assert not await blobs.remove(KEY, seen)
    blob = await blobs.get(KEY)
    assert blob is not None
    assert blob.body == b"second"


async def test_what_is_not_there_is_not_removed(place: Place):
    blobs = await place.client()
    tag = await written(blobs, b"first")
    await blobs.delete([KEY])

    assert not await blobs.remove(KEY, tag)


async def test_a_driver_that_cannot_be_exact_removes_nothing():
    blobs = Blobs(_WithoutRemoval(MemoryBlobs()))
    tag = await written(blobs, b"first")

    assert not isinstance(blobs.driver, Removing)
    assert not await blobs.remove(KEY, tag)
    assert await blobs.get(KEY) is not None


class _WithoutRemoval:
    """Everything of another driver but that."""

    def __init__(self, driver: MemoryBlobs) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        if name == "remove":
            raise AttributeError(name)
        return getattr(self._driver, name)
