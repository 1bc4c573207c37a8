"""Processes selected jobs chunk by chunk, in the driver.

Executors are not used, for three reasons: one process can limit the rate and write the manifest, SQLite has only one
writer, and a Spark task that runs twice would act twice. Hours can pass between the selection of a job and its
processing. So each chunk is read again, and jobs that have changed since the selection are skipped.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice

from millrace.app.format import instant
from millrace.domain.errors import InvalidInput
from millrace.domain.job import LIVE, Job, State
from millrace.domain.request import Archived, Cancelled, Deleted, Replayed
from millrace.spark.bulk_manifest import Answered, BulkManifest, Planned
from millrace.spark.open import OpenedStore
from millrace.store.clock import system_clock
from millrace.store.protocol import Store
from millrace.views.bulk import BATCH, CHANGED, BulkAction

_UNITS = {"s": 1, "m": 60, "h": 3600}


def carry_out(
    found: OpenedStore, manifest: BulkManifest, action: BulkAction, pace: Pace, on_progress: Callable[[int], None]
) -> bool:
    """Process all jobs of the manifest that have no answer yet. Return False if the operation was stopped before the
    end.
    """
    tally = manifest.tally
    jobs = manifest.pending()
    while batch := list(islice(jobs, pace.size)):
        if not pace.admit(len(batch)):
            return False
        doubtful = max(0, tally.begun - tally.answered)
        manifest.begin(len(batch))
        answers = found.run(answers_to(found.store, action, batch, doubtful))
        at = instant(system_clock())
        manifest.answer(
            [Answered(job.id, job.seq, job.state, answer, at) for job, answer in zip(batch, answers, strict=True)]
        )
        on_progress(tally.answered)
    if not tally.ended:
        manifest.end(instant(system_clock()))
    return True


async def answers_to(store: Store, action: BulkAction, batch: Sequence[Planned], doubtful: int) -> list[str]:
    """Process a chunk of jobs and return the answer for each job. For the first `doubtful` jobs, an earlier process may
    have acted already.
    """
    jobs = await store.get([planned.id for planned in batch])
    known = [
        _without_asking(action, planned, job, number < doubtful)
        for number, (planned, job) in enumerate(zip(batch, jobs, strict=True))
    ]
    asked = [planned.id for planned, answer in zip(batch, known, strict=True) if answer is None]
    answers = iter(await action.run(store, asked) if asked else ())
    return [str(next(answers)) if answer is None else answer for answer in known]


def _without_asking(action: BulkAction, planned: Planned, job: Job | None, doubtful: bool) -> str | None:
    """Return the answer for a job whose answer is known without acting; None if the store must act on the job."""
    if job is None:
        return (Deleted.DELETED if action.verb == "delete" and doubtful else Deleted.NOT_FOUND).value
    if job.seq != planned.seq:  # the id was enqueued again
        return CHANGED
    landed = _landed(action, job, planned.finished_ms) if doubtful else None
    if landed is not None:
        return landed
    if action.verb == "replay" and job.state in LIVE and planned.replays is not None and job.replays > planned.replays:
        return Replayed.REPLAYED.value  # with its parent, or by another caller
    if action.verb == "cancel":  # a live job may have run and failed meanwhile, but was not replayed
        return CHANGED if planned.replays is not None and job.replays != planned.replays else None
    return None if job.finished_at == planned.finished_ms else CHANGED


def _landed(action: BulkAction, job: Job, finished: int | None) -> str | None:
    """Return the answer if an earlier process has already acted on the job but not recorded the answer; otherwise None.

    A job whose finish time is not `finished` was replayed since the selection. It is not replayed again.
    """
    match action.verb:
        case "replay":
            return Replayed.REPLAYED.value if job.finished_at != finished else None
        case "cancel":
            return Cancelled.CANCELLED.value if job.state is State.CANCELLED else None
        case "delete":
            return None  # the job still exists
        case _:
            return Archived.DONE.value if job.archived is (action.verb == "archive") else None


# ── the rate ──────────────────────────────────────────────────────────────────────────────────


def read_rate(rate: str | float | None) -> float | None:
    """Parse a rate, such as 100, "100/s", "30/m" or "500/h", and return jobs per second. None means no limit."""
    if rate is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*(?:/\s*([smh]))?", str(rate).strip(), re.ASCII)
    per_second = float(found[1]) / _UNITS[found[2] or "s"] if found else 0.0
    if per_second <= 0:
        raise InvalidInput(f"the rate is a number of jobs such as 100/s, 30/m or 500/h, not {rate!r}")
    return per_second


class Pace:
    """Limits the rate of a bulk operation to `rate` jobs per second. `wait` sleeps for a number of seconds, and returns
    True if the operation should stop.
    """

    def __init__(
        self,
        rate: float | None,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._wait = wait or threading.Event().wait
        self._clock = clock
        self._due = clock()
        # At most one second's worth per batch, so that 100/s does not mean bursts of 500 every five seconds.
        self.size = BATCH if rate is None else max(1, min(BATCH, math.floor(rate)))

    def admit(self, jobs: int) -> bool:
        """Sleep until `jobs` more jobs may be processed. Return False if the operation should stop, else True."""
        now = self._clock()
        if self._wait(max(0.0, self._due - now)):
            return False
        if self._rate is not None:
            self._due = max(self._due, now) + jobs / self._rate
        return True
