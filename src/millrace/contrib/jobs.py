"""The jobs of one task of an orchestrator: enqueued under ids that do not change on a retry, awaited, and collected.

The code of the handlers is not needed here. Jobs are enqueued by the name of their task and JSON arguments, like those
of `millrace submit`, and the worker checks the arguments.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from millrace.app import result_wait
from millrace.app.app import App
from millrace.app.format import plural
from millrace.app.ids import new_token
from millrace.domain.errors import InvalidInput, JobCancelled, JobFailed, JobNotFound, QueueError, ResultExpired
from millrace.domain.job import FINISHED, Job, Spec
from millrace.domain.request import Enqueued
from millrace.store.protocol import Store
from millrace.views.job_input import SpecBuilder

Payload = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Returns = Literal["results", "ids"]

CHUNK = 1_000  # jobs per call of the store
KEEP_RESULT = "1d"  # an orchestrator may read the results long after the jobs have completed
MISSING_POLL = 1.0
MOST_SHOWN = 5  # errors in a message


class JobsNotCompleted(QueueError):
    """Some of the jobs of one task of an orchestrator are dead or cancelled, or were deleted."""

    def __init__(self, errors: Sequence[QueueError], total: int) -> None:
        self.errors = tuple(errors)
        lines = [str(error) for error in errors[:MOST_SHOWN]]
        if len(errors) > MOST_SHOWN:
            lines.append(f"and {plural(len(errors) - MOST_SHOWN, 'more job')}")
        super().__init__(
            f"{len(errors)} of {plural(total, 'job')} did not complete. A retry enqueues only these again.\n"
            + "\n".join(lines)
        )


@functools.cache
def app_at(url: str) -> App:
    """Return the app of a store. All callers of a process share it, and it stays open until the process ends."""
    return App(url)


def derived_id(*parts: str | int) -> str:
    """Return a job id that is a function of `parts`."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def job_specs(app: App, task: str, payload: Payload, job_id: str, options: Mapping[str, Any]) -> list[Spec]:
    """Return the spec of one job with the id `job_id`; for a list, one spec per item, with the ids `job_id-0`, ….

    Raises InvalidInput for a payload that is neither a mapping nor a list of mappings, and for unknown options.
    """
    if "id" in options:
        raise InvalidInput("the option 'id' is not allowed here, because a list of jobs cannot share it; set job_id")
    items = _items(payload)
    ids = [job_id] if isinstance(payload, Mapping) else [f"{job_id}-{number}" for number in range(len(items))]
    specs = SpecBuilder(None, task, {"keep_result": KEEP_RESULT, **options}).specs(app, items)
    return [msgspec.structs.replace(spec, id=own, token=new_token()) for spec, own in zip(specs, ids, strict=True)]


async def submit(app: App, specs: Sequence[Spec]) -> list[Enqueued]:
    """Enqueue jobs in chunks of 1,000, and return one answer per spec.

    Jobs that wait, run or have completed under the same id are not enqueued again. Jobs that are dead or cancelled are.
    """
    return [answer for chunk in _chunks(specs) for answer in await app.enqueue(chunk)]


async def wait_until_finished(app: App, ids: Sequence[str], *, allow_missing: bool = False) -> None:
    """Return when all jobs have finished, with any outcome.

    With `allow_missing`, a job that does not exist yet counts as not finished. Otherwise, missing jobs are ignored.
    """
    store = await app.connected()
    for chunk in _chunks(ids):
        # Jobs mostly finish in order. So wait for the last one, and read the others when it has finished.
        while (last := await _last_unfinished(store, chunk, allow_missing)) is not None:
            await _wait_for_one(store, last)


async def have_finished(app: App, ids: Sequence[str]) -> bool:
    """Return whether all jobs have finished, with any outcome. A job that does not exist yet has not finished."""
    store = await app.connected()
    for chunk in _chunks(ids):
        if await _last_unfinished(store, chunk, True) is not None:
            return False
    return True


async def collect(app: App, ids: Sequence[str], returns: Returns = "results") -> list[Any]:
    """Return the results of jobs that have finished, in order. With returns="ids", return the ids.

    Raises an error if any of the jobs did not complete: the job's own if there is only one job, or JobsNotCompleted.
    """
    values: list[Any] = []
    errors: list[QueueError] = []
    for chunk in _chunks(ids):
        for job_id, job in zip(chunk, await app.jobs.get(chunk), strict=True):
            try:
                values.append(await _result(app, job_id, job))
            except ResultExpired as expired:
                if returns == "results":
                    errors.append(expired)
            except QueueError as error:
                errors.append(error)
    if errors:
        raise errors[0] if len(ids) == 1 else JobsNotCompleted(errors, len(ids))
    return values if returns == "results" else list(ids)


async def cancel(app: App, ids: Sequence[str]) -> None:
    """Cancel the jobs that wait, and request those that run to stop."""
    for chunk in _chunks(ids):
        await app.jobs.cancel(chunk, running="request")


async def _last_unfinished(store: Store, ids: Sequence[str], allow_missing: bool) -> str | None:
    jobs = await store.get(ids)
    for job_id, job in zip(reversed(ids), reversed(jobs), strict=True):
        # The history of a job is kept longer than its record.
        unfinished = job.state not in FINISHED if job else allow_missing and not await store.history(job_id)
        if unfinished:
            return job_id
    return None


async def _wait_for_one(store: Store, job_id: str) -> None:
    async with store.watch(job_id) as watch:
        try:
            await result_wait.finished(store, watch, job_id, None, None)
        except JobNotFound:
            await asyncio.sleep(MISSING_POLL)
        except (JobFailed, JobCancelled, ResultExpired):
            pass  # it finished, and its record was pruned


async def _result(app: App, job_id: str, job: Job | None) -> Any:
    if job is None or job.state not in FINISHED:
        return await app.jobs.result(job_id)  # raises the error that explains it
    data = result_wait.result_of(job)
    return None if data is None else app.serdes.decode(data, job.spec.result_serde)


def _items(payload: Any) -> list[dict[str, Any]]:
    if isinstance(payload, Mapping):
        return [dict(payload)]
    if isinstance(payload, str) or not isinstance(payload, Sequence):
        raise InvalidInput(f"the payload is a dict of arguments, or a list of such dicts, not {payload!r}")
    for number, item in enumerate(payload):
        if not isinstance(item, Mapping):
            raise InvalidInput(f"item {number} of the payload is not a dict of arguments: {item!r}")
    return [dict(item) for item in payload]


def _chunks(items: Sequence[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), CHUNK):
        yield list(items[start : start + CHUNK])
