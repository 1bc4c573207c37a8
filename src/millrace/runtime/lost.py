"""What becomes of a job whose lease ran out, by whoever took it over: its retry policy travels with it (BL-05)."""

from __future__ import annotations

from millrace.domain.change import Change
from millrace.domain.decide import decide
from millrace.domain.job import Job
from millrace.domain.outcome import Failure, Lost
from millrace.runtime.host import Runnable
from millrace.runtime.run import chosen_delay


def change_after_loss(job: Job, task: Runnable | None, chance: float) -> Change:
    outcome = Lost(_failure(job), worker_gone=bool(job.lost_worker))
    return chosen_delay(task, job, outcome, decide(job, outcome, chance))


def _failure(job: Job) -> Failure:
    if job.lost_worker:
        return Failure("WorkerLost", f"attempt {job.attempt} ended with its worker, which no longer beats")
    return Failure("LeaseLost", f"attempt {job.attempt} lost its lease while its worker was alive")
