"""Explains why a job is not running: a list of reasons as text, the most important first.

`explain` is a pure function, so the command line, the HTTP API and the dashboard show the same reasons. `why_waiting`
reads the data for `explain` from a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from millrace.app.format import plural, span
from millrace.domain.job import Job, State
from millrace.domain.request import Query, WorkerInfo
from millrace.domain.settings import Limits, QueueSettings
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.app.app import App

SHOWN = 5
MOST_PARENTS = 1_000
PAGE, MOST_PAGES = 500, 20

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


class Reason(msgspec.Struct, frozen=True):
    """One reason why a job does not run. `command` is the command line that removes the reason, or None."""

    code: Code
    text: str
    command: str | None = None

    def __str__(self) -> str:
        return self.text if self.command is None else f"{self.text}: {self.command}"


class Surroundings(msgspec.Struct, frozen=True):
    """The data that `explain` needs besides the job."""

    settings: QueueSettings
    task_limits: Limits
    running: int  # running jobs of the queue
    open_parents: tuple[str, ...]
    workers: tuple[WorkerInfo, ...]  # the live workers
    running_of_task: int = 0  # over all queues, counted up to the task's limit
    ahead: int | None = None  # jobs that run before this one


def explain(job: Job, around: Surroundings, now: int) -> list[Reason]:
    """Return the reasons why a job waits. The list is empty if the job is not waiting."""
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
            else Reason("next", "it is next: a worker should claim it now")
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
        text = f"another job of {line} runs, is in backoff or is ahead of it; one job runs at a time"
        reasons.append(Reason("line_busy", text))
    return reasons


def _limits(job: Job, around: Surroundings) -> list[Reason]:
    limit = around.settings.max_running
    if limit is not None and around.running >= limit:
        text = f"queue {job.queue} runs {around.running} jobs, and its limit is {limit}"
        return [Reason("queue_limit", text)]
    of_task = around.task_limits.max_running
    if of_task is not None and around.running_of_task >= of_task:
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
        return [Reason("task_unknown", f"no live worker of queue {job.queue} has task {job.task}")]
    slots, busy = sum(info.slots for info in able), sum(len(info.running) for info in able)
    if busy >= slots:
        return [Reason("slots_busy", f"all {plural(slots, 'slot')} of the workers that could run it are busy")]
    return []


# ── from a store ──────────────────────────────────────────────────────────────────────────────


async def why_waiting(app: App, store: Store, job: Job, now: int) -> list[Reason]:
    """Return the reasons why a job waits, as `explain` does. The data for this are read from the store."""
    if job.state is not State.WAITING:
        return []
    queue = app.queue(job.queue)
    task_limits = await app.limit(job.task)
    around = Surroundings(
        settings=await queue.settings(),
        task_limits=task_limits,
        running=(await queue.counts()).running,
        open_parents=await _open_parents(store, job) if job.blocked else (),
        workers=tuple(record.info for record in await store.workers() if record.alive),
        running_of_task=await _running_of_task(store, job.task, task_limits.max_running or 0),
    )
    reasons = explain(job, around, now)
    if [reason.code for reason in reasons] != ["next"]:
        return reasons
    ahead = await app.jobs.position(job)
    return explain(job, msgspec.structs.replace(around, ahead=ahead), now)


async def _running_of_task(store: Store, task: str, most: int) -> int:
    """Return how many jobs of the task are running. Stop counting at `most` jobs, or after `MOST_PAGES` pages."""
    query, running = Query(task=task, state=State.RUNNING.value, limit=min(max(most, 1), PAGE)), 0
    for _ in range(MOST_PAGES if most else 0):
        page = await store.find(query)
        running += len(page.jobs)
        if running >= most or page.cursor is None:
            break
        query = msgspec.structs.replace(query, cursor=page.cursor)
    return running


async def _open_parents(store: Store, job: Job) -> tuple[str, ...]:
    parents = await store.get(job.spec.after[:MOST_PARENTS])
    return tuple(
        parent_id
        for parent_id, parent in zip(job.spec.after, parents, strict=False)
        if parent is None or parent.state is not State.COMPLETED
    )
