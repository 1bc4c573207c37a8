"""The memory store: the ledger behind a lock. For tests, for embedding, and as the reference for all other stores.

Start at `store.py`; `tables.py` and `jobs.py` are the ledger's tables over the ordered indexes of `indexes.py`. This
package has no rules of its own: those are in `domain/`.
"""

from millrace.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
