"""Waiting for a job's result: the notification makes it fast, a slow poll behind it makes it sure (BR-16).

The order is: watch, then enqueue, then read the state, then wait. A job that ends in between is found by the read.
"""

from __future__ import annotations

import asyncio
import math
import random

from millrace.domain.errors import JobCancelled, JobFailed, JobNotFound, QueueError, ResultExpired, WaitTimeout
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job, State
from millrace.store.protocol import Store, Watch

FIRST_POLL = 0.05
SLOWEST_POLL = 1.0


async def finished(
    store: Store, watch: Watch, job_id: str, generation: int | None, wait: float | None, *, new: bool = False
) -> Job:
    """The job once it has finished, in whichever way. `generation` None takes the one that is there.

    A job that is `new` was enqueued under the watch: its end cannot have been missed, so there is nothing to read yet.
    """
    clock = asyncio.get_running_loop().time
    deadline = math.inf if wait is None else clock() + wait
    poll = FIRST_POLL
    while True:
        if not new:
            [job] = await store.get([job_id])
            if job is None or (generation is not None and job.generation != generation):
                raise await _gone(store, job_id, generation)
            generation = job.generation
            if job.state in FINISHED:
                return job
        new = False
        left = deadline - clock()
        if left <= 0:
            raise WaitTimeout(job_id, wait or 0.0)
        told = await watch.wait(min(left, poll * random.uniform(0.8, 1.2)))  # so that many waiters do not poll in step
        if told is not None and told.state in FINISHED and generation in (None, told.generation):
            return told
        poll = min(poll * 1.5, SLOWEST_POLL)


def result_of(job: Job) -> bytes | None:
    """The encoded result of a finished job, or the error that says why there is none. None: it had nothing to say."""
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
    """What became of a job whose record was pruned or has made way for a newer one: its history tells."""
    events = [event for event in await store.history(job_id) if generation in (None, event.generation)]
    ends: dict[Kind, Event] = {event.kind: event for event in events}
    if Kind.COMPLETED in ends:
        return ResultExpired(job_id)
    if Kind.BURIED in ends:
        return JobFailed(job_id, ends[Kind.BURIED].reason, ends[Kind.BURIED].error)
    return JobCancelled(job_id) if Kind.CANCELLED in ends else JobNotFound(job_id)
