"""Why is this job not running? The facts that hold it back, in words, the strongest first."""

from __future__ import annotations

from millrace.cli.text import plural, span
from millrace.domain.job import Job, State
from millrace.runtime.app import App
from millrace.store.protocol import Store

SHOWN = 5


async def why_waiting(app: App, store: Store, job: Job, now: int) -> list[str]:
    """Empty for a job that does not wait."""
    if job.state is not State.WAITING:
        return []
    queue = app.queue(job.queue)
    settings = await queue.settings()
    reasons: list[str] = []
    if settings.paused:
        reasons.append(f"queue {job.queue} is paused: millrace resume {job.queue}")
    if job.lane is not None and job.lane in settings.paused_lanes:
        reasons.append(f"lane {job.lane} is paused: millrace resume {job.queue} --lane {job.lane}")
    if job.blocked:
        reasons.append(await _parents(app, job))
    if job.available_at > now:
        after = f" after failure {job.failures}" if job.failures else ""
        reasons.append(f"it is due in {span(job.available_at - now)}{after}")
    elif not job.blocked and not job.open and job.line is not None:
        line = f"lane {job.lane}" if job.lane is not None else f"group {job.spec.group}"
        reasons.append(f"another job of {line} runs, is in backoff or comes first: one runs at a time")
    counts = await queue.counts()
    if settings.max_running is not None and counts.running >= settings.max_running:
        reasons.append(f"queue {job.queue} runs {counts.running} jobs, and its limit is {settings.max_running}")
    reasons += await _workers(store, job)
    if not reasons:
        ahead = await app.jobs.position(job)
        reasons.append(f"{plural(ahead, 'job')} before it" if ahead else "it is next: a worker should take it now")
    return reasons


async def _parents(app: App, job: Job) -> str:
    parents = await app.jobs.get(job.spec.after[:1_000])
    open_ones = [
        parent_id
        for parent_id, parent in zip(job.spec.after, parents, strict=False)
        if parent is None or parent.state is not State.COMPLETED
    ]
    named = ", ".join(open_ones[:SHOWN]) + (", …" if len(open_ones) > SHOWN else "")
    return f"it waits for {plural(job.blocked, 'other job')}: {named}"


async def _workers(store: Store, job: Job) -> list[str]:
    alive = [record.info for record in await store.workers() if record.alive]
    if not alive:
        return ["no worker is alive: millrace worker --app …"]
    serving = [info for info in alive if job.queue in info.queues]
    if not serving:
        return [f"no live worker serves queue {job.queue}"]
    if not any(job.task in info.tasks for info in serving):
        return [f"no live worker of queue {job.queue} knows task {job.task}"]
    return []
