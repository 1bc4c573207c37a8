"""The same stores as in tests/store: what a regression test proves, it proves for every one of them."""

from tests.servers.ministack import ministack_server
from tests.store.conftest import clock, store, stores_under_test

__all__ = ["clock", "ministack_server", "store", "stores_under_test"]
