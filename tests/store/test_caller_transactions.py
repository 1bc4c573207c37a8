"""Steps in a transaction of the caller's, on the stores that can take part in one (`Transactional`)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace.store.protocol import Store, Transactional
from millrace.testing.clock import START, VirtualClock
from millrace.testing.conformance.transactions import *  # noqa: F403
from millrace.testing.invariants import assert_holds, gather
from tests.store.conftest import STORES, TRANSACTIONAL


@pytest.fixture(params=sorted(TRANSACTIONAL))
async def store(request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Store]:
    made = STORES[request.param](clock, tmp_path)
    await made.connect()
    try:
        yield made
        assert_holds(await gather(made, since=START))
    finally:
        await made.close()


@pytest.mark.parametrize("name", sorted(STORES))
def test_every_store_that_says_it_takes_part_in_transactions_is_held_to_it(
    name: str, clock: VirtualClock, tmp_path: Path
) -> None:
    assert isinstance(STORES[name](clock, tmp_path), Transactional) == (name in TRANSACTIONAL)
