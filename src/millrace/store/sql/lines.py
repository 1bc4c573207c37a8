"""Lines, their first members, keys and dependencies.

They are read for all jobs of a call at once (see `ports.Batch`) and cached. Changes are written at the end of the step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from millrace.domain.job import Job
from millrace.domain.tables import KeyHold, Line
from millrace.store.sql.ports import Batch, Effects, Locks, Named, Statements, key_lock, line_lock
from millrace.store.sql.record import IN_LINE, texts

if TYPE_CHECKING:
    from millrace.store.sql.jobs import Jobs

Member = tuple[int, int]  # (-priority, seq)
MOST_AHEAD = 1_000  # children that are loaded before their own parent's turn


class QueueIds(Protocol):
    def queue_id(self, name: str) -> int | None: ...
    def made_queue_id(self, name: str) -> int:
        """Return the id of a queue; create the queue if it does not exist."""
        ...


class Lines:
    def __init__(self, statements: Statements, queues: QueueIds, locks: Locks, effects: Effects, batch: Batch) -> None:
        self._db = statements
        self._queues = queues
        self._locks = locks
        self._effects = effects
        self._batch = batch
        self.forget()

    def forget(self) -> None:
        self._lines: dict[Named, Line | None] = {}
        self._holders: dict[int, Sequence[int]] = {}
        self.changed: dict[Named, Line | None] = {}

    def prefetch(self, jobs: Iterable[Job]) -> None:
        """Load the lines of these jobs in one statement."""
        self.load({(job.spec.queue, line) for job in jobs if (line := job.line) is not None})

    def load(self, places: Iterable[Named]) -> None:
        places = [place for place in places if place not in self._lines]
        if not places:
            return
        self._locks.lock(line_lock(*place) for place in places)
        numbers = {queue: self._queues.queue_id(queue) for queue in {queue for queue, _ in places}}
        names = {number: queue for queue, number in numbers.items()}
        rows = self._db.rows_of("lines", [(numbers[queue], name) for queue, name in places])
        self._lines.update(dict.fromkeys(places))
        for queue_id, name, *facts in rows:
            self._lines[names[queue_id], name] = Line(names[queue_id], name, *facts)
        holders = [holder for _, _, holder, *_ in rows if holder is not None]
        self._holders.update(dict.fromkeys(holders, holders))

    def holders_with(self, seq: int) -> Sequence[int]:
        """Return the seqs of all holders that were read by the same statement as this holder, so that their jobs can be
        loaded together. A second call for the same holder returns only its own seq.
        """
        return self._holders.pop(seq, (seq,))

    def free(self, jobs: Iterable[Job]) -> set[Named]:
        """Lock those lines of these jobs that no other step has locked, and return the locked lines as (queue, line
        name).
        """
        names = {
            line_lock(job.spec.queue, line): (job.spec.queue, line) for job in jobs if (line := job.line) is not None
        }
        return {names[name] for name in self._locks.free(names)}

    def line(self, queue: str, name: str) -> Line | None:
        place = queue, name
        if place not in self._lines:
            self.load({place, *self._batch.lines()})
        return self._lines[place]

    def put(self, line: Line) -> None:
        self._effects.touched = True
        place = line.queue, line.name
        self._lines[place] = self.changed[place] = line

    def drop(self, line: Line) -> None:
        self._effects.touched = True
        place = line.queue, line.name
        self._lines[place] = self.changed[place] = None

    def flush(self) -> None:
        kept: list[tuple[object, ...]] = []
        gone: list[tuple[int, str]] = []
        numbers = {queue: self._queues.made_queue_id(queue) for queue in {queue for queue, _ in self.changed}}
        for (queue, name), line in self.changed.items():
            number = numbers[queue]
            if line is None:
                gone.append((number, name))
            else:
                kept.append((number, name, line.holder, line.open, line.waiting, line.live, line.processed, line.died))
        self.changed = {}
        if kept:
            self._db.write("put_lines", kept)
        if gone:
            self._db.delete("drop_lines", gone)


class FirstMembers:
    """A cache of the first waiting member of each line. Members that were changed but not written yet are included."""

    def __init__(self, statements: Statements, queues: QueueIds, lines: Lines, batch: Batch) -> None:
        self._db = statements
        self._queues = queues
        self._lines = lines
        self._batch = batch
        self.forget()

    def forget(self) -> None:
        self._first: dict[Named, Member | None] = {}
        self._found_with: dict[int, Sequence[int]] = {}
        self.written()

    def written(self) -> None:
        """Forget which members have changed: their rows are written now, so a statement finds them."""
        self._changed: dict[Named, dict[int, bool]] = {}  # by seq: whether the member waits in the line
        self._entered: dict[Named, list[Member]] = {}  # a heap of changed members that waited in the line
        self._stored: dict[Named, deque[Member]] = {}  # the first unchanged members of a line, as stored …
        self._is_whole: dict[Named, bool] = {}  # … and whether these are all

    def changed(self, job: Job, line: str, place: int | None) -> None:
        """Remember that a member of a line has changed. `place` is how it relates to the line (`record.place_of`)."""
        where, member = (job.spec.queue, line), (-job.spec.priority, job.seq)
        waits = place == IN_LINE
        of_line = self._changed.setdefault(where, {})
        if waits and not of_line.get(job.seq):
            heapq.heappush(self._entered.setdefault(where, []), member)
        of_line[job.seq] = waits
        if where in self._first:
            first = self._first[where]
            if waits:
                self._first[where] = member if first is None else min(first, member)
            elif first == member:
                del self._first[where]

    def best_in_line(self, queue: str, name: str) -> int | None:
        """Return the seq of the line's first waiting member, or None if no member waits."""
        place = queue, name
        if place not in self._first:
            self._first[place] = self._find(place)
        first = self._first[place]
        return None if first is None else first[1]

    def found_with(self, seq: int) -> Sequence[int]:
        """Return the seqs of all first members or holders that were read by the same statement as this job, so that
        their jobs can be loaded together. A second call for the same job returns only its own seq.
        """
        found = self._found_with.pop(seq, None)
        return self._lines.holders_with(seq) if found is None else found

    def _find(self, place: Named) -> Member | None:
        changed, entered = self._changed.get(place, {}), self._entered.get(place, [])
        while entered and not changed[entered[0][1]]:
            heapq.heappop(entered)
        stored = self._first_stored(place)
        if stored is None or not entered:
            return entered[0] if entered else stored
        return min(entered[0], stored)

    def _first_stored(self, place: Named) -> Member | None:
        """Return the first waiting member among the rows that were not changed since the last write, or None."""
        if place not in self._stored:
            self._read_first(place)
        changed, stored = self._changed.get(place, {}), self._stored[place]
        while stored and stored[0][1] in changed:
            stored.popleft()
        if not stored and not self._is_whole[place]:
            limit = 2 * len(changed) + 1
            rows = self._db.rows("members", self._queues.queue_id(place[0]), place[1], limit)
            self._is_whole[place] = len(rows) < limit
            stored = self._stored[place] = deque((rank, seq) for seq, rank in rows if seq not in changed)
        return stored[0] if stored else None

    def _read_first(self, place: Named) -> None:
        """Read the first members of this line and, in the same statement, those of all other lines of the call.

        The call may remove each member that it works on from its line. So for each line, one more member is read than
        the call works on.
        """
        missing = {each: n for each, n in self._batch.lines().items() if each not in self._first}
        places = {place: 0} | {each: n for each, n in missing.items() if each not in self._stored}
        self._lines.load(places)
        names = {self._queues.queue_id(queue): queue for queue, _ in places}
        wanted = [(self._queues.queue_id(queue), name, 1 + leaving) for (queue, name), leaving in places.items()]
        rows = self._db.rows_of("first_members", wanted)
        for each in places:
            self._stored[each], self._is_whole[each] = deque(), True
        for queue_id, name, rank, seq, is_whole in rows:
            self._stored[names[queue_id], name].append((rank, seq))
            self._is_whole[names[queue_id], name] = bool(is_whole)
        seqs = [row[3] for row in rows]
        self._found_with.update(dict.fromkeys(seqs, seqs))


