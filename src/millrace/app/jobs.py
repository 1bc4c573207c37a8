"""`app.jobs`: get, find, cancel, replay, archive and delete jobs, and read their history and results.

Most methods take one job or many; a job is passed as an id, a handle, a status, a record or a spec. For one job they
return one value, for many jobs a list in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from millrace.app import result_wait
from millrace.app.duration import Duration, milliseconds
from millrace.app.job_handle import BaseHandle, JobHandle, existing
from millrace.app.job_status import JobStatus, read_result, statuses
from millrace.app.recently_changed import find_page
from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.instant import as_datetime, as_milliseconds
from millrace.domain.job import ALIASES, Job, Spec, State, Word
from millrace.domain.request import Archived, Cancelled, Deleted, Query, QueueCounts, Replayed
from millrace.domain.rules.check import check_id, check_tag
from millrace.domain.rules.dead import expires_at

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.task import Task
    from millrace.app.why import Reason

A = TypeVar("A")
R = TypeVar("R")
OneJob = str | BaseHandle[Any] | JobStatus | Job | Spec
Many = Iterable[OneJob]
_ONE = (str, BaseHandle, JobStatus, Job, Spec)
Running = Literal["refuse", "request"]
AT_ONCE = 500  # jobs that one step of the store deletes
_ENDED = (State.COMPLETED, State.DEAD, State.CANCELLED)
WORDS = frozenset({*State, "blocked", "scheduled", "retrying", "ready"})


class Matching(TypedDict, total=False):
    """The keywords of `purge`: the filters of `find`, which select the jobs."""

    queue: str | None
    task: str | None
    state: str | None
    group: str | None
    key: str | None
    tag: str | None
    enqueued_from: datetime | int | None
    enqueued_to: datetime | int | None
    finished_from: datetime | int | None
    finished_to: datetime | int | None
    archived: bool | None


class Jobs:
    """The methods of `app.jobs`, which read and change jobs of any task."""

    def __init__(self, app: App) -> None:
        self._app = app

    @overload
    def handle(self, job_id: str, task: None = None) -> JobHandle[Any]: ...
    @overload
    def handle(self, job_id: str, task: Task[..., R]) -> JobHandle[R]: ...
    def handle(self, job_id: str, task: Task[..., Any] | None = None) -> JobHandle[Any]:
        """Return a handle of the job with this id, for example an id from a request. This does not read the store.

        With `task`, its result has the type of that task.
        """
        check_id("id", job_id)
        return JobHandle(self._app, job_id, None, task)

    @overload
    async def get(self, jobs: OneJob) -> JobStatus | None: ...  # type: ignore[overload-overlap]
    @overload
    async def get(self, jobs: Many) -> list[JobStatus | None]: ...
    async def get(self, jobs: OneJob | Many) -> JobStatus | list[JobStatus | None] | None:
        """Return the present status of a job, or None if the job was never enqueued or its record was pruned.

        For many jobs, return a list in the same order.
        """
        store = await self._app.connected()

        async def read(ids: tuple[str, ...]) -> list[JobStatus | None]:
            records = await store.get(ids)
            known = iter(await statuses(self._app, store, [record for record in records if record is not None]))
            return [None if record is None else next(known) for record in records]

        return await _each(read, jobs)

    @overload
    async def cancel(self, jobs: OneJob, *, running: Running = "refuse") -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    async def cancel(self, jobs: Many, *, running: Running = "refuse") -> list[Cancelled]: ...
    async def cancel(self, jobs: OneJob | Many, *, running: Running = "refuse") -> Cancelled | list[Cancelled]:
        """Cancel waiting jobs and return what happened to each job.

        Running jobs are not cancelled; with `running="request"`, they are requested to stop.
        """
        if running not in ("refuse", "request"):
            raise InvalidInput(f'running must be "refuse" or "request", not {running!r}')
        store = await self._app.connected()
        return await _each(lambda ids: store.cancel(ids, running), jobs)

    @overload
    async def replay(self, jobs: OneJob, *, children: bool = True) -> Replayed: ...  # type: ignore[overload-overlap]
    @overload
    async def replay(self, jobs: Many, *, children: bool = True) -> list[Replayed]: ...
    async def replay(self, jobs: OneJob | Many, *, children: bool = True) -> Replayed | list[Replayed]:
        """Move finished jobs back to waiting, with their failures reset to 0. Return what happened to each job.

        Their history is kept. With `children`, children that were buried because one of these jobs died or was
        cancelled (`dependency_failed`) are replayed too.
        """
        store = await self._app.connected()
        return await _each(lambda ids: store.replay(ids, children), jobs)

    @overload
    async def archive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]
    @overload
    async def archive(self, jobs: Many) -> list[Archived]: ...
    async def archive(self, jobs: OneJob | Many) -> Archived | list[Archived]:
        """Hide finished jobs from searches, without changing their state. Return what happened to each job.

        `unarchive` shows them again.
        """
        store = await self._app.connected()
        return await _each(lambda ids: store.archive(ids, True), jobs)

    @overload
    async def unarchive(self, jobs: OneJob) -> Archived: ...  # type: ignore[overload-overlap]

    @overload
    async def unarchive(self, jobs: Many) -> list[Archived]: ...

    async def unarchive(self, jobs: OneJob | Many) -> Archived | list[Archived]:
        """Make archived jobs visible in lists again."""
        store = await self._app.connected()
        return await _each(lambda ids: store.archive(ids, False), jobs)

    @overload
    async def delete(self, jobs: OneJob) -> Deleted: ...  # type: ignore[overload-overlap]
    @overload
    async def delete(self, jobs: Many) -> list[Deleted]: ...
    async def delete(self, jobs: OneJob | Many) -> Deleted | list[Deleted]:
        """Delete finished jobs now, before their retention is over. Return what happened to each job.

        Jobs that have not finished are not deleted.
        """
        store = await self._app.connected()

        async def in_batches(ids: tuple[str, ...]) -> list[Deleted]:
            answers: list[Deleted] = []
            for start in range(0, len(ids), AT_ONCE):
                answers += await store.delete(ids[start : start + AT_ONCE])
            return answers

        return await _each(in_batches, jobs)

    async def purge(self, *, dry_run: bool = False, **matching: Unpack[Matching]) -> int:
        """Delete all finished jobs that match the filters, and return how many. With `dry_run`, only count them.

        Without `state`, completed, dead and cancelled jobs match. `purge(state="dead", queue="mail")` deletes only the
        dead letters of one queue. Raises InvalidInput if there is no filter.
        """
        if not any(value is not None for value in matching.values()):
            raise InvalidInput("purge() without a filter would delete every finished job; pass a state or a queue")
        count = 0
        for state in _ENDED if matching.get("state") is None else (matching["state"],):
            async for ids in self._found_in_pages({**matching, "state": state}):
                count += len(ids) if dry_run else (await self.delete(ids)).count(Deleted.DELETED)
        return count

    async def _found_in_pages(self, matching: Matching) -> AsyncIterator[list[str]]:
        ids: list[str] = []
        async for job in self.find(**matching, page=AT_ONCE):
            if job.state in _ENDED:
                ids.append(job.id)
            if len(ids) >= AT_ONCE:
                yield ids
                ids = []
        if ids:
            yield ids

    async def history(self, job: OneJob) -> list[Event]:
        """Return all events of the job that are kept, oldest first, including those of earlier generations."""
        store = await self._app.connected()
        return await store.history(*job_ids("history", job))

    async def why(self, job: OneJob) -> list[Reason]:
        """Return the reasons why the job waits, the most important first; an empty list if it does not wait.

        Raises JobNotFound.
        """
        from millrace.app.why import why_waiting

        store = await self._app.connected()
        [job_id] = job_ids("why", job)
        [record] = await store.get([job_id])
        return await why_waiting(self._app, store, existing(job_id, record), await store.now())

    async def expires_at(self, job: OneJob) -> datetime | None:
        """Return when a waiting job expires, or when the record of a finished job is pruned.

        None means never, or that there is no such job.
        """
        store = await self._app.connected()
        [record] = await store.get(job_ids("expires_at", job))
        if record is None:
            return None
        at = expires_at(record, await self._app.queue(record.queue).settings())
        return None if at is None else as_datetime(at)

    async def position(self, job: OneJob) -> int | None:
        """Return how many jobs run before this one, counted up to 10,000; None if this job is not waiting."""
        store = await self._app.connected()
        return await store.position(*job_ids("position", job))

    async def count(self) -> list[QueueCounts]:
        """Return the number of jobs in each state, one entry per queue."""
        store = await self._app.connected()
        return await store.count()

    @overload
    async def result(
        self, job: BaseHandle[R], *, wait: Duration | None = None, follow: Literal[False] = False
    ) -> R: ...
    @overload
    async def result(self, job: OneJob, *, wait: Duration | None = None, follow: bool = False) -> Any: ...
    async def result(self, job: OneJob, *, wait: Duration | None = None, follow: bool = False) -> Any:
        """Return the job's result, converted to the return annotation of its task if this app has the task.

        By default this does not wait. Raises WaitTimeout if the job has not finished within `wait`. Raises JobNotFound,
        JobFailed, JobCancelled or ResultExpired if there is no result. A handle that an enqueue returned means the job
        of that enqueue, also if its id was reused.

        With `follow`, a job that continues in another one (`ctx.enqueue`) has the result of that one, and so on. If a
        job has enqueued several jobs, the last of them is followed.
        """
        store = await self._app.connected()
        [job_id] = job_ids("result", job)
        handle = job if isinstance(job, BaseHandle) else None
        generation = None if handle is None or handle._answer is None else handle._answer.generation or None
        seconds = 0.0 if wait is None else milliseconds("wait", wait) / 1000
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        async with store.watch(job_id) as watch:
            done = await result_wait.finished(store, watch, job_id, generation, seconds)
        if handle is not None and handle._task is not None and handle._task.name != done.task:
            raise InvalidInput(
                f"job {job_id!r} is of task {done.task!r}, not of {handle._task.name!r}, so its result has another "
                f"type. Read it with app.jobs.result({job_id!r})"
            )
        while follow and done.carried:
            async with store.watch(done.carried[-1]) as watch:
                left = max(0.0, deadline - clock())
                done = await result_wait.finished(store, watch, done.carried[-1], None, left)
        return read_result(self._app, done, result_wait.result_of(done))

    async def find(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: str | None = None,
        group: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        enqueued_from: datetime | int | None = None,
        enqueued_to: datetime | int | None = None,
        finished_from: datetime | int | None = None,
        finished_to: datetime | int | None = None,
        archived: bool | None = False,
        newest_first: bool = False,
        by_change: bool = False,
        limit: int | None = None,
        page: int = 100,
    ) -> AsyncIterator[JobStatus]:
        """Iterate over the jobs that match all filters, in order of seq. `archived=None` includes archived jobs.

        No store has an index of tags: `tag` is compared with each job that the other filters find.

        With `by_change`, the most recently changed jobs come first. Jobs whose last change is older than the store's
        `keep_events` (7 days) may be missing.
        """
        state, archived = read_state(state, archived)
        if tag is not None:
            check_tag(tag)
        cursor, left = None, limit
        store = await self._app.connected()
        while left is None or left > 0:
            found = await find_page(
                store,
                Query(
                    queue=queue,
                    task=task,
                    state=state,
                    group=group,
                    key=key,
                    tag=tag,
                    enqueued_from=_instant(enqueued_from),
                    enqueued_to=_instant(enqueued_to),
                    finished_from=_instant(finished_from),
                    finished_to=_instant(finished_to),
                    archived=archived,
                    newest_first=newest_first,
                    by_change=by_change,
                    limit=page if left is None else min(page, left),
                    cursor=cursor,
                ),
            )
            for job in await statuses(self._app, store, found.jobs):
                yield job
            left = None if left is None else left - len(found.jobs)
            cursor = found.cursor
            if cursor is None:
                return


def job_ids(what: str, jobs: OneJob | Iterable[OneJob]) -> tuple[str, ...]:
    """Return the ids of one or many jobs, each passed as an id, a handle, a status, a record or a spec.

    Raises InvalidInput for any other object. `what` is the name of the argument in the message.
    """
    if isinstance(jobs, _ONE):
        jobs = (jobs,)
    try:
        return tuple(job if isinstance(job, str) else job.id for job in jobs)
    except (TypeError, AttributeError):
        raise InvalidInput(f"{what} takes job ids, handles or jobs; not {jobs!r}") from None


def read_state(state: str | None, archived: bool | None = False) -> tuple[Word | str | None, bool | None]:
    """Return the state and the `archived` flag to search for, from the name of a state.

    State names of other job queues are accepted as aliases. Raises InvalidInput for an unknown name.
    """
    if state is None:
        return None, archived
    word = state.strip().lower()
    if word == "archived":
        return None, True
    word = ALIASES.get(word, word)
    if word not in WORDS:
        known = ", ".join(sorted(WORDS | ALIASES.keys() | {"archived"}))
        raise InvalidInput(f"there is no state {state!r}. Known are: {known}.")
    return word, archived


def _instant(when: datetime | int | None) -> int | None:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidInput(f"{when!r} has no time zone; add one, e.g. tzinfo=timezone.utc")
        return as_milliseconds(when)
    return when


async def _each(ask: Callable[[tuple[str, ...]], Awaitable[list[A]]], jobs: OneJob | Many) -> A | list[A]:
    answers = await ask(job_ids("jobs", jobs))
    return answers[0] if isinstance(jobs, _ONE) else answers
