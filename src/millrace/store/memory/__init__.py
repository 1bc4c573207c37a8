"""The memory store: the ledger behind a lock. For tests, for embedding, and as the reference of all others."""

from millrace.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
