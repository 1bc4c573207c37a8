"""A connection to the server, on the event loop that runs: as the address says, and looked after by the system."""

from __future__ import annotations

import socket
from time import monotonic
from typing import Any

import asyncpg

# A server keeps the plans of a session. One that was made while a table was small may read all of it, and would go on
# doing so when it has grown, until somebody analyzes the table: plans are made anew from time to time.
PLAN_AGAIN = 2.0  # seconds
FORGET_PLANS = "DISCARD PLANS"
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Plans:
    """How old the plans of a session are."""

    def __init__(self) -> None:
        self._made = monotonic()

    def are_old(self) -> bool:
        """And if so, they are about to be forgotten."""
        old = monotonic() - self._made > PLAN_AGAIN
        if old:
            self._made = monotonic()
        return old


async def open_line(arguments: dict[str, Any]) -> Any:
    connection = await asyncpg.connect(**arguments)
    _keep_alive(connection)
    return connection


def _keep_alive(connection: Any) -> None:
    """Have the system notice a server that is gone without a word, also while nothing is asked of it."""
    transport = getattr(connection, "_transport", None)  # the driver has no word for it
    line = None if transport is None else transport.get_extra_info("socket")
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # not everywhere
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
