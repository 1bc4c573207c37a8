"""Handles of flows: what the enqueue of a flow returns, with methods to follow and to change its jobs."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import msgspec

from millrace.app import result_wait
from millrace.app.duration import Duration, milliseconds
from millrace.app.flows.members import member_ids, tails_of
from millrace.app.job_handle import BaseHandle, existing
from millrace.app.job_status import JobStatus, read_result, statuses
from millrace.app.payloads.inputs import parents_of_inputs
from millrace.domain.errors import WaitTimeout
from millrace.domain.job import FAILED, FINISHED, LIVE, Job, State
from millrace.domain.request import Cancelled, Replayed
from millrace.domain.rules.check import check_id

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.jobs import Running
    from millrace.app.task import Task
    from millrace.store.protocol import Store

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
PAGE = 500  # jobs per call of the store
LOOK_AGAIN = 5.0  # seconds after which the parts of a last `gather` are read again
STOPPED = (Cancelled.CANCELLED, Cancelled.REQUESTED)


class FlowStatus(msgspec.Struct, frozen=True):
    """A flow as it was when it was read.

    `states` has the number of jobs in each state that users see; `removed` are jobs whose record retention has
    removed. `failed` are the jobs that died or were cancelled, without those that died because of another one.
    """

    id: str
    total: int
    done: int
    states: dict[str, int]
    failed: tuple[JobStatus, ...]
    state: Literal["running", "completed", "failed"]

    @property
    def is_finished(self) -> bool:
        """Whether no job of the flow waits or runs."""
        return self.state != "running"

    def __repr__(self) -> str:
        return f"<FlowStatus {self.id!r}: {self.done} of {self.total} done, {self.state}>"


class FlowHandle(BaseHandle[R_co], frozen=True, gc=False, eq=False):
    """A handle of one flow: what its enqueue returns. R_co is the type of the flow's result.

    Its id is that of the flow, and of the flow's last job. `flow.sync` is the same handle with blocking methods.
    """

    async def result(self, *, wait: Duration | None = None) -> R_co:
        """Return the result of the flow: that of its last job, or the list of the results of a last `gather`.

        By default this does not wait. Raises WaitTimeout if the flow has not finished within `wait`. Raises
        JobNotFound, JobFailed, JobCancelled or ResultExpired if there is no result. If a part of a last `gather` has
        failed, raises within seconds, although other parts go on.
        """
        return await self.await_result(0.0 if wait is None else milliseconds("wait", wait) / 1000)

    async def await_result(self, seconds: float | None) -> R_co:
        """Return the result of the flow as soon as it has one. None means no limit; see `result`."""
        store = await self._app.connected()
        [last] = await store.get([self.id])
        shape = None if last is None else tails_of(last.spec)
        if last is None or shape is None:
            generation = None if self._answer is None else self._answer.generation or None
            last = await _finished(store, self.id, generation, seconds)
            return cast("R_co", read_result(self._app, last, result_wait.result_of(last)))
        ids = member_ids(last.spec)
        jobs = await _all_completed(store, [ids[number - 1] for number in _numbers(shape)], seconds)
        results = {
            number: read_result(self._app, job, job.result) for number, job in zip(_numbers(shape), jobs, strict=True)
        }
        return cast("R_co", _arranged(shape, results))

    async def status(self) -> FlowStatus:
        """Return how far the flow is: jobs done, jobs per state, and the jobs that failed. Raises JobNotFound."""
        store = await self._app.connected()
        states: Counter[str] = Counter()
        failed: list[JobStatus] = []
        records: list[Job | None] = []
        for part in _parts(await self._ids(store)):
            page = await store.get(part)
            for job in await statuses(self._app, store, [record for record in page if record is not None]):
                states[job.state] += 1
                if job.record.state in FAILED and job.reason != "dependency_failed":
                    failed.append(job)
            records += map(_shortened, page)
        removed = records.count(None)
        if removed:
            states["removed"] = removed
        done = states["completed"] + removed
        return FlowStatus(self.id, len(records), done, dict(states), tuple(failed), _state(records))

    async def jobs(self) -> AsyncIterator[JobStatus]:
        """Iterate over the jobs of the flow, in the order in which they were added, the last job last."""
        store = await self._app.connected()
        ids = await self._ids(store)
        for start in range(0, len(ids), PAGE):
            records = await store.get(ids[start : start + PAGE])
            for job in await statuses(self._app, store, [record for record in records if record is not None]):
                yield job

    async def cancel(self, *, running: Running = "request") -> int:
        """Cancel all jobs of the flow that have not finished. Return how many were cancelled or requested to stop.

        Running jobs are requested to stop; with `running="refuse"`, they run on.
        """
        store = await self._app.connected()
        open_ids = [job.id for job in await self._records(store) if job is not None and job.state in LIVE]
        answers: list[Cancelled] = []
        for part in _parts(open_ids[::-1]):  # children first: a child of a cancelled parent would be buried
            answers += await store.cancel(part, running)
        return sum(answer in STOPPED for answer in answers)

    async def replay(self) -> int:
        """Replay the jobs that died or were cancelled, and those that died with them. Return how many were replayed.

        A completed job is replayed too if one of them needs its result, and that is no longer kept.
        """
        store = await self._app.connected()
        records = [record for record in await self._records(store) if record is not None]
        by_id = {record.id: record for record in records}
        wanted = {record.id for record in records if record.state in FAILED}
        for record in reversed(records):  # children before parents
            if record.id in wanted:
                parents = [by_id.get(parent) for parent in parents_of_inputs(record.spec)]
                wanted.update(job.id for job in parents if job is not None and job.result_expired)
        answers: list[Replayed] = []
        for part in _parts([record.id for record in records if record.id in wanted]):
            answers += await store.replay(part, True)
        return answers.count(Replayed.REPLAYED)

    async def _ids(self, store: Store) -> list[str]:
        [last] = await store.get([self.id])
        return member_ids(existing(self.id, last).spec)

    async def _records(self, store: Store) -> list[Job | None]:
        return await short_records(store, await self._ids(store))

    @property
    def sync(self) -> SyncFlowHandle[R_co]:
        """The same handle with blocking methods, for programs without an event loop."""
        return SyncFlowHandle(self._app, self.id, self._answer, self._task)


class SyncFlowHandle(BaseHandle[R_co], frozen=True, gc=False, eq=False):
    """A handle of one flow with blocking methods: what an enqueue of a flow by the blocking API returns."""

    @property
    def _flow(self) -> FlowHandle[R_co]:
        return FlowHandle(self._app, self.id, self._answer, self._task)

    def result(self, *, wait: Duration | None = None) -> R_co:
        """Return the result of the flow, or raise the same exceptions as `FlowHandle.result`."""
        return self._app.sync.run(self._flow.result(wait=wait))

    def status(self) -> FlowStatus:
        """Return how far the flow is: jobs done, jobs per state, and the jobs that failed. Raises JobNotFound."""
        return self._app.sync.run(self._flow.status())

    def jobs(self) -> Iterator[JobStatus]:
        """Iterate over the jobs of the flow, in the order in which they were added, the last job last."""
        from millrace.app.sync.views import iterate

        return iterate(self._app.sync.run, self._flow.jobs(), PAGE)

    def cancel(self, *, running: Running = "request") -> int:
        """Cancel all jobs of the flow that have not finished, like `FlowHandle.cancel`."""
        return self._app.sync.run(self._flow.cancel(running=running))

    def replay(self) -> int:
        """Replay the jobs that died or were cancelled, like `FlowHandle.replay`."""
        return self._app.sync.run(self._flow.replay())


class Flows:
    """The methods of `app.flows`."""

    def __init__(self, app: App) -> None:
        self._app = app

    @overload
    def handle(self, flow_id: str, task: None = None) -> FlowHandle[Any]: ...
    @overload
    def handle(self, flow_id: str, task: Task[..., R]) -> FlowHandle[R]: ...
    def handle(self, flow_id: str, task: Task[..., Any] | None = None) -> FlowHandle[Any]:
        """Return a handle of the flow with this id, for example an id from a request. This does not read the store.

        With `task`, the task of the last job, the flow's result has the type of that task.
        """
        check_id("id", flow_id)
        return FlowHandle(self._app, flow_id, None, task)


class SyncFlows:
    """The methods of `app.sync.flows`."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows

    @overload
    def handle(self, flow_id: str, task: None = None) -> SyncFlowHandle[Any]: ...
    @overload
    def handle(self, flow_id: str, task: Task[..., R]) -> SyncFlowHandle[R]: ...
    def handle(self, flow_id: str, task: Any = None) -> SyncFlowHandle[Any]:
        """Return a handle of the flow with this id, like `Flows.handle`."""
        return self._flows.handle(flow_id, task).sync


