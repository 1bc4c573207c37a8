"""The address of a store: the server's URL, with Millrace's own options.

postgresql://user:password@host:5432/database?schema=millrace&notify=on&pooler=none
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from millrace.domain.errors import InvalidInput, StoreError
from millrace.store.postgres.sql import check_schema

OURS = ("schema", "notify", "pooler", "connections")
CONNECT_TIMEOUT = 10.0  # seconds
CALL_TIMEOUT = 20.0  # seconds; longer than a statement waits for locks, shorter than a lease
# Limits of a step. A client that goes silent during a step keeps its locks no longer than this.
STEP_LIMITS = {"lock_timeout": "10s", "statement_timeout": "20s", "idle_in_transaction_session_timeout": "15s"}
# A step must see what it has waited for, whatever the default of the database or the role.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_ISOLATION = {"default_transaction_isolation": "read committed"}
_READ_ONLY = {"default_transaction_read_only": "on"}
# Every query of this store has an index; a plan made while a table was small must still work when it is large.
_PLANS = {"jit": "off", "enable_seqscan": "off", "enable_bitmapscan": "off"}
# Have the server detect a client that disappeared, and release its locks.
_KEEPALIVE = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}


class Address(msgspec.Struct, frozen=True):
    dsn: str
    schema: str = "millrace"
    notify: bool = True
    pooler: Literal["none", "transaction"] = "none"
    connections: int = 8
    reads_only: bool = False

    @classmethod
    def from_url(cls, url: str) -> Address:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        ours = {name: given.pop(name) for name in OURS if name in given}
        notify = ours.get("notify", "on")
        if notify not in ("on", "off"):
            raise InvalidInput(f"notify is on or off, not {notify!r}")
        pooler = ours.get("pooler", "none")
        if pooler not in ("none", "transaction"):
            raise InvalidInput(f"pooler is none or transaction, not {pooler!r}")
        most = ours.get("connections", "8")
        if not most.isdigit() or not 1 <= int(most) <= 1_000:
            raise InvalidInput(f"connections is a number from 1 to 1000, not {most!r}")
        dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(given), ""))
        return cls(
            dsn,
            check_schema(ours.get("schema", "millrace")),
            notify == "on",
            "transaction" if pooler == "transaction" else "none",
            int(most),
        )

    @property
    def url(self) -> str:
        """The URL without the password, and without options of Millrace that have their defaults."""
        parts = urlsplit(self.dsn)
        place = parts.netloc.rpartition("@")
        user = place[0].partition(":")[0]
        netloc = f"{user}@{place[2]}" if user else place[2]
        options = dict(parse_qsl(parts.query)) | self._chosen()
        options.pop("password", None)
        return urlunsplit(("postgresql", netloc, parts.path, urlencode(options), ""))

    def _chosen(self) -> dict[str, str]:
        """Return Millrace's own options that differ from their defaults."""
        ours = {
            "schema": self.schema,
            "notify": "on" if self.notify else "off",
            "pooler": self.pooler,
            "connections": str(self.connections),
        }
        usual = {"schema": "millrace", "notify": "on", "pooler": "none", "connections": "8"}
        return {name: value for name, value in ours.items() if value != usual[name]}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for asyncpg.connect.

        A transaction pooler keeps neither prepared statements nor session settings. So behind a pooler, statements that
        write or wait run inside an explicit transaction.
        """
        direct = self.pooler == "none"
        return {
            "dsn": self.dsn,
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": CALL_TIMEOUT,
            "statement_cache_size": 200 if direct else 0,
            "server_settings": {"application_name": "millrace"} | (self._settings() if direct else {}),
        }

    def _settings(self) -> dict[str, str]:
        return _ISOLATION | _PLANS | _KEEPALIVE | (_READ_ONLY if self.reads_only else {})

    def arguments_for_steps(self) -> dict[str, Any]:
        """Like `arguments`, with the time limits of a step as session settings.

        Behind a pooler, these limits are left out, because `begins_with` sets them.
        """
        given = self.arguments()
        if self.pooler == "none":
            given["server_settings"] |= STEP_LIMITS
        return given

    def begins_with(self) -> str:
        """Return SQL to append to BEGIN. Behind a pooler, it sets the time limits of a step; otherwise it is empty."""
        if self.pooler == "none":
            return ""
        return "".join(f"; SET LOCAL {name} = '{value}'" for name, value in STEP_LIMITS.items())


@asynccontextmanager
async def transaction(connection: Any) -> AsyncIterator[None]:
    """Run the block in a transaction on an asyncpg connection.

    After a timeout or a cancellation, there is no rollback: the caller discards the connection, which ends the
    transaction. The `transaction` of asyncpg would wait for its rollback, up to the same timeout again.
    """
    await connection.execute(BEGIN)
    try:
        yield
    except (TimeoutError, asyncio.CancelledError):
        raise
    except BaseException:
        with suppress(Exception):  # the first error is the one to raise
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")


async def check_isolation(connection: Any, address: Address) -> None:
    """Raise StoreError if sessions do not have the isolation level that was requested.

    This happens behind a transaction pooler that the URL does not name (`pooler=transaction`).
    """
    level = await connection.fetchval("SELECT current_setting('default_transaction_isolation')")
    if address.pooler == "none" and level != "read committed":
        raise StoreError(
            f"{address.url}: sessions are {level.upper()} although READ COMMITTED was asked for, as behind a pooler "
            "that keeps no settings. Add pooler=transaction to the URL."
        )
