"""The SQLite store: the ledger inside a transaction, in one file. The embedded default."""

from millrace.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
