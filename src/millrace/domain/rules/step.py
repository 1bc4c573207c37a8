"""One atomic step over the tables: a transition of one job, and its consequences for other jobs.

The consequences are: another job of the line becomes open, dependents are unblocked or buried, the key is freed, and a
hook is enqueued. They are part of the same step as the transition, so a crash leaves either all of them or none.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from millrace.domain.event import Event, Kind
from millrace.domain.job import FAILED, FINISHED, Job, Spec, State, is_kept_for_children
from millrace.domain.outcome import Failure
from millrace.domain.rules import transition
from millrace.domain.rules.dead import dead_letter_hook, empty_hook, next_retry
from millrace.domain.tables import Line, Past, QueueRow, Tables


class Step:
    """One step at the instant `now`.

    `admit` enqueues hook jobs; it is a parameter because `admission` imports this module. `wiped` is the queue that
    `obliterate` deletes: its `on_empty` job is not enqueued.
    """

    def __init__(
        self, tables: Tables, now: int, admit: Callable[[Step, list[Spec]], object], wiped: str | None = None
    ) -> None:
        self.tables = tables
        self.now = now
        self._admit = admit
        self._ended: deque[Job] = deque()
        self._wiped = wiped
        self._emptied: dict[tuple[str, int | None], Job] = {}  # by (queue, lane): the job whose end left it empty

    def log(self, event: Event) -> None:
        self.tables.append(event)

    def admit(self, specs: list[Spec]) -> None:
        self._admit(self, specs)

    # ── places ────────────────────────────────────────────────────────────────────────────────

    def added(self, job: Job) -> None:
        """Add a new or replayed job to the counters. If it is unblocked, make it claimable or let it enter its line."""
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

    def added_simple(self, jobs: Mapping[str, int]) -> None:
        """Add new jobs of the fast path to the counters. `jobs` maps a queue to the number of its new jobs."""
        for name, count in jobs.items():
            row = self.tables.queue(name)
            row.waiting += count
            row.live += count
            self._emptied.pop((name, None), None)
            self.tables.put_queue(row)

    def add_all(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        """Add the records of new jobs, each with its first event, and do what `added` does for each of them.

        The jobs are not hooks, and none of them has a lane. The members of a line enter it together: it elects once.
        """
        tables = self.tables
        tables.insert_all(jobs, events)
        lines: dict[tuple[str, str], list[Job]] = {}
        for job in jobs:
            name = job.line
            if name is not None:
                lines.setdefault((job.spec.queue, name), []).append(job)
            elif job.blocked:
                tables.update(job)
            else:
                self.place(job, None)
            if job.blocked:
                tables.queue(job.spec.queue).blocked += 1
        for (queue, name), members in lines.items():
            self._join(tables.line(queue, name) or Line(queue, name), members)
        self.added_simple(Counter([job.spec.queue for job in jobs]))

    def _join(self, line: Line, jobs: Sequence[Job]) -> None:
        """Add new jobs to the counters of their line. Let those that are unblocked enter it, and elect once for all."""
        is_new = line.live == 0
        line.waiting += len(jobs)
        line.live += len(jobs)
        for job in jobs:
            job.in_line = not job.blocked and self._enters_now(job)
            if not is_new:
                self.tables.update(job)
        if not is_new:
            self.elect(line)
            return
        line.open = first_in_line(jobs)  # as `elect` does: a new line has no holder, and groups are not paused
        for job in jobs:
            job.open = job.seq == line.open
            self.tables.update(job)
        self.tables.put_line(line)

    def place(self, job: Job, line: Line | None) -> None:
        """Make a waiting, unblocked job claimable, or let it enter its line.

        A job without a line becomes open. A job with a line enters it now, or when it is due.
        """
        if line is None:
            job.open = True
            self.tables.update(job)
            return
        job.in_line = self._enters_now(job)
        self.tables.update(job)
        self.elect(line)

    def _enters_now(self, job: Job) -> bool:
        """Return whether a waiting, unblocked job that has a line is in it now. If not, it enters when it is due."""
        leaves_until_due = job.lane is None or (job.failures > 0 and not job.spec.retry_blocks)
        return not job.holds and not (leaves_until_due and job.available_at > self.now)

    def line_of(self, job: Job) -> Line | None:
        name = job.line
        if name is None:
            return None
        return self.tables.line(job.spec.queue, name) or Line(job.spec.queue, name)

    def elect(self, line: Line) -> None:
        """Make the job of a line that may run next open (claimable once it is due), and no other job. Store the line.

        This must be called after every change of a line, in the same step.
        """
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
        """Update the counters and the job's line after `transition.claim`."""
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
        """Update the counters and the job's line after a run that returned the job to waiting.

        A job in backoff may continue to hold its line.
        """
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
        """Apply the end of a job to its queue, line and key, and remember the job for `carry_out`."""
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
        """Subtract a run from the counters of its queue and task.

        Wake a worker that waits for room under their limits.
        """
        row.running -= 1
        if row.settings.max_running is not None:
            self.tables.wake((row.name, None), 1)
        if self._task_running(job.spec.task, -1):
            self.tables.wake((None, job.spec.task), 1)

    def _task_running(self, task: str, by: int) -> bool:
        """Add `by` to the running counter of a task. Return whether the task has limits."""
        row = self.tables.task(task)
        if row is not None:
            row.running += by
            self.tables.put_task(row)
        return row is not None

    # ── consequences ──────────────────────────────────────────────────────────────────────────

    def carry_out(self) -> None:
        """Apply the consequences of all jobs that ended in this step: hooks, children, and immediate pruning.

        This is a loop and not a recursion, because chains of dependent jobs can be long.
        """
        while self._ended:
            job = self._ended.popleft()
            if job.state is State.WAITING:
                continue  # replayed within the same step
            if job.state is State.DEAD or self._emptied:
                died = dead_letter_hook(job) if job.state is State.DEAD else None
                hooks = (died, self._empty_hook(job))
                if any(hooks):
                    self.admit([hook for hook in hooks if hook is not None])
            dependents = self._dependents(job)
            if dependents:
                self._keep_result(job)
            for child in dependents:
                self.parent_ended(child, job.spec.id, job.state)
            self._prune_at_once(job)

    def _dependents(self, job: Job) -> list[int]:
        """Return the seqs of the jobs that wait for this job. Jobs that wait for a later generation are left out."""
        children = self.tables.children(job.spec.id)
        if not children:
            return children
        successor = self.tables.by_id(job.spec.id)
        if successor is None or successor.seq == job.seq:
            return children
        return [seq for seq in children if seq < successor.seq]

    def _empty_hook(self, job: Job) -> Spec | None:
        """Return the `on_empty` job if this job was the last of its queue or lane, otherwise None.

        Return None too if a job was added since, or if the queue has no `on_empty`.
        """
        place = (job.spec.queue, job.lane)
        if self._emptied.get(place) is not job:
            return None
        del self._emptied[place]
        row = self.tables.queue(job.spec.queue)
        line = None if job.lane is None else self.line_of(job)
        finished = row.processed if line is None else line.processed
        task = None if row.name == self._wiped else row.settings.on_empty
        return None if task is None else empty_hook(job, task, finished)

    def parent_ended(self, child_seq: int, parent: str, state: State) -> None:
        """Apply the end of a parent to one child.

        The child is unblocked, is buried, or still waits for other parents.
        """
        child = self.tables.by_seq(child_seq)
        if child is None or child.state is not State.WAITING:
            return
        verdict = dependency_verdict(child.spec, state)
        if verdict == "met":
            self.tables.drop_dependency(parent, child_seq)
            child.blocked -= 1
            if child.blocked:
                self.tables.update(child)
            else:
                self._unblock(child)
        elif verdict == "failed":
            self.bury(child, "dependency_failed", dependency_failure(parent, state), parent)

    def state_of(self, job_id: str) -> State:
        """Return the state of a parent. An unknown id counts as waiting: it may still be enqueued."""
        job = self.tables.by_id(job_id)
        if job is not None:
            return job.state
        gone = self.tables.past(job_id)
        return latest(gone).state if gone else State.WAITING

    def _unblock(self, child: Job) -> None:
        row = self.tables.queue(child.spec.queue)
        row.blocked -= 1
        self.tables.put_queue(row)
        self.log(transition.unblock(child, self.now))
        self.place(child, self.line_of(child))

    def keep_results_for(self, job: Job) -> None:
        """Keep the results of the job's parents until this job has ended, even if their `keep_result` ends earlier."""
        for parent_id in dict.fromkeys(job.spec.after):
            parent = self.tables.by_id(parent_id)
            if parent is not None:
                self._keep_result(parent)

    def _keep_result(self, parent: Job) -> None:
        if transition.keep_for_children(parent, self.now):
            self.tables.update(parent)

    def bury(self, job: Job, reason: str, error: Failure | None = None, parent: str | None = None) -> None:
        self.log(transition.bury(job, reason, self.now, error, parent))
        self.finished(job, State.WAITING)

    def _prune_at_once(self, job: Job) -> None:
        keep = self.tables.queue(job.spec.queue).settings.keep(job.state)
        if keep != 0 or is_kept_for_children(job):
            return
        if job.state in FINISHED and self.tables.by_seq(job.seq) is not None:
            self.remove(job, Kind.PRUNED, "retention")

    def _free_key(self, job: Job, *scopes: str) -> None:
        """Free the job's key if this job holds it with one of these scopes."""
        if job.spec.key is None:
            return
        hold = self.tables.key(job.spec.queue, job.spec.key)
        if hold is not None and hold.seq == job.seq and hold.scope in scopes:
            self.tables.drop_key(hold)

    def uncount_finished(self, job: Job) -> None:
        """Subtract a finished job, which is being deleted or replayed, from the counters of its queue."""
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
        """Delete the record of a finished job. Its history stays, and a `Past` records how the job ended."""
        self.uncount_finished(job)
        self._free_key(job, "live", "retained")
        self.log(transition.remove(job, kind, self.now, reason))
        self.tables.add_past(Past(job.spec.id, job.seq, job.generation, job.state, job.spec.token, self.now))
        self.tables.delete(job)


def first_in_line(members: Iterable[Job]) -> int | None:
    """Return the seq of the first waiting member of a line, by (priority desc, seq); None if no member waits in it."""
    first: Job | None = None
    for job in members:
        if job.in_line and (first is None or _order_in_line(job) < _order_in_line(first)):
            first = job
    return None if first is None else first.seq


def _order_in_line(job: Job) -> tuple[int, int]:
    return -job.spec.priority, job.seq


def latest(gone: list[Past]) -> Past:
    return max(gone, key=lambda past: past.generation)


def dependency_verdict(child: Spec, parent: State) -> Literal["met", "failed", "open"]:
    """Return whether a child may run ("met"), is buried ("failed") or waits ("open"), given the state of a parent."""
    if parent is State.COMPLETED or (parent in FAILED and child.on_dependency == "run"):
        return "met"
    return "failed" if parent in FAILED and child.on_dependency == "bury" else "open"


def dependency_failure(parent: str, state: State) -> Failure:
    """Return the error of a job that is buried because its parent is dead or cancelled."""
    how = "failed" if state is State.DEAD else "was cancelled"
    return Failure("DependencyFailed", f"A job it depends on {how}: {parent!r}")
