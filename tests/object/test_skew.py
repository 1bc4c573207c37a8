"""Clocks that disagree (O-13): a word above two seconds, a refusal above a minute; the store's clock is what counts."""

from __future__ import annotations

import logging

import pytest

from millrace.domain.errors import StoreError
from millrace.store.clock import system_clock
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec


async def store_whose_clock_is_off(by: int, **options) -> ObjectStore:
    blobs = MemoryBlobs(clock=lambda: system_clock() + by)
    store = ObjectStore(lambda: blobs, options=ObjectOptions(**options))
    await store.connect()
    return store


@pytest.mark.parametrize(("by", "way"), [(5_000, "behind"), (-5_000, "ahead of")])
async def test_it_warns_once_and_goes_on_by_the_stores_clock(by, way, caplog):
    store = await store_whose_clock_is_off(by)
    await store.enqueue([a_spec(), a_spec(), a_spec(delay=60)])
    with caplog.at_level(logging.WARNING, logger="millrace.store"):
        jobs = [*await store.claim(a_claim()), *await store.claim(a_claim(9))]

    assert len(jobs) == 2
    [record] = caplog.records
    assert f"5.0 s {way} the store's" in record.getMessage()
    assert "MILLRACE_MAX_CLOCK_SKEW_MS" in record.getMessage()
    now = await store.now()
    assert abs(now - system_clock() - by) < 1_000
    assert all(abs((job.lease_until or 0) - now - job.spec.lease) < 1_000 for job in jobs)


@pytest.mark.parametrize("by", [61_000, -3_600_000])
async def test_more_than_a_minute_is_too_much_to_claim_anything(by):
    store = await store_whose_clock_is_off(by)
    await store.enqueue([a_spec(id="waits")])

    with pytest.raises(StoreError, match=r"timedatectl set-ntp true"):
        await store.claim(a_claim())

    [job] = await store.get(["waits"])
    assert job is not None
    assert job.state == "waiting"


async def test_what_is_allowed_is_not_worth_a_word(caplog):
    store = await store_whose_clock_is_off(5_000, max_clock_skew=10_000)
    await store.enqueue([a_spec()])
    with caplog.at_level(logging.WARNING, logger="millrace.store"):
        assert len(await store.claim(a_claim())) == 1
    assert caplog.records == []
