"""What all routes share: the app whose store is shown, what is hidden, and who is let in."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.runtime.app import App
from millrace.runtime.intake import Maker
from millrace.runtime.redaction import Redaction
from millrace.store.protocol import Store
from millrace.web.audit import Audit
from millrace.web.exporter import Exporter
from millrace.web.glance import Glances
from millrace.web.guard import Guard
from millrace.web.problem import Problem
from millrace.web.stopping import Stopping
from millrace.web.throughput import Flow

MOST_STREAMS = 200
MOST_WAITING = 1_000


class Turnstile:
    """Bounds what stays open for long: streams, and requests that wait for a result."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self.inside = 0

    def __enter__(self) -> None:
        if self.inside >= self._most:
            raise Problem(503, "busy", f"there are {self._most} {self._what} already", headers={"retry-after": "5"})
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


@dataclass
class House:
    app: App
    guard: Guard
    audit: Audit
    redaction: Redaction
    exporter: Exporter
    streams: Turnstile = field(default_factory=lambda: Turnstile(MOST_STREAMS, "streams of events"))
    waiting: Turnstile = field(default_factory=lambda: Turnstile(MOST_WAITING, "requests that wait for a result"))
    makers: dict[tuple[str, bool], Maker] = field(default_factory=dict[tuple[str, bool], Maker])
    glances: Glances = field(default_factory=Glances)
    flow: Flow = field(default_factory=Flow)
    closing: Stopping = field(default_factory=Stopping)

    async def store(self) -> Store:
        return await self.app.connected()
