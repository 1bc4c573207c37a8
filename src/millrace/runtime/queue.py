"""One queue, as an operator sees it: pause, limits, settings, drain, counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput
from millrace.domain.request import LaneStatus, QueueCounts
from millrace.domain.settings import QueueSettings
from millrace.runtime.duration import Duration, milliseconds, optional_milliseconds
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.runtime.task import Task

Progress = Callable[[int], None]
STEP = 1_000


class LimitKeywords(TypedDict, total=False):
    """What bounds claims, over all workers. None takes a limit away."""

    max_running: int | None
    rate: float | None  # jobs per second
    burst: int | None


class QueueKeywords(LimitKeywords, total=False):
    """Everything that can be set on a queue; durations as people write them."""

    paused: bool
    paused_lanes: tuple[int, ...]
    lanes: int | None
    max_depth: int | None
    fair_share: float
    on_empty: str | Task[..., Any] | None
    keep_completed: Duration | None
    keep_dead: Duration | None
    dead_cap: int | None
    dead_overflow: Literal["evict", "archive", "reject"]
    auto_retries: int
    auto_retry_delay: Duration


class Queue:
    """Made by `app.queue(name)`; holds nothing but the name, so it may be made as often as one likes."""

    def __init__(self, name: str, connected: Callable[[], Awaitable[Store]]) -> None:
        check_name("queue", name)
        self.name = name
        self._connected = connected

    async def pause(self, lane: int | None = None) -> QueueSettings:
        """Nothing is claimed once this has returned; what runs goes on, and enqueues are taken."""
        return await self._pause(True, lane)

    async def resume(self, lane: int | None = None) -> QueueSettings:
        """Due times were kept: a job in backoff still waits for its time (BW-07)."""
        return await self._pause(False, lane)

    async def limits(self, **limits: Unpack[LimitKeywords]) -> QueueSettings:
        """Bound the claims of all workers together: jobs at a time, and jobs per second."""
        return await self.set(**limits)

    async def set(self, **settings: Unpack[QueueKeywords]) -> QueueSettings:
        """Change settings, durably and for all workers; answers all of them as they are now."""
        store = await self._connected()
        return cast("QueueSettings", await store.control("queue", self.name, _values(settings)))

    async def settings(self) -> QueueSettings:
        return await self.set()

    async def drain(self, progress: Progress | None = None, *, lane: int | None = None) -> int:
        """Cancel every waiting job and answer how many; what runs goes on. `progress` hears the count so far.

        Jobs that tell of deaths or of an empty queue are left to run. With `lane`, only that lane of a pool.
        """
        store = await self._connected()
        return await _repeat(lambda queue, limit: store.drain(queue, limit, lane), self.name, progress)

    async def obliterate(self, *, force: bool = False, progress: Progress | None = None) -> int:
        """Remove every job, running ones too, and answer how many. There is no way back, so it takes `force=True`."""
        if force is not True:
            raise InvalidInput(
                f"obliterate removes every job of queue {self.name!r}, also running, dead and completed ones. "
                "Say obliterate(force=True) to do it, or use drain() to cancel what waits."
            )
        store = await self._connected()
        return await _repeat(store.obliterate, self.name, progress)

    async def counts(self) -> QueueCounts:
        store = await self._connected()
        found = [counts for counts in await store.count() if counts.queue == self.name]
        return found[0] if found else QueueCounts(self.name)

    async def lanes(self) -> list[LaneStatus]:
        """Each lane of a pool; empty for a queue without lanes."""
        store = await self._connected()
        return await store.lanes(self.name)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    async def _pause(self, paused: bool, lane: int | None) -> QueueSettings:
        if lane is None:
            return await self.set(paused=paused)
        store = await self._connected()
        change = {"pause_lane" if paused else "resume_lane": lane}
        return cast("QueueSettings", await store.control("queue", self.name, change))


async def _repeat(step: Callable[[str, int], Awaitable[int]], queue: str, progress: Progress | None) -> int:
    """A bounded step of the store, until it finds nothing more."""
    total = 0
    while done := await step(queue, STEP):
        total += done
        if progress is not None:
            progress(total)
    return total


def _values(settings: QueueKeywords) -> dict[str, Any]:
    values: dict[str, Any] = dict(settings)
    for name in ("keep_completed", "keep_dead"):
        if name in values:
            values[name] = optional_milliseconds(name, values[name])
    if "auto_retry_delay" in values:
        values["auto_retry_delay"] = milliseconds("auto_retry_delay", values["auto_retry_delay"])
    hook = values.get("on_empty")
    if hook is not None and not isinstance(hook, str):
        values["on_empty"] = hook.name
    return values
