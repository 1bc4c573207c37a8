"""The options of a Redis store besides its address."""

from __future__ import annotations

from typing import Literal

import msgspec

Durability = Literal["relaxed", "disk", "replicated"]

DURABILITY: dict[Durability, str] = {
    "relaxed": "an answer survives a killed client; a crash of the server may take back what is not on its disk",
    "disk": "an answer to an enqueue, a settle or an operator survives a crash of the server: it is on its disk",
    "replicated": "an answer to an enqueue, a settle or an operator is held by replicas too, as many as were asked for",
}


class RedisOptions(msgspec.Struct, frozen=True):
    prefix: str = "millrace"  # stores with different prefixes on one server are independent
    durability: Durability = "relaxed"
    replicas: int = 1  # with durability=replicated: how many replicas must have a write
    patience: float = 20.0  # seconds for which a call is repeated while the server cannot be reached
    timeout: float = 10.0  # seconds without a reply after which a connection counts as dead
    connections: int = 64  # limit per event loop
