"""Why is this job not running? The facts that hold it back, in words, the strongest first.

`explain` is a pure function of the job and of what surrounds it, so the command line, the HTTP API and a dashboard give
the same answer; `why_waiting` gathers what it needs from a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from millrace.domain.job import Job, State
from millrace.domain.request import WorkerInfo
from millrace.domain.settings import Limits, QueueSettings
from millrace.runtime.app import App
from millrace.runtime.words import plural, span
from millrace.store.protocol import Store

SHOWN = 5
MOST_PARENTS = 1_000

Code = Literal[
    "queue_paused",
    "lane_paused",
    "blocked",
    "not_due",
    "line_busy",
    "queue_limit",
    "queue_rate",
    "task_limit",
    "no_worker",
    "queue_unserved",
    "task_unknown",
    "slots_busy",
    "behind_others",
    "next",
]


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that holds a job back, and the command that would change it, if one would."""

    code: Code
    text: str
    command: str | None = None

    def __str__(self) -> str:
        return self.text if self.command is None else f"{self.text}: {self.command}"


class Surroundings(msgspec.Struct, frozen=True):
    """What an explanation needs besides the job."""

    settings: QueueSettings
    task_limits: Limits
    running: int  # jobs of the queue that run
    open_parents: tuple[str, ...]
    workers: tuple[WorkerInfo, ...]  # that are alive
    ahead: int | None = None  # jobs before it


def explain(job: Job, around: Surroundings, now: int) -> list[Reason]:
    """Empty for a job that does not wait."""
    if job.state is not State.WAITING:
        return []
    reasons = [*_paused(job, around.settings), *_not_yet(job, around, now), *_limits(job, around)]
    reasons += _workers(job, around.workers)
    if not reasons and around.settings.rate is not None:
        text = f"queue {job.queue} starts at most {around.settings.rate:g} jobs a second"
        reasons.append(Reason("queue_rate", text))
    if not reasons:
        ahead = around.ahead
        reasons.append(
            Reason("behind_others", f"{plural(ahead, 'job')} before it")
            if ahead
            else Reason("next", "it is next: a worker should take it now")
        )
    return reasons


def _paused(job: Job, settings: QueueSettings) -> list[Reason]:
    reasons: list[Reason] = []
    if settings.paused:
        reasons.append(Reason("queue_paused", f"queue {job.queue} is paused", f"millrace resume {job.queue}"))
    if job.lane is not None and job.lane in settings.paused_lanes:
        command = f"millrace resume {job.queue} --lane {job.lane}"
        reasons.append(Reason("lane_paused", f"lane {job.lane} is paused", command))
    return reasons


def _not_yet(job: Job, around: Surroundings, now: int) -> list[Reason]:
    reasons: list[Reason] = []
    if job.blocked:
        named = ", ".join(around.open_parents[:SHOWN]) + (", …" if len(around.open_parents) > SHOWN else "")
        reasons.append(Reason("blocked", f"it waits for {plural(job.blocked, 'other job')}: {named}"))
    if job.available_at > now:
        after = f" after failure {job.failures}" if job.failures else ""
        reasons.append(Reason("not_due", f"it is due in {span(job.available_at - now)}{after}"))
    elif not job.blocked and not job.open and job.line is not None:
        line = f"lane {job.lane}" if job.lane is not None else f"group {job.spec.group}"
        text = f"another job of {line} runs, is in backoff or comes first: one runs at a time"
        reasons.append(Reason("line_busy", text))
    return reasons


def _limits(job: Job, around: Surroundings) -> list[Reason]:
    limit = around.settings.max_running
    if limit is not None and around.running >= limit:
        text = f"queue {job.queue} runs {around.running} jobs, and its limit is {limit}"
        return [Reason("queue_limit", text)]
    of_task = around.task_limits.max_running
    if of_task is not None and (of_task == 0 or around.running >= of_task):
        return [
            Reason("task_limit", f"of task {job.task}, at most {plural(of_task, 'job runs', 'jobs run')} at a time")
        ]
    return []


def _workers(job: Job, alive: Sequence[WorkerInfo]) -> list[Reason]:
    if not alive:
        return [Reason("no_worker", "no worker is alive", "millrace worker --app …")]
    serving = [info for info in alive if job.queue in info.queues]
    if not serving:
        return [Reason("queue_unserved", f"no live worker serves queue {job.queue}")]
    able = [info for info in serving if job.task in info.tasks]
    if not able:
        return [Reason("task_unknown", f"no live worker of queue {job.queue} knows task {job.task}")]
    slots, busy = sum(info.slots for info in able), sum(len(info.running) for info in able)
    if busy >= slots:
        return [Reason("slots_busy", f"all {plural(slots, 'slot')} of the workers that could run it are busy")]
    return []


# ── from a store ──────────────────────────────────────────────────────────────────────────────


async def why_waiting(app: App, store: Store, job: Job, now: int) -> list[Reason]:
    """Empty for a job that does not wait."""
    if job.state is not State.WAITING:
        return []
    queue = app.queue(job.queue)
    around = Surroundings(
        settings=await queue.settings(),
        task_limits=await app.limit(job.task),
        running=(await queue.counts()).running,
        open_parents=await _open_parents(app, job) if job.blocked else (),
        workers=tuple(record.info for record in await store.workers() if record.alive),
    )
    reasons = explain(job, around, now)
    if [reason.code for reason in reasons] != ["next"]:
        return reasons
    ahead = await app.jobs.position(job)
    return explain(job, msgspec.structs.replace(around, ahead=ahead), now)


async def _open_parents(app: App, job: Job) -> tuple[str, ...]:
    parents = await app.jobs.get(job.spec.after[:MOST_PARENTS])
    return tuple(
        parent_id
        for parent_id, parent in zip(job.spec.after, parents, strict=False)
        if parent is None or parent.state is not State.COMPLETED
    )
