"""Waiting for a job's result: by notification, with a slow poll in case a notification is lost.

A call starts watching, enqueues the job, reads the job, and waits. The read is needed because the job may have finished
before the wait began.
"""

from __future__ import annotations

import asyncio
import math
import random

from millrace.domain.errors import JobCancelled, JobFailed, JobNotFound, QueueError, ResultExpired, WaitTimeout
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job, State
from millrace.store.protocol import Ending, Store, Watch

FIRST_POLL = 0.05
SLOWEST_POLL = 1.0


async def answered(store: Store, watch: Watch, job_id: str, generation: int, wait: float | None) -> Job | Ending:
    """Wait for a job that was enqueued after the watch began. Return its `Ending`, a notification that has the result,
    or the job if none arrives soon.

    The notification with the `Ending` cannot have been sent before the watch began. So the job need not be read first.
    """
    started = _clock()
    ending = await watch.wait(min(math.inf if wait is None else wait, _spread(FIRST_POLL)))
    if ending is not None and ending.generation == generation:
        return ending
    return await finished(store, watch, job_id, generation, wait, started)


async def finished(
    store: Store,
    watch: Watch,
    job_id: str,
    generation: int | None,
    wait: float | None,
    started: float | None = None,
) -> Job:
    """Wait until the job has finished and return it. If `generation` is None, wait for the current generation.

    Raises WaitTimeout if the job has not finished `wait` seconds after `started`, which is now by default. Raises
    JobNotFound, or an error that tells how the job ended, if its record is gone (`_gone`).
    """
    deadline = math.inf if wait is None else (_clock() if started is None else started) + wait
    poll = FIRST_POLL
    while True:
        [job] = await store.get([job_id])
        if job is None or (generation is not None and job.generation != generation):
            raise await _gone(store, job_id, generation)
        generation = job.generation
        if job.state in FINISHED:
            return job
        left = deadline - _clock()
        if left <= 0:
            raise WaitTimeout(job_id, wait or 0.0)
        await watch.wait(min(left, _spread(poll)))
        poll = min(poll * 1.5, SLOWEST_POLL)


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _spread(seconds: float) -> float:
    """Return the interval, varied at random so that many waiting callers do not poll at the same time."""
    return seconds * random.uniform(0.8, 1.2)


def result_of(job: Job) -> bytes | None:
    """Return the encoded result of a completed job, or None if it was completed without a result.

    Raises ResultExpired if the result was deleted, JobCancelled or JobFailed if the job is cancelled or dead.
    """
    match job.state:
        case State.COMPLETED if job.result_expired:
            raise ResultExpired(job.id)
        case State.COMPLETED:
            return job.result
        case State.CANCELLED:
            raise JobCancelled(job.id)
        case _:
            raise JobFailed(job.id, job.reason, job.error)


async def _gone(store: Store, job_id: str, generation: int | None) -> QueueError:
    """Return the error to raise for a job whose record was pruned or replaced by a later generation.

    The history of the job determines the error: it shows how the job ended.
    """
    events = [event for event in await store.history(job_id) if generation in (None, event.generation)]
    ends: dict[Kind, Event] = {event.kind: event for event in events}
    if Kind.COMPLETED in ends:
        return ResultExpired(job_id)
    if Kind.BURIED in ends:
        return JobFailed(job_id, ends[Kind.BURIED].reason, ends[Kind.BURIED].error)
    return JobCancelled(job_id) if Kind.CANCELLED in ends else JobNotFound(job_id)
