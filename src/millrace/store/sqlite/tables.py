"""The ledger's tables in a SQLite file: what a claim, the reaper and upkeep ask of the indexes."""

from __future__ import annotations

from collections.abc import Callable

from millrace.domain.event import Event
from millrace.domain.job import Job, State
from millrace.domain.tables import Range
from millrace.store.sqlite.schedules import Schedules
from millrace.store.sqlite.search import Search

_FIRST_LOOK = 16  # heads read of a range at least


class _Due:
    """The heads of one range of the ready index, read in portions."""

    __slots__ = (
        "_combo",
        "_heads",
        "_look",
        "_next",
        "_now",
        "_shown",
        "_tables",
        "_whole",
        "priority",
        "queue",
        "task",
    )

    def __init__(
        self,
        tables: SqliteTables,
        queue: str,
        combo: tuple[str, int, int],
        now: int,
        look: int,
        shown: list[int],
    ) -> None:
        self._tables = tables
        self.queue = queue
        self.task, self.priority, self._combo = combo
        self._now = now
        self._look = look
        self._shown = shown  # seqs of all ranges of this priority: their records are loaded together
        self._heads: list[tuple[int, int]] = []
        self._next = 0
        self._whole = False

    def read(self) -> int:
        """Look a portion further; answers how many jobs are known then."""
        found = self._tables.ready(self._combo, self._now, self._look, len(self._heads), self._shown)
        self._heads += found
        self._whole = len(found) < self._look
        self._look = 2 * len(self._heads)
        return len(self._heads)

    def peek(self) -> tuple[int, int] | None:
        if self._next >= len(self._heads) and (self._whole or self.read() <= self._next):
            return None
        return self._heads[self._next]

    def advance(self) -> None:
        self._next += 1


class SqliteTables(Search, Schedules):
    def history(self, job_id: str) -> list[Event]:
        newest = [(past.seq, self._past_newest[past.seq]) for past in self.past(job_id)]
        job = self.by_id(job_id)
        if job is not None:
            newest.append((job.seq, self._newest[job.seq]))
        return [event for _, cursor in sorted(newest) for event in self.history_back_from(cursor)]

    # ── what a claim and the reaper look at ───────────────────────────────────────────────────

    def ready(self, combo: int, now: int, limit: int, offset: int, shown: list[int]) -> list[tuple[int, int]]:
        wanted = {"combo": combo, "now": now, "limit": limit, "offset": offset}
        found = self.rows("ready", wanted)
        seqs = [seq for _, seq in found]
        shown += seqs
        self._hints.update(dict.fromkeys(seqs, shown))
        return found

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        self.flush_jobs()
        by_priority: dict[int, list[tuple[str, int, int]]] = {}
        for combo in self.combos(queue):
            if tasks is None or combo[0] in tasks:
                by_priority.setdefault(combo[1], []).append(combo)
        most = limit + (len(by_priority) > 1)  # a merge of several looks one further than it takes
        ranges: list[Range] = []
        known = 0
        for _, combos in sorted(by_priority.items(), reverse=True):
            look = min(most, max(_FIRST_LOOK, limit * 5 // (4 * len(combos)) + 1))  # a little more than its share
            shown: list[int] = []
            level = [_Due(self, queue, combo, now, look, shown) for combo in combos]
            if known < limit:  # else those before it have enough: it is read should it be asked
                found = [(due, due.read()) for due in level]
                level = [due for due, heads in found if heads]
                known += sum(heads for _, heads in found)
            ranges += level
        return ranges

    def entering(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        return self.seqs("entering", {"now": now, "limit": limit})

    def expiring(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        return self.seqs("expiring", {"now": now, "limit": limit})

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        self.flush_jobs()
        wanted = None if queues is None and tasks is None else self._combos_of(queues, tasks)
        found: list[int] = []
        offset = 0
        while len(found) < limit:
            rows = self.rows("lapsed", {"now": now, "limit": limit, "offset": offset})
            found += [seq for seq, combo, lease in rows if (wanted is None or combo in wanted) and lease not in ignore]
            if len(rows) < limit:
                break
            offset += limit
        return found[:limit]

    def _combos_of(self, queues: tuple[str, ...] | None, tasks: frozenset[str] | None) -> set[int]:
        names = self.queues() if queues is None else queues
        return {combo for name in names for task, _, combo in self.combos(name) if tasks is None or task in tasks}

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        self.flush_jobs()
        instants = [
            self.value("first_ready", {"combo": combo})
            for task, _, combo in self.combos(queue)
            if (tasks is None or task in tasks) and task not in without
        ]
        queue_id = self.queue_id(queue)
        if queue_id is not None:
            instants.append(self.value("first_outside", {"queue": queue_id}))
        return min((at for at in instants if at is not None), default=None)

    # ── upkeep ────────────────────────────────────────────────────────────────────────────────

    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        self.flush_jobs()
        wanted = {"queue": self.queue_id(queue), "before": before, "limit": limit}
        return self.seqs("dead" if dead else "finished", wanted)

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]:
        self.flush_jobs()
        return self.seqs("dead_shown", {"queue": self.queue_id(queue), "limit": limit})

    def due_retries(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        return self.seqs("due_retries", {"now": now, "limit": limit})

    def expired_results(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        return self.seqs("expired_results", {"now": now, "limit": limit})

    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]:
        self.flush_jobs()
        found: list[int] = []
        for job in self.walk_queue(queue, states):
            if len(found) >= limit:
                break
            if job.state in states and (wanted is None or wanted(job)):
                found.append(job.seq)
        return found

    # ── counting ──────────────────────────────────────────────────────────────────────────────

    def ahead(self, job: Job, now: int, most: int) -> int:
        self.flush_jobs()
        name = job.line
        if name is None:
            starts = max(now, job.available_at)  # what is due only after that is not ahead, whatever its priority
            return min(most, sum(self._ahead_in(job, combo, starts, most) for combo in self.combos(job.spec.queue)))
        mine = {"rank": -job.spec.priority, "seq": job.seq, "most": most}
        count: int = self.value("members_before", {"queue": self.queue_id(job.spec.queue), "line": name, **mine})
        line = self.line(job.spec.queue, name)
        held = line is not None and line.holder is not None and line.holder != job.seq
        return min(most, held + count)

    def _ahead_in(self, job: Job, combo: tuple[str, int, int], starts: int, most: int) -> int:
        _, priority, number = combo
        count = 0
        if priority > job.spec.priority:
            count = self.value("ready_by", {"combo": number, "at": starts, "most": most})
        elif priority == job.spec.priority:
            mine = {"combo": number, "at": job.available_at, "seq": job.seq, "most": most}
            count = self.value("ready_before", mine)
        return count

    def words(self, queue: str, now: int) -> tuple[int, int, int | None]:
        self.flush_jobs()
        queue_id = self.queue_id(queue)
        if queue_id is None:
            return 0, 0, None
        combos = [combo for _, _, combo in self.combos(queue)]
        here = {"queue": queue_id, "now": now}
        later = sum(self.value("ready_later", {"combo": combo, "now": now}) for combo in combos)
        later += self.value("aside_later", here)
        retrying: int = self.value("retrying_later", here)
        firsts = [self.value("first_ready", {"combo": combo}) for combo in combos]
        oldest = min((at for at in firsts if at is not None and at <= now), default=None)
        return later - retrying, retrying, oldest
