"""The doctor's checks of workers and jobs: lost workers, jobs that no worker claims, and stuck groups and lanes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from millrace.app.app import App
from millrace.app.format import plural, span
from millrace.cli.doctor.finding import Finding
from millrace.domain.job import Job, State
from millrace.domain.request import Query, QueueCounts, WorkerInfo
from millrace.domain.settings import QueueSettings
from millrace.store.protocol import Store

SAMPLE = 1_000
NEARLY = 0.9


@dataclass
class Scene:
    """Data that is read from the store once and used by several checks."""

    app: App
    store: Store
    known: App | None  # the user's app, with its tasks
    oldest: int
    counts: list[QueueCounts] = field(default_factory=list[QueueCounts])
    settings: dict[str, QueueSettings] = field(default_factory=dict[str, QueueSettings])
    alive: list[WorkerInfo] = field(default_factory=list[WorkerInfo])
    stale: list[WorkerInfo] = field(default_factory=list[WorkerInfo])
    _ready: dict[str, tuple[Job, ...]] = field(default_factory=dict[str, tuple[Job, ...]])

    async def look(self) -> Scene:
        self.counts = await self.app.jobs.count()
        for one in self.counts:
            self.settings[one.queue] = await self.app.queue(one.queue).settings()
        for record in await self.store.workers():
            (self.alive if record.alive else self.stale).append(record.info)
        return self

    async def ready(self, queue: str) -> tuple[Job, ...]:
        """Return the oldest ready jobs of a queue, at most 1,000. The result is cached."""
        if queue not in self._ready:
            query = Query(queue=queue, state="ready", limit=SAMPLE)
            self._ready[queue] = (await self.store.find(query)).jobs
        return self._ready[queue]


async def check_jobs(app: App, store: Store, known: App | None, oldest: int) -> list[Finding]:
    scene = await Scene(app, store, known, oldest).look()
    findings = [_workers(scene), _queues(scene), *_ages(scene), *_full(scene), _paused(scene)]
    findings.append(await _tasks(scene))
    findings.append(await _lines(scene))
    return findings


def _workers(scene: Scene) -> Finding:
    live = sum(one.waiting + one.running for one in scene.counts)
    if scene.stale:
        names = _some([info.id for info in scene.stale])
        do = "find out why they stopped (for example, out of memory); other workers recover their jobs"
        return Finding(
            "workers", "warn", f"{plural(len(scene.stale), 'worker')} stopped sending heartbeats: {names}", do
        )
    if live and not scene.alive:
        return Finding("workers", "warn", f"{plural(live, 'job')} and no worker", "start one: millrace worker --app …")
    return Finding("workers", "ok", f"{len(scene.alive)} alive")


def _queues(scene: Scene) -> Finding:
    served = {queue for info in scene.alive for queue in info.queues}
    alone = [one for one in scene.counts if one.ready and one.queue not in served]
    if scene.alive and alone:
        names = _some([f"{one.queue} ({one.ready:,} ready)" for one in alone])
        return Finding("queues", "warn", f"served by no live worker: {names}", "start a worker with --queues …")
    return Finding("queues", "ok", plural(len(scene.counts), "queue"))


def _ages(scene: Scene) -> list[Finding]:
    late = [one for one in scene.counts if one.oldest_ready is not None and one.oldest_ready > scene.oldest]
    late = [one for one in late if not scene.settings[one.queue].paused]
    if not late:
        return [Finding("oldest ready", "ok", f"no job has been ready for more than {span(scene.oldest)}")]
    names = _some([f"{one.queue} ({span(one.oldest_ready or 0)})" for one in late])
    do = "add workers or slots, increase limits, or inspect a job: millrace list --status ready --oldest"
    return [Finding("oldest ready", "warn", names, do)]


def _full(scene: Scene) -> list[Finding]:
    findings = []
    for one in scene.counts:
        settings = scene.settings[one.queue]
        if settings.dead_cap is not None and one.dead > NEARLY * settings.dead_cap:
            found = f"{one.queue} has {plural(one.dead, 'dead job')} of at most {settings.dead_cap:,}"
            overflow = settings.dead_overflow
            do = f"see the causes: millrace dead --queue {one.queue}. When the limit is reached: {overflow}"
            findings.append(Finding("dead letters", "warn", found, do))
        depth = settings.max_depth if settings.lanes is None else None
        if depth is not None and one.waiting > NEARLY * depth:
            found = f"{one.queue} has {plural(one.waiting, 'waiting job')} of at most {depth:,}"
            findings.append(Finding("depth", "warn", found, "add workers, or increase max_depth"))
    return findings


def _paused(scene: Scene) -> Finding:
    paused = [one for one in scene.counts if scene.settings[one.queue].paused and one.ready]
    if paused:
        names = _some([f"{one.queue} ({one.ready:,} ready)" for one in paused])
        return Finding("paused", "warn", names, "millrace resume QUEUE, if that is no longer intended")
    return Finding("paused", "ok", "no queue with ready jobs is paused")


async def _tasks(scene: Scene) -> Finding:
    """Check that a live worker or the user's app has the tasks of the ready jobs. At most 1,000 jobs of each queue are
    read.
    """
    known = {task for info in scene.alive for task in info.tasks}
    known |= set() if scene.known is None else set(scene.known.tasks)
    if not known:
        return Finding("tasks", "ok", "there is no worker and no app to compare with")
    unknown: Counter[str] = Counter()
    for one in scene.counts:
        if one.ready:
            unknown.update(job.task for job in await scene.ready(one.queue) if job.task not in known)
    if unknown:
        names = _some([f"{task} ({plural(count, 'job')})" for task, count in unknown.most_common()])
        return Finding(
            "tasks", "warn", f"unknown tasks: {names}", "deploy the task, or cancel the jobs: millrace cancel --task …"
        )
    return Finding("tasks", "ok", "every task of the ready jobs is known")


async def _lines(scene: Scene) -> Finding:
    """Find stuck groups and lanes: they have waiting jobs, but none of their jobs is running, in backoff, or next to
    run. A stuck group or lane is a bug in Millrace.
    """
    suspects: dict[tuple[str, str], Job] = {}
    for one in scene.counts:
        for job in await scene.ready(one.queue) if one.ready else ():
            if job.line is not None and job.in_line and not job.open and not job.blocked:
                suspects.setdefault((job.queue, job.line), job)
    stuck = [key for key, job in list(suspects.items())[:100] if not await _moves(scene, job)]
    if stuck:
        names = _some([f"{queue} {line}" for queue, line in stuck])
        return Finding(
            "lines", "fail", f"no job can start in: {names}", "report it, with `millrace history` of one job"
        )
    return Finding("lines", "ok", "no group or lane is stuck")


async def _moves(scene: Scene, member: Job) -> bool:
    """Return whether a job in the same group or lane as `member` is running, in backoff, or next to run."""
    if member.lane is not None:
        lanes = {lane.lane: lane for lane in await scene.app.queue(member.queue).lanes()}
        if member.lane in lanes and (lanes[member.lane].running or lanes[member.lane].holder is not None):
            return True
    query = Query(queue=member.queue, group=member.spec.group if member.lane is None else None, limit=SAMPLE)
    while True:
        page = await scene.store.find(query)
        for job in page.jobs:
            if job.line == member.line and (job.open or job.holds or job.state is State.RUNNING):
                return True
        if page.cursor is None:
            return False
        query = msgspec.structs.replace(query, cursor=page.cursor)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
