"""The PostgreSQL store keeps jobs in a schema of a PostgreSQL database. It needs version 14 or later."""

from millrace.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
