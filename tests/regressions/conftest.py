"""The same stores as in tests/store: what a regression test proves, it proves for every one of them."""

from tests.store.conftest import clock, store, stores_under_test

__all__ = ["clock", "store", "stores_under_test"]