async def short_records(store: Store, ids: Sequence[str]) -> list[Job | None]:
    """Return the records of jobs without what is large in them: payloads, results, errors and logs."""
    records: list[Job | None] = []
    for part in _parts(ids):
        records += map(_shortened, await store.get(part))
    return records


def _shortened(job: Job | None) -> Job | None:
    if job is None:
        return None
    spec = msgspec.structs.replace(job.spec, payload=b"")
    return msgspec.structs.replace(job, spec=spec, result=None, error=None, attempts=(), progress=None, log=None)


async def _finished(store: Store, job_id: str, generation: int | None, seconds: float | None) -> Job:
    async with store.watch(job_id) as watch:
        return await result_wait.finished(store, watch, job_id, generation, seconds)


async def _all_completed(store: Store, ids: Sequence[str], seconds: float | None) -> list[Job]:
    """Wait until these jobs have completed and return them. Raises the errors of `FlowHandle.result`.

    The last job that has not finished is awaited before the others are read again, but not longer than `LOOK_AGAIN`.
    It is likely to be the last to end, so they are read few times, and a failure of another one is seen soon.
    """
    clock = asyncio.get_running_loop().time
    begun = clock()
    found: dict[str, Job] = {}
    missing = list(dict.fromkeys(ids))
    while missing:
        for part in _parts(missing):
            found.update((job.id, job) for job in await store.get(part) if job is not None and job.state in FINISHED)
        for job in found.values():
            result_wait.result_of(job)  # raises for a job that has failed, although others may still run
        missing = [job_id for job_id in missing if job_id not in found]
        if missing:
            left = math.inf if seconds is None else max(0.0, begun + seconds - clock())
            try:
                await _finished(store, missing[-1], None, min(left, LOOK_AGAIN))
            except WaitTimeout:
                if left <= LOOK_AGAIN:
                    raise
    return [found[job_id] for job_id in ids]


def _state(records: Sequence[Job | None]) -> Literal["running", "completed", "failed"]:
    if any(job is not None and job.state in LIVE for job in records):
        return "running"
    last = records[-1]
    of_last = last is not None and tails_of(last.spec) is None  # then the result is there if the last job completed
    needed = records[-1:] if of_last else records
    return "completed" if all(job is None or job.state is State.COMPLETED for job in needed) else "failed"


def _numbers(shape: Any) -> list[int]:
    if isinstance(shape, int):
        return [shape]
    return [number for item in (shape["tuple"] if isinstance(shape, dict) else shape) for number in _numbers(item)]


def _arranged(shape: Any, results: Mapping[int, Any]) -> Any:
    """Return the results in the lists and tuples of the shape, which is that of `tails_of`."""
    if isinstance(shape, int):
        return results[shape]
    if isinstance(shape, dict):
        return tuple([_arranged(item, results) for item in shape["tuple"]])
    return [_arranged(item, results) for item in shape]


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), PAGE):
        yield ids[start : start + PAGE]
