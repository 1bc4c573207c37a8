"""Where a store is: the server's URL, and what we add to it as options of our own.

postgresql://user:password@host:5432/database?schema=millrace&notify=on&pooler=none
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.store.postgres.sql import check_schema

OURS = ("schema", "notify", "pooler", "connections")
CONNECT_TIMEOUT = 10.0  # seconds
CALL_TIMEOUT = 20.0  # more than a statement waits for locks, less than a lease
# Of a step. Whoever falls silent in the middle of one keeps its locks no longer than that.
STEP_LIMITS = {"lock_timeout": "10s", "statement_timeout": "20s", "idle_in_transaction_session_timeout": "15s"}
# Every question of this store has its index; a plan made while a table was small must do when it is large.
_PLANS = {"jit": "off", "enable_seqscan": "off", "enable_bitmapscan": "off"}
# Have the server notice a client that is gone without a word: what it had locked is let go.
_KEEPALIVE = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}


class Address(msgspec.Struct, frozen=True):
    dsn: str
    schema: str = "millrace"
    notify: bool = True
    pooler: Literal["none", "transaction"] = "none"
    connections: int = 8

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
        """The same without a password: what is opened by it is opened in the same way."""
        parts = urlsplit(self.dsn)
        place = parts.netloc.rpartition("@")
        user = place[0].partition(":")[0]
        netloc = f"{user}@{place[2]}" if user else place[2]
        options = dict(parse_qsl(parts.query)) | self._chosen()
        options.pop("password", None)
        return urlunsplit(("postgresql", netloc, parts.path, urlencode(options), ""))

    def _chosen(self) -> dict[str, str]:
        """Our own options, as far as they are not as by default."""
        ours = {
            "schema": self.schema,
            "notify": "on" if self.notify else "off",
            "pooler": self.pooler,
            "connections": str(self.connections),
        }
        usual = {"schema": "millrace", "notify": "on", "pooler": "none", "connections": "8"}
        return {name: value for name, value in ours.items() if value != usual[name]}

    def arguments(self) -> dict[str, Any]:
        """For asyncpg. A pooler that shares sessions keeps neither prepared statements nor settings for us."""
        direct = self.pooler == "none"
        return {
            "dsn": self.dsn,
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": CALL_TIMEOUT,
            "statement_cache_size": 200 if direct else 0,
            "server_settings": {"application_name": "millrace"} | (_PLANS | _KEEPALIVE if direct else {}),
        }

    def arguments_for_steps(self) -> dict[str, Any]:
        """The same with the limits of a step, which a session of our own keeps; `begins_with` sets them elsewhere."""
        given = self.arguments()
        if self.pooler == "none":
            given["server_settings"] |= STEP_LIMITS
        return given

    def begins_with(self) -> str:
        """After BEGIN."""
        if self.pooler == "none":
            return ""
        return "".join(f"; SET LOCAL {name} = '{value}'" for name, value in STEP_LIMITS.items())
