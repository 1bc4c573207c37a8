"""Acting on selected jobs, batch by batch, from the driver.

Not from partitions: one process can keep a rate and a manifest, SQLite has one writer anyway, and a Spark task that is
run twice would act twice. Between the selection and its turn a job may have lived on, for hours where the rate is low;
so each batch is looked at once more, and what is no longer the job that was selected is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice

from millrace.domain.job import Job
from millrace.spark.bulk_deeds import CHANGED, Deed
from millrace.spark.bulk_manifest import Answered, Manifest, Planned
from millrace.spark.bulk_rate import Pace
from millrace.spark.open import Opened
from millrace.store.protocol import Store

NOT_FOUND = "not_found"


def instant() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def carry_out(found: Opened, manifest: Manifest, deed: Deed, pace: Pace, tell: Callable[[int], None]) -> bool:
    """Act on all that have no answer yet; False: it was stopped before."""
    tally = manifest.tally
    jobs = manifest.pending()
    while batch := list(islice(jobs, pace.size)):
        if not pace.admit(len(batch)):
            return False
        doubtful = max(0, tally.begun - tally.answered)
        manifest.begin(len(batch))
        answers = found.run(answers_to(found.store, deed, batch, doubtful))
        at = instant()
        manifest.answer(
            [Answered(job.id, job.seq, job.state, answer, at) for job, answer in zip(batch, answers, strict=True)]
        )
        tell(tally.answered)
    if not tally.ended:
        manifest.end(instant())
    return True


async def answers_to(store: Store, deed: Deed, batch: Sequence[Planned], doubtful: int) -> list[str]:
    """An answer for each; of the first `doubtful` an earlier run may have done some already."""
    jobs = await store.get([planned.id for planned in batch])
    known = [
        _without_asking(deed, planned, job, number < doubtful)
        for number, (planned, job) in enumerate(zip(batch, jobs, strict=True))
    ]
    asked = [planned.id for planned, answer in zip(batch, known, strict=True) if answer is None]
    answers = iter(await deed.ask(store, asked) if asked else ())
    return [str(next(answers)) if answer is None else answer for answer in known]


def _without_asking(deed: Deed, planned: Planned, job: Job | None, doubtful: bool) -> str | None:
    """The answer, where it is known without acting; None: act."""
    if job is None:
        return NOT_FOUND
    if job.seq != planned.seq:  # the id was enqueued again
        return CHANGED
    landed = deed.landed(job, planned.finished_ms) if doubtful else None
    if landed is not None:
        return landed
    if deed.name == "cancel":  # what lives may well have run and failed meanwhile; but not have come back
        return CHANGED if planned.replays is not None and job.replays != planned.replays else None
    return None if job.finished_at == planned.finished_ms else CHANGED
