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
# Every question of this store has its index; a plan made while a table was small must do when it is large.
_PLANS = {"jit": "off", "enable_seqscan": "off", "enable_bitmapscan": "off"}


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
        """The same without a password."""
        parts = urlsplit(self.dsn)
        place = parts.netloc.rpartition("@")
        user = place[0].partition(":")[0]
        netloc = f"{user}@{place[2]}" if user else place[2]
        options = dict(parse_qsl(parts.query)) | ({"schema": self.schema} if self.schema != "millrace" else {})
        options.pop("password", None)
        return urlunsplit(("postgresql", netloc, parts.path, urlencode(options), ""))

    def arguments(self) -> dict[str, Any]:
        """For asyncpg. A pooler that shares sessions keeps neither prepared statements nor settings for us."""
        direct = self.pooler == "none"
        return {
            "dsn": self.dsn,
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": CALL_TIMEOUT,
            "statement_cache_size": 200 if direct else 0,
            "server_settings": {"application_name": "millrace"} | (_PLANS if direct else {}),
        }
