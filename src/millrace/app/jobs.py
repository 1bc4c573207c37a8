"""`app.jobs`: get, find, cancel, replay, archive and delete jobs, and read their history and results.

Most methods take one job or many; a job is passed as an id, a record, a spec or the answer of an enqueue. For one job
they return one value, for many jobs a list in the same order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from millrace.app import result_wait
from millrace.app.duration import Duration, milliseconds
from millrace.app.recently_changed import recently_changed
from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.job import ALIASES, Job, Spec, State, Word
from millrace.domain.request import Archived, Cancelled, Deleted, Enqueued, Page, Query, QueueCounts, Replayed
from millrace.domain.rules.dead import expires_at

if TYPE_CHECKING:
    from millrace.app.app import App

A = TypeVar("A")
OneJob = str | Enqueued | Job | Spec
Many = Iterable[OneJob]
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
    async def get(self, jobs: OneJob) -> Job | None: ...  # type: ignore[overload-overlap]
    @overload
    async def get(self, jobs: Many) -> list[Job | None]: ...
    async def get(self, jobs: OneJob | Many) -> Job | list[Job | None] | None:
        """Return the current record of a job, or None if the job was never enqueued or its record was pruned.

        For many jobs, return a list in the same order.
        """
        store = await self._app.connected()
        return await _each(store.get, jobs)

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

    async def expires_at(self, job: OneJob) -> int | None:
        """Return when a waiting job expires, or when the record of a finished job is pruned.

        The time is in milliseconds of the store's clock. None means never, or that there is no such job.
        """
        found = await self.get(job)
        if found is None:
            return None
        return expires_at(found, await self._app.queue(found.queue).settings())

    async def position(self, job: OneJob) -> int | None:
        """Return how many jobs run before this one, counted up to 10,000; None if this job is not waiting."""
        store = await self._app.connected()
        return await store.position(*job_ids("position", job))

    async def count(self) -> list[QueueCounts]:
        """Return the number of jobs in each state, one entry per queue."""
        store = await self._app.connected()
        return await store.count()

    async def result(self, job: OneJob, *, wait: Duration | None = None) -> Any:
        """Return the job's result, converted to the return annotation of its task if this app has the task.

        By default this does not wait. Raises WaitTimeout if the job has not finished within `wait`. Raises JobNotFound,
        JobFailed, JobCancelled or ResultExpired if there is no result.
        """
        store = await self._app.connected()
        [job_id] = job_ids("result", job)
        seconds = 0.0 if wait is None else milliseconds("wait", wait) / 1000
        async with store.watch(job_id) as watch:
            done = await result_wait.finished(store, watch, job_id, None, seconds)
        data = result_wait.result_of(done)
        task = self._app.tasks.get(done.task)
        if task is not None:
            return task.load_result(data, done.spec.serde)
        return None if data is None else self._app.serdes.decode(data, done.spec.result_serde)

    async def page(self, query: Query) -> Page:
        """Return one page of a search. To get the next page, set `cursor` of the query to the cursor of this page."""
        store = await self._app.connected()
        return await (recently_changed(store, query) if query.by_change else store.find(query))

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
        by_change: bool = False,
        limit: int | None = None,
        page: int = 100,
    ) -> AsyncIterator[Job]:
        """Iterate over the jobs that match all filters, in order of seq. `archived=None` includes archived jobs.

        With `by_change`, the most recently changed jobs come first. Jobs whose last change is older than the store's
        `keep_events` (7 days) may be missing.
        """
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
                    by_change=by_change,
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


def job_ids(what: str, jobs: OneJob | Iterable[OneJob]) -> tuple[str, ...]:
    """Return the ids of one or many jobs, each passed as an id, a record, a spec or the answer of an enqueue.

    Raises InvalidInput for any other object. `what` is the name of the argument in the message.
    """
    if isinstance(jobs, OneJob):
        jobs = (jobs,)
    try:
        return tuple(job if isinstance(job, str) else job.id for job in jobs)
    except (TypeError, AttributeError):
        raise InvalidInput(f"{what} takes job ids, answers of enqueue, or jobs; not {jobs!r}") from None


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
        return int(when.timestamp() * 1000)
    return when


async def _each(ask: Callable[[tuple[str, ...]], Awaitable[list[A]]], jobs: OneJob | Many) -> A | list[A]:
    answers = await ask(job_ids("jobs", jobs))
    return answers[0] if isinstance(jobs, OneJob) else answers
