"""Jobs, as people look at them and act on them: get, find, cancel, replay, archive, history, results.

What takes one id also takes many, and what an enqueue or a search answered will do for an id. One in, one out;
many in, a list out, in order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.job import ALIASES, Job, State, Word
from millrace.domain.request import Archived, Cancelled, Page, Query, QueueCounts, Replayed
from millrace.runtime import waiting
from millrace.runtime.duration import Duration, milliseconds
from millrace.runtime.options import OneJob, job_ids

if TYPE_CHECKING:
    from millrace.runtime.app import App

A = TypeVar("A")
Many = Iterable[OneJob]
Running = Literal["refuse", "request"]
WORDS = frozenset({*State, "blocked", "scheduled", "retrying", "ready"})


class Jobs:
    """Made by the app: `app.jobs`."""

    def __init__(self, app: App) -> None:
        self._app = app

    @overload
    async def get(self, jobs: OneJob) -> Job | None: ...  # type: ignore[overload-overlap]
    @overload
    async def get(self, jobs: Many) -> list[Job | None]: ...
    async def get(self, jobs: OneJob | Many) -> Job | list[Job | None] | None:
        """The record as it is now; None when there is none: never enqueued, or pruned."""
        store = await self._app.connected()
        return await _each(store.get, jobs)

    @overload
    async def cancel(self, jobs: OneJob, *, running: Running = "refuse") -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    async def cancel(self, jobs: Many, *, running: Running = "refuse") -> list[Cancelled]: ...
    async def cancel(self, jobs: OneJob | Many, *, running: Running = "refuse") -> Cancelled | list[Cancelled]:
        """Cancel what waits. What runs is left alone, or with `running="request"` told to end (R-06)."""
        if running not in ("refuse", "request"):
            raise InvalidInput(f'running is "refuse" or "request", not {running!r}')
        store = await self._app.connected()
        return await _each(lambda ids: store.cancel(ids, running), jobs)

    @overload
    async def replay(self, jobs: OneJob) -> Replayed: ...  # type: ignore[overload-overlap]
    @overload
    async def replay(self, jobs: Many) -> list[Replayed]: ...
    async def replay(self, jobs: OneJob | Many) -> Replayed | list[Replayed]:
        """Bring finished jobs back to waiting, with a new budget of attempts; their history is kept."""
        store = await self._app.connected()
        return await _each(store.replay, jobs)

    @overload
    async def archive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]
    @overload
    async def archive(self, jobs: Many) -> list[Archived]: ...
    async def archive(self, jobs: OneJob | Many) -> Archived | list[Archived]:
        """Hide finished jobs from searches; `unarchive` shows them again, in the state they had."""
        store = await self._app.connected()
        return await _each(lambda ids: store.archive(ids, True), jobs)

    @overload
    async def unarchive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]
    @overload
    async def unarchive(self, jobs: Many) -> list[Archived]: ...
    async def unarchive(self, jobs: OneJob | Many) -> Archived | list[Archived]:
        store = await self._app.connected()
        return await _each(lambda ids: store.archive(ids, False), jobs)

    async def history(self, job: OneJob) -> list[Event]:
        """Every transition of the job, oldest first, over all generations that are remembered."""
        store = await self._app.connected()
        return await store.history(*job_ids("history", job))

    async def position(self, job: OneJob) -> int | None:
        """How many jobs run before it, counted up to 10,000; None when it does not wait."""
        store = await self._app.connected()
        return await store.position(*job_ids("position", job))

    async def count(self) -> list[QueueCounts]:
        """Jobs by state, for each queue."""
        store = await self._app.connected()
        return await store.count()

    async def result(self, job: OneJob, *, wait: Duration | None = None) -> Any:
        """What the job returned, as its task's annotation says if this app has the task (R-07).

        Raises JobNotFound, JobFailed, JobCancelled, ResultExpired; and WaitTimeout when it has not finished within
        `wait`, which by default is not at all.
        """
        store = await self._app.connected()
        [job_id] = job_ids("result", job)
        seconds = 0.0 if wait is None else milliseconds("wait", wait) / 1000
        async with store.watch(job_id) as watch:
            done = await waiting.finished(store, watch, job_id, None, seconds)
        data = waiting.result_of(done)
        task = self._app.tasks.get(done.task)
        if task is not None:
            return task.load_result(data, done.spec.serde)
        return None if data is None else self._app.serdes.get(done.spec.serde).decode(data)

    async def page(self, query: Query) -> Page:
        """One page of a search, for callers that keep the cursor themselves."""
        store = await self._app.connected()
        return await store.find(query)

    async def find(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: str | None = None,
        group: str | None = None,
        key: str | None = None,
        enqueued_from: datetime | int | None = None,
        enqueued_to: datetime | int | None = None,
        finished_from: datetime | int | None = None,
        finished_to: datetime | int | None = None,
        archived: bool | None = False,
        newest_first: bool = False,
        limit: int | None = None,
        page: int = 100,
    ) -> AsyncIterator[Job]:
        """Jobs that match all of it, by seq, fetched page by page. `archived=None` takes both kinds."""
        state, archived = read_state(state, archived)
        cursor, left = None, limit
        while left is None or left > 0:
            found = await self.page(
                Query(
                    queue=queue,
                    task=task,
                    state=state,
                    group=group,
                    key=key,
                    enqueued_from=_instant(enqueued_from),
                    enqueued_to=_instant(enqueued_to),
                    finished_from=_instant(finished_from),
                    finished_to=_instant(finished_to),
                    archived=archived,
                    newest_first=newest_first,
                    limit=page if left is None else min(page, left),
                    cursor=cursor,
                )
            )
            for job in found.jobs:
                yield job
            left = None if left is None else left - len(found.jobs)
            cursor = found.cursor
            if cursor is None:
                return


def read_state(state: str | None, archived: bool | None = False) -> tuple[Word | str | None, bool | None]:
    """The state and the archived flag to search for; words of other queues mean what they mean there."""
    if state is None:
        return None, archived
    word = state.strip().lower()
    if word == "archived":
        return None, True
    word = ALIASES.get(word, word)
    if word not in WORDS:
        known = ", ".join(sorted(WORDS | ALIASES.keys() | {"archived"}))
        raise InvalidInput(f"there is no state {state!r}; known are: {known}")
    return word, archived


def _instant(when: datetime | int | None) -> int | None:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidInput(f"{when!r} has no time zone; add one, e.g. tzinfo=timezone.utc")
        return int(when.timestamp() * 1000)
    return when


async def _each(ask: Callable[[tuple[str, ...]], Awaitable[list[A]]], jobs: OneJob | Many) -> A | list[A]:
    answers = await ask(job_ids("jobs", jobs))
    return answers[0] if isinstance(jobs, OneJob) else answers
