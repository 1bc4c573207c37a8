"""The SQLite store, the default for embedded use. Every call runs the ledger in a transaction on one database file."""

from millrace.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
