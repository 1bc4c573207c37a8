"""One atomic step over the tables, and what a change of one job means for the others.

A transition changes one job. Its consequences (the line elects another member, dependents are unblocked or
die with it, its key is freed, a hook is enqueued) belong to the same step, so that a crash leaves either all
of them or none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from millrace.domain import transition
from millrace.domain.dead import dead_letter_hook, empty_hook, next_retry
from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job, Spec, State
from millrace.domain.outcome import Failure
from millrace.domain.tables import Line, Past, QueueRow, Tables


class Step:
    """`admit` enqueues the jobs that a change carries; it is handed in because admission itself uses steps."""

    def __init__(self, tables: Tables, now: int, admit: Callable[[Step, list[Spec]], object]) -> None:
        self.tables = tables
        self.now = now
        self._admit = admit
        self._ended: deque[Job] = deque()
        self.wiped: str | None = None  # a queue that is to leave nothing behind, no word of its being empty either
        self._emptied: dict[tuple[str, int | None], Job] = {}  # who left a queue or lane without a live job

    def log(self, event: Event) -> None:
        self.tables.append(event)

    def admit(self, specs: list[Spec]) -> None:
        self._admit(self, specs)

    # ── places ────────────────────────────────────────────────────────────────────────────────

    def added(self, job: Job) -> None:
        """A new or replayed job waits from now on."""
        row = self.tables.queue(job.spec.queue)
        row.waiting += 1
        if not job.spec.hook:
            row.live += 1
            self._emptied.pop((job.spec.queue, job.lane), None)
        line = self.line_of(job)
        if line is not None:
            line.waiting += 1
            line.live += 1
        if job.blocked:
            row.blocked += 1
            self.tables.update(job)
            if line is not None:
                self.tables.put_line(line)
        else:
            self.place(job, line)
        self.tables.put_queue(row)

    def added_plain(self, jobs: Mapping[str, int]) -> None:
        """So many jobs of each queue wait from now on, open and in no line."""
        for name, count in jobs.items():
            row = self.tables.queue(name)
            row.waiting += count
            row.live += count
            self._emptied.pop((name, None), None)
            self.tables.put_queue(row)

    def place(self, job: Job, line: Line | None) -> None:
        """Give a waiting, unblocked job its place: open at once, or in its line, or outside it until due."""
        if line is None:
            job.open = True
            self.tables.update(job)
            return
        leaves_until_due = job.lane is None or (job.failures > 0 and not job.spec.retry_blocks)
        job.in_line = not job.holds and not (leaves_until_due and job.available_at > self.now)
        self.tables.update(job)
        self.elect(line)

    def line_of(self, job: Job) -> Line | None:
        name = job.line
        if name is None:
            return None
        return self.tables.line(job.spec.queue, name) or Line(job.spec.queue, name)

    def elect(self, line: Line) -> None:
        """Open the one member that may run next; whatever changes a line calls this in the same step."""
        wanted = self._next_of(line)
        if wanted != line.open:
            if line.open is not None:
                self._set_open(line.open, False)
            if wanted is not None:
                self._set_open(wanted, True)
            line.open = wanted
        if line.live == 0 and line.name.startswith("g:"):
            self.tables.drop_line(line)
        else:
            self.tables.put_line(line)

    def _next_of(self, line: Line) -> int | None:
        if self._paused(line):
            return None
        if line.holder is not None:
            holder = self.tables.by_seq(line.holder)
            return line.holder if holder is not None and holder.state is State.WAITING else None
        return self.tables.best_in_line(line.queue, line.name)

    def _paused(self, line: Line) -> bool:
        if not line.name.startswith("l:"):
            return False
        return int(line.name[2:]) in self.tables.queue(line.queue).settings.paused_lanes

    def _set_open(self, seq: int, is_open: bool) -> None:
        job = self.tables.by_seq(seq)
        if job is not None and job.state is State.WAITING:
            job.open = is_open
            self.tables.update(job)

    # ── a run begins and ends ─────────────────────────────────────────────────────────────────

    def claimed(self, job: Job, row: QueueRow) -> None:
        """Counters and line after `transition.claim`."""
        job.open = job.in_line = False
        row.waiting -= 1
        row.running += 1
        row.taken += 1
        self._task_running(job.spec.task, +1)
        line = self.line_of(job)
        if line is not None:
            line.holder, line.open = job.seq, None
            line.waiting -= 1
            self.tables.put_line(line)
        self.tables.update(job)

    def returned(self, job: Job) -> None:
        """A run ended and the job waits again: its line keeps it as holder or lets others go."""
        row = self.tables.queue(job.spec.queue)
        self._run_ended(job, row)
        row.waiting += 1
        self.tables.put_queue(row)
        line = self.line_of(job)
        if line is not None:
            line.waiting += 1
            if not job.holds:
                line.holder = None
        self.place(job, line)

    def finished(self, job: Job, was: State) -> None:
        """Everything that the end of this job means for its queue, line, key and dependents."""
        row = self.tables.queue(job.spec.queue)
        self._count_end(row, job, was)
        for parent in self.tables.parents(job.seq) if job.blocked else ():
            self.tables.drop_dependency(parent, job.seq)
        if job.blocked:
            row.blocked -= 1
            job.blocked = 0
        job.open = job.in_line = False
        if job.state is State.DEAD:
            job.next_retry_at = next_retry(job, row.settings)
        self.tables.put_queue(row)
        self.tables.update(job)
        line = self.line_of(job)
        if line is not None:
            self._leave(line, job, was)
        self._free_key(job, "live")
        if (row.live if job.lane is None or line is None else line.live) == 0 and not job.spec.hook:
            self._emptied[job.spec.queue, job.lane] = job
        self._ended.append(job)

    def _count_end(self, row: QueueRow, job: Job, was: State) -> None:
        if was is State.RUNNING:
            self._run_ended(job, row)
        else:
            row.waiting -= 1
        if not job.spec.hook:
            row.live -= 1
        if job.state is State.COMPLETED:
            row.completed += 1
            row.processed += 1
        elif job.state is State.DEAD:
            row.dead += 1
            row.died += 1
        else:
            row.cancelled += 1

    def _leave(self, line: Line, job: Job, was: State) -> None:
        line.live -= 1
        if was is State.WAITING:
            line.waiting -= 1
        line.processed += job.state is State.COMPLETED
        line.died += job.state is State.DEAD
        if line.holder == job.seq:
            line.holder = None
        if line.open == job.seq:
            line.open = None
        self.elect(line)

    def _run_ended(self, job: Job, row: QueueRow) -> None:
        """A place under `max_running` is free again; whoever waits for it is woken."""
        row.running -= 1
        self._task_running(job.spec.task, -1)
        if row.settings.max_running is not None or self.tables.task(job.spec.task) is not None:
            self.tables.stir(job.spec.queue, 1)

    def _task_running(self, task: str, by: int) -> None:
        row = self.tables.task(task)
        if row is not None:
            row.running += by
            self.tables.put_task(row)

    # ── consequences ──────────────────────────────────────────────────────────────────────────

    def carry_out(self) -> None:
        """Work off what ended in this step; a loop, so that a chain of ten thousand deaths is no recursion."""
        while self._ended:
            job = self._ended.popleft()
            if job.state is State.WAITING:
                continue  # replayed within the same step
            if job.state is State.DEAD or self._emptied:
                hooks = [hook for hook in (self._dead_hook(job), self._empty_hook(job)) if hook is not None]
                if hooks:
                    self.admit(hooks)
            for child in self._orphans(job):
                self.parent_ended(child, job.spec.id, job.state)
            self._prune_at_once(job)

    def _orphans(self, job: Job) -> list[int]:
        """Who waits for this job; who came after the next generation of its id waits for that one."""
        children = self.tables.children(job.spec.id)
        if not children:
            return children
        heir = self.tables.by_id(job.spec.id)
        return children if heir is None or heir.seq == job.seq else [seq for seq in children if seq < heir.seq]

    def _dead_hook(self, job: Job) -> Spec | None:
        return dead_letter_hook(job) if job.state is State.DEAD else None

    def _empty_hook(self, job: Job) -> Spec | None:
        """Told by the one job whose end left nothing live; not if another took its place in the same step."""
        place = (job.spec.queue, job.lane)
        if self._emptied.get(place) is not job:
            return None
        del self._emptied[place]
        row = self.tables.queue(job.spec.queue)
        line = None if job.lane is None else self.line_of(job)
        finished = row.processed if line is None else line.processed
        task = None if row.name == self.wiped else row.settings.on_empty
        return None if task is None else empty_hook(job.spec.queue, task, job.lane, finished, job.seq, job.events)

    def parent_ended(self, child_seq: int, parent: str, state: State) -> None:
        """What the end of a parent means for one that waits for it."""
        child = self.tables.by_seq(child_seq)
        if child is None or child.state is not State.WAITING:
            return
        if state is State.COMPLETED or child.spec.on_dependency == "run":
            self.tables.drop_dependency(parent, child_seq)
            child.blocked -= 1
            if child.blocked:
                self.tables.update(child)
            else:
                self._unblock(child)
        elif child.spec.on_dependency == "bury":
            self.bury(child, "dependency_failed", dependency_failure(parent, state))

    def _unblock(self, child: Job) -> None:
        row = self.tables.queue(child.spec.queue)
        row.blocked -= 1
        self.tables.put_queue(row)
        self.log(transition.unblock(child, self.now))
        self.place(child, self.line_of(child))

    def bury(self, job: Job, reason: str, error: Failure | None = None) -> None:
        self.log(transition.bury(job, reason, self.now, error))
        self.finished(job, State.WAITING)

    def _prune_at_once(self, job: Job) -> None:
        settings = self.tables.queue(job.spec.queue).settings
        keep = settings.keep_dead if job.state is State.DEAD else settings.keep_completed
        if keep == 0 and job.state in FINISHED and self.tables.by_seq(job.seq) is not None:
            self.remove(job, Kind.PRUNED, "retention")

    def _free_key(self, job: Job, *scopes: str) -> None:
        """Only the owner frees a key, and only by its own end (BE-13)."""
        if job.spec.key is None:
            return
        hold = self.tables.key(job.spec.queue, job.spec.key)
        if hold is not None and hold.seq == job.seq and hold.scope in scopes:
            self.tables.drop_key(hold)

    def uncount_finished(self, job: Job) -> None:
        """A finished job stops being one: its record goes, or it is brought back."""
        row = self.tables.queue(job.spec.queue)
        if job.state is State.COMPLETED:
            row.completed -= 1
        elif job.state is State.DEAD:
            row.dead -= 1
        else:
            row.cancelled -= 1
        if job.archived:
            row.archived -= 1
            row.archived_dead -= job.state is State.DEAD
        self.tables.put_queue(row)

    def remove(self, job: Job, kind: Kind, reason: str | None) -> None:
        """Delete a finished job's record; what remains is its history and, for dependents, a tombstone (BE-05)."""
        self.uncount_finished(job)
        self._free_key(job, "live", "retained")
        self.log(transition.remove(job, kind, self.now, reason))
        self.tables.add_past(Past(job.spec.id, job.seq, job.generation, job.state, job.spec.token, self.now))
        self.tables.delete(job)


def dependency_failure(parent: str, state: State) -> Failure:
    how = "died" if state is State.DEAD else "was cancelled"
    return Failure("DependencyFailed", f"job {parent!r}, which this one was to run after, {how}")
