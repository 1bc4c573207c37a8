"""The store as the shared sentences use it: with a transaction of the caller's in hand."""

from __future__ import annotations

from typing import Any

import psycopg

from millrace.store.postgres import PostgresStore


class PostgresForTests(PostgresStore):
    def transaction(self) -> Any:
        return psycopg.connect(self.address.dsn)

    def beside(self) -> PostgresForTests:
        return PostgresForTests(self.address, clock=self._clock)