class Keys:
    def __init__(self, statements: Statements, locks: Locks, effects: Effects, batch: Batch) -> None:
        self._db = statements
        self._locks = locks
        self._effects = effects
        self._batch = batch
        self.forget()

    def forget(self) -> None:
        self._holds: dict[Named, KeyHold | None] = {}
        self.changed: dict[Named, KeyHold | None] = {}

    def key(self, queue: str, key: str) -> KeyHold | None:
        name = queue, key
        if name not in self._holds:
            self._load({name, *self._batch.keys()})
        return self._holds[name]

    def _load(self, names: Iterable[Named]) -> None:
        names = [name for name in names if name not in self._holds]
        if not names:
            return
        self._locks.lock(key_lock(*name) for name in names)
        self._holds.update(dict.fromkeys(names))
        for row in self._db.rows_of("holds", names):
            hold = KeyHold(*row)
            self._holds[hold.queue, hold.key] = hold
            self._batch.add_owners([hold.owner])

    def put(self, hold: KeyHold) -> None:
        self._change(hold, hold)

    def drop(self, hold: KeyHold) -> None:
        self._change(hold, None)

    def _change(self, hold: KeyHold, new: KeyHold | None) -> None:
        self._effects.touched = True
        self._locks.lock([key_lock(hold.queue, hold.key)])
        self._holds[hold.queue, hold.key] = self.changed[hold.queue, hold.key] = new

    def lapsed(self, now: int, limit: int) -> list[KeyHold]:
        """Return expired keys, without those that another step has locked. Each is locked and read again before it is
        returned.
        """
        self.flush()
        found = [KeyHold(*row) for row in self._db.rows("lapsed_holds", now, limit)]
        free = self._locks.free(key_lock(hold.queue, hold.key) for hold in found)
        names = [(hold.queue, hold.key) for hold in found if key_lock(hold.queue, hold.key) in free]
        self._load(names)
        held = [self._holds[name] for name in names]
        return [hold for hold in held if hold is not None and hold.until is not None and hold.until <= now]

    def windows(self, since: int, skip: int, limit: int) -> list[KeyHold]:
        self.flush()
        return [KeyHold(*row) for row in self._db.rows("windows", since, skip, limit)]

    def flush(self) -> None:
        gone = [name for name, hold in self.changed.items() if hold is None]
        kept = [
            (hold.queue, hold.key, hold.owner, hold.seq, hold.scope, hold.until)
            for hold in self.changed.values()
            if hold is not None
        ]
        self.changed = {}
        if gone:
            self._db.delete("drop_holds", gone)
        if kept:
            self._db.write("put_holds", kept)


