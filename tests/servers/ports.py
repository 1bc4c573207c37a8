"""Ports for servers that must be told their port before they start."""

from __future__ import annotations

import secrets
import socket


def free_port() -> int:
    """A port that is free, as is a Redis cluster's second, which is 10,000 above it.

    Both are below the ports that the system gives to connections, so none of those takes one before the server starts.
    """
    while True:
        port = 10_000 + secrets.randbelow(12_000)  # others that look for one at the same time draw another
        if _is_free(port) and _is_free(port + 10_000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
