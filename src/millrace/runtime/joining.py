"""Joining the caller's own transaction: which stores can, and what to say when one cannot."""

from __future__ import annotations

from millrace.domain.errors import InvalidInput
from millrace.store.protocol import Store, Transactional, Within


def join(store: Store, connection: object) -> Within:
    """Steps that happen when the transaction on `connection` commits, and never were when it is rolled back."""
    if not isinstance(store, Transactional):
        raise InvalidInput(
            f"a store at {store.url.partition('://')[0]}:// cannot be part of your own transaction; sqlite:// can. "
            "Leave `within` out."
        )
    return store.within(connection)