class Dependencies:
    """Which jobs (children, by seq) wait for which ids (parents).

    With concurrent steps, a step that reads or adds children of a job holds the row lock of that job. If the parent
    does not exist yet, the step closes the gate (see `Locks.close_gate`). `alone` means that no other step runs at the
    same time, so a table that was empty stays empty.
    """

    def __init__(
        self, statements: Statements, jobs: Jobs, locks: Locks, effects: Effects, batch: Batch, *, alone: bool
    ) -> None:
        self._db = statements
        self._jobs = jobs
        self._locks = locks
        self._effects = effects
        self._batch = batch
        self._alone = alone
        self.forget()

    def forget(self) -> None:
        self._children: dict[str, dict[int, None]] = {}
        self._parents: dict[int, list[str]] = {}  # as stored
        self.changed: dict[tuple[str, int], bool] = {}  # (parent, child): whether the child still waits
        self._changed_parents: dict[int, dict[str, bool]] = {}  # the same by child
        self._any: bool | None = None if self._alone else True

    def add(self, parent: str, child: int) -> None:
        if self._jobs.by_id(parent) is None:
            self._locks.close_gate()  # another step may be inserting the parent, and would not see this dependency
        if parent not in self._children:
            self.prefetch([parent, *self._batch.ids(), *self._batch.parents()])
        self._any = True
        self._children.setdefault(parent, {})[child] = None
        self._change(parent, child, is_open=True)

    def drop(self, parent: str, child: int) -> None:
        self.prefetch([parent])
        self._children.get(parent, {}).pop(child, None)
        self._change(parent, child, is_open=False)

    def _change(self, parent: str, child: int, *, is_open: bool) -> None:
        self._effects.touched = True
        self.changed[parent, child] = is_open
        self._changed_parents.setdefault(child, {})[parent] = is_open

    def children(self, parent: str) -> list[int]:
        """Return the seqs of the children of `parent`, ascending. They are loaded, too."""
        if self._any is False:
            return []
        if parent not in self._children:
            self.prefetch([parent, *self._batch.ids()])
        found = sorted(self._children.get(parent, ()))
        if any(child not in self._jobs.loaded for child in found):
            self._load_children(found)
        return found

    def _load_children(self, seqs: Sequence[int]) -> None:
        """Load these jobs, and with them about MOST_AHEAD other children of the jobs that the call works on."""
        found = dict.fromkeys(seqs)
        for job in self._batch.jobs:
            if len(found) > MOST_AHEAD:
                break
            found.update(dict.fromkeys(self._children.get(job.spec.id, ())))
        self._jobs.load_seqs(found)
        self._batch.add_jobs([job for job in map(self._jobs.loaded.get, found) if job is not None])

    def prefetch(self, parents: Sequence[str]) -> None:
        if self._any is None:
            self._any = bool(self._db.value("any_dependency"))
        unknown = [parent for parent in dict.fromkeys(parents) if parent not in self._children]
        if not unknown:
            return
        self._children.update((parent, {}) for parent in unknown)
        if self._any:
            for parent, child in self._db.rows("children", texts(unknown)):
                if self.changed.get((parent, child)) is not False:
                    self._children[parent][child] = None

    def parents(self, child: int) -> list[str]:
        changed = self._changed_parents.get(child, {})
        stored = self._stored_parents(child)
        new = [parent for parent, is_open in changed.items() if is_open and parent not in stored]
        return [parent for parent in stored if changed.get(parent) is not False] + new

    def _stored_parents(self, child: int) -> list[str]:
        if child not in self._parents:
            children = {child, *(job.seq for job in self._batch.jobs if job.blocked)} - self._parents.keys()
            self._parents.update((each, []) for each in children)
            for each, parent in self._db.rows("parents", list(children)):
                self._parents[each].append(parent)
        return self._parents[child]

    def dead_dependents(self, parents: Sequence[str]) -> list[int]:
        self._jobs.flush()
        return self._db.seqs("dead_dependents", texts(parents))

    def is_needed(self, parent: str) -> bool:
        self._jobs.flush()
        return bool(self._db.value("is_needed", parent))

    def flush(self) -> None:
        kept = [pair for pair, is_open in self.changed.items() if is_open]
        gone = [pair for pair, is_open in self.changed.items() if not is_open]
        self.changed, self._changed_parents, self._parents = {}, {}, {}
        if gone:
            self._db.delete("drop_dependencies", gone)
        if kept:
            self._db.write("put_dependencies", kept)
