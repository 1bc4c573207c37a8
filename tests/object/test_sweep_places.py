"""The sweep where it is needed: on a directory and on a bucket, with their own clocks, listings and ways to delete."""

from __future__ import annotations

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.store.object.engine.objects import sealed
from millrace.store.object.store import ObjectStore
from millrace.store.object.sweep import shared
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.object.stores import OPTIONS, Site, a_site

AT_ONCE = msgspec.structs.replace(OPTIONS, sweep_patience=0, index_mode="index-only", listing_reuse=0)


@pytest.fixture(params=["directory", "s3"])
async def site(request):
    async with a_site(request, request.param, None, AT_ONCE) as made:
        yield made


async def keys(store: ObjectStore, prefix: str) -> list[str]:
    return [entry.key for entry in (await store.blobs.list(prefix)).entries]


async def test_what_was_lost_is_put_back_and_what_is_left_over_goes(site: Site):
    store, other = await site.clients(2)
    await store.enqueue([a_spec(id="parent"), *(a_spec(id=f"plain{number}") for number in range(6))])
    await store.enqueue([a_spec(id="child", after=("parent",)), a_spec(id="first", group="g")])
    [stale] = [key for key in await keys(store, "ready/") if key.endswith(".parent")]
    claimed = await store.claim(a_claim(9))
    await store.blobs.put(stale, b"", durable=False)
    await store.settle([(job.lease, Change.completed(b"1")) for job in claimed if job.id != "first"])
    await store.blobs.delete([*await keys(store, "leases/"), *await keys(store, "done/")])

    swept = await other.sweep(full=True)

    assert swept.index_restored == len(claimed)
    assert swept.index_removed == 1
    assert (await other.sweep(full=True)).repairs == {}
    assert [job.id for job in await other.claim(a_claim(9))] == ["child"]
    assert_holds(await gather(other))


async def test_a_batch_is_carried_through_in_both(site: Site):
    store = await site.client()
    await store.enqueue([a_spec() for _ in range(20)])

    swept = await store.sweep(full=True)

    assert (swept.carried_through, swept.manifests_removed) == (20, 1)
    assert await keys(store, "batches/") == []
    assert len(await store.claim(a_claim(30))) == 20


async def test_stubs_are_removed_exactly(site: Site, monkeypatch):
    store = await site.client()
    if not store.blobs.keeps_versions:  # only in a bucket that the environment names
        pytest.skip("this bucket keeps no versions, and without them no removal is exact")
    key = store.engine.layout.job("forgotten")
    await store.blobs.create(key, sealed(b'{"rev":1}'))
    blob = await store.blobs.get(key)
    assert blob is not None
    await store.blobs.swap(key, sealed(None), blob.tag)
    assert (await store.sweep(full=True)).stubs_removed == 0  # it is not a day old
    monkeypatch.setattr(shared, "STUB_AGE", 0)

    assert (await store.sweep(full=True)).stubs_removed == 1
    assert await keys(store, "tasks/") == []
    assert (await store.blobs.versions(key)).versions == () or all(
        version.deleted for version in (await store.blobs.versions(key)).versions
    )
    await store.enqueue([a_spec(id="forgotten")])
    assert [job.id for job in await store.claim(a_claim())] == ["forgotten"]
