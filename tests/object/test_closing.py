"""What it costs to close an object store, and to export it: not one request per job or per page and queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from millrace.store.object.keys import STORE
from millrace.store.object.store import ObjectStore
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import put
from millrace.testing.conformance.transfer_scenes import SOURCE, TARGET, change_stage, close
from tests.object.stores import a_quick_folder, in_folder


@pytest.fixture
async def store(clock: VirtualClock) -> AsyncIterator[ObjectStore]:
    with a_quick_folder() as folder:
        store = in_folder(folder)(clock)
        await store.connect()
        yield store
        await store.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def reads_of(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count which objects are read from now on, and what is listed."""
    counted: Counter[str] = Counter()
    objects, blobs = store._engine.objects, store._engine.blobs
    read, all_keys = objects.read, blobs.all_keys

    async def reading(keys: Any, *more: Any, **options: Any) -> Any:
        keys = list(keys)
        counted.update(keys)
        return await read(keys, *more, **options)

    async def listing(prefix: str, *more: Any, **options: Any) -> Any:
        counted[prefix] += 1
        return await all_keys(prefix, *more, **options)

    monkeypatch.setattr(objects, "read", reading)
    monkeypatch.setattr(blobs, "all_keys", listing)
    return counted


async def test_a_page_of_an_export_reads_the_settings_of_the_store_once(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        await put(store)
    await close(store, SOURCE)
    counted = reads_of(store, monkeypatch)
    page = await store.export("jobs:0", 100)

    assert len(page.records) == 10
    assert counted[STORE] <= 1


async def test_how_far_an_import_is_is_not_written_to_the_queues(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await close(store, TARGET)
    counted = reads_of(store, monkeypatch)
    importing = msgspec.structs.replace(TARGET, stage="importing", cursor="jobs:7")
    await change_stage(store, TARGET, importing)
    await change_stage(store, importing, msgspec.structs.replace(importing, cursor="jobs:9"))

    assert counted["control/queues/"] == 0
    await change_stage(store, msgspec.structs.replace(importing, cursor="jobs:9"), None)
    assert counted["control/queues/"] == 1
