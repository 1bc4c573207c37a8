"""Jobs in a PostgreSQL database, from version 14 on."""

from millrace.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
