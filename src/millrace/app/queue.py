"""`app.queue(name)`: pause, limits, settings, drain and counts of one queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from millrace.app.duration import Duration, milliseconds, optional_milliseconds
from millrace.domain.errors import InvalidInput
from millrace.domain.request import LaneStatus, QueueCounts
from millrace.domain.rules.check import check_name
from millrace.domain.settings import QueueSettings
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.app.task import Task

Progress = Callable[[int], None]
STEP = 1_000


class LimitKeywords(TypedDict, total=False):
    """Limits on claims, over all workers. The value None removes a limit."""

    max_running: int | None
    rate: float | None  # jobs per second
    burst: int | None


class QueueKeywords(LimitKeywords, total=False):
    """All settings of a queue. A duration is a number of seconds, a timedelta or text."""

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
    """A handle for one queue, returned by `app.queue(name)`. Creating it does not access the store."""

    def __init__(self, name: str, connected: Callable[[], Awaitable[Store]]) -> None:
        check_name("queue", name)
        self.name = name
        self._connected = connected

    async def pause(self, lane: int | None = None) -> QueueSettings:
        """Stop claims from the queue, or from one lane, and return the new settings.

        Running jobs continue, and jobs can still be enqueued.
        """
        return await self._pause(True, lane)

    async def resume(self, lane: int | None = None) -> QueueSettings:
        """Allow claims again from the queue, or from one lane, and return the new settings.

        Due times have not changed: a job in backoff still waits for its retry.
        """
        return await self._pause(False, lane)

    async def limits(self, **limits: Unpack[LimitKeywords]) -> QueueSettings:
        """Limit running jobs, or jobs per second, over all workers. Return the settings now in effect."""
        return await self.set(**limits)

    async def set(self, **settings: Unpack[QueueKeywords]) -> QueueSettings:
        """Change settings, durably and for all workers. Return all settings that are now in effect."""
        store = await self._connected()
        return cast("QueueSettings", await store.control("queue", self.name, _values(settings)))

    async def settings(self) -> QueueSettings:
        """Return the stored settings of the queue."""
        return await self.set()

    async def drain(self, progress: Progress | None = None, *, lane: int | None = None) -> int:
        """Cancel every waiting job and return how many. Running jobs continue.

        `progress` is called repeatedly with the number of jobs cancelled so far. Hook jobs (`on_dead_letter`,
        `on_empty`) are not cancelled. With `lane`, only that lane of a pool is drained.
        """
        store = await self._connected()
        return await _repeat(lambda queue, limit: store.drain(queue, limit, lane), self.name, progress)

    async def obliterate(self, *, force: bool = False, progress: Progress | None = None) -> int:
        """Delete every job of the queue, even running jobs, and return how many. This cannot be undone.

        Raises InvalidInput unless `force` is True.
        """
        if force is not True:
            raise InvalidInput(
                f"obliterate deletes every job of queue {self.name!r}, also running, dead and completed ones. "
                "Call obliterate(force=True) to do it, or use drain() to cancel waiting jobs."
            )
        store = await self._connected()
        return await _repeat(store.obliterate, self.name, progress)

    async def counts(self) -> QueueCounts:
        """Return the number of jobs by state."""
        store = await self._connected()
        found = [counts for counts in await store.count() if counts.queue == self.name]
        return found[0] if found else QueueCounts(self.name)

    async def lanes(self) -> list[LaneStatus]:
        """Return the status of each lane of a pool; an empty list for a queue without lanes."""
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
    """Call `step`, which processes a limited number of jobs, until no job is left. Return the total number of jobs."""
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
