"""A connection to the server, on the event loop that runs: as the address says, and looked after by the system."""

from __future__ import annotations

import socket
from typing import Any

import asyncpg

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


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
