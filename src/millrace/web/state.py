"""The state of the server: its app, guard and audit log, and the objects that requests share."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.app.app import App
from millrace.app.telemetry.redaction import Redaction
from millrace.views.job_input import SpecBuilder
from millrace.views.throughput import ThroughputSampler
from millrace.web.audit import Audit
from millrace.web.batching import EnqueueBatcher
from millrace.web.event_cache import EventCache
from millrace.web.exporter import Exporter
from millrace.web.guard import Guard
from millrace.web.problem import Problem
from millrace.web.shutdown import Shutdown

MOST_STREAMS = 200
MOST_WAITING = 1_000


class ConcurrencyLimit:
    """A context manager that limits how many long requests are open at once, such as streams or waits for a result."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self.open = 0

    def __enter__(self) -> None:
        if self.open >= self._most:
            raise Problem(503, "busy", f"there are {self._most} {self._what} already", headers={"retry-after": "5"})
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1


@dataclass
class ServerState:
    app: App
    guard: Guard
    audit: Audit
    redaction: Redaction
    exporter: Exporter
    streams: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(MOST_STREAMS, "streams of events"))
    waiting: ConcurrencyLimit = field(
        default_factory=lambda: ConcurrencyLimit(MOST_WAITING, "requests that wait for a result")
    )
    spec_builders: dict[tuple[str, bool], SpecBuilder] = field(default_factory=dict[tuple[str, bool], SpecBuilder])
    event_cache: EventCache = field(default_factory=EventCache)
    throughput: ThroughputSampler = field(default_factory=ThroughputSampler)
    batcher: EnqueueBatcher = field(default_factory=EnqueueBatcher)
    shutdown: Shutdown = field(default_factory=Shutdown)
