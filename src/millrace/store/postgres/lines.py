"""Lines, keys and dependencies: looked up by name, under a lock of that name, and served from memory until the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.domain.job import Job, lane_line
from millrace.domain.tables import KeyHold, Line
from millrace.store.postgres.history import texts
from millrace.store.postgres.jobs import Jobs

Place = tuple[str, str]


def line_lock(queue: str, name: str) -> str:
    return f"line {queue} {name}"


def key_lock(queue: str, key: str) -> str:
    return f"key {queue} {key}"


class Lines(Jobs):
    def start(self) -> None:
        super().start()
        self._lines: dict[Place, Line | None] = {}
        self._changed_lines: dict[Place, Line | None] = {}
        self._holds: dict[Place, KeyHold | None] = {}
        self._changed_holds: dict[Place, KeyHold | None] = {}
        self._children: dict[str, dict[int, None]] = {}
        self._changed_dependencies: dict[tuple[str, int], bool] = {}
        self._changed_parents: dict[int, dict[str, bool]] = {}  # the same by child

    def flush(self) -> None:
        super().flush()
        if self._changed_lines:
            self._flush_lines()
        if self._changed_holds:
            self._flush_holds()
        self._flush_dependencies()

    # ── lines ─────────────────────────────────────────────────────────────────────────────────

    def prefetch_lines(self, jobs: Iterable[Job]) -> None:
        places = {(job.spec.queue, job.line) for job in jobs if job.line is not None}
        unknown = [(queue, name or "") for queue, name in places if (queue, name) not in self._lines]
        if unknown:
            self._load_lines(unknown)

    def free_lines(self, jobs: Sequence[Job]) -> set[Place]:
        """The lines of these jobs that could be taken for this step; others belong to another one just now."""
        names = {
            line_lock(job.spec.queue, job.line): (job.spec.queue, job.line) for job in jobs if job.line is not None
        }
        return {names[name] for name in self.free_ones(names)}

    def _load_lines(self, places: Sequence[Place]) -> None:
        self.lock(line_lock(*place) for place in places)
        names = {self.queue_id(queue): queue for queue, _ in places}
        wanted = [(self.queue_id(queue), name) for queue, name in places]
        for queue_id, name, *facts in self.rows("lines", [one for one, _ in wanted], [two for _, two in wanted]):
            self._lines[names[queue_id], name] = Line(names[queue_id], name, *facts)
        for place in places:
            self._lines.setdefault(place)

    def line(self, queue: str, name: str) -> Line | None:
        place = queue, name
        if place not in self._lines:
            self._load_lines([place])
        return self._lines[place]

    def look_at_lanes(self, queue: str) -> None:
        """All of a pool's lanes at once."""
        lanes = self.queue(queue).settings.lanes or 0
        if lanes:
            self._load_lines([(queue, lane_line(lane)) for lane in range(lanes)])

    def put_line(self, line: Line) -> None:
        place = line.queue, line.name
        self._lines[place] = self._changed_lines[place] = line

    def drop_line(self, line: Line) -> None:
        place = line.queue, line.name
        self._lines[place] = self._changed_lines[place] = None

    def _flush_lines(self) -> None:
        kept = []
        gone = []
        for (queue, name), line in self._changed_lines.items():
            number = self.made_queue_id(queue)
            if line is None:
                gone.append((number, name))
            else:
                kept.append((number, name, line.holder, line.open, line.waiting, line.live, line.processed, line.died))
        if kept:
            self.rows("put_lines", *(list(column) for column in zip(*kept, strict=True)))
        if gone:
            self.rows("drop_lines", *(list(column) for column in zip(*gone, strict=True)))
        self._changed_lines = {}

    def best_in_line(self, queue: str, name: str) -> int | None:
        found = self.members(queue, name, 1)
        return found[0] if found else None

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        self.lock([line_lock(queue, name)])
        self.flush_jobs()
        return self.seqs("members", self.queue_id(queue), name, limit)

    # ── keys ──────────────────────────────────────────────────────────────────────────────────

    def key(self, queue: str, key: str) -> KeyHold | None:
        name = queue, key
        if name not in self._holds:
            self.lock([key_lock(queue, key)])
            found = self.rows("hold", queue, key)
            self._holds[name] = KeyHold(*found[0]) if found else None
        return self._holds[name]

    def put_key(self, hold: KeyHold) -> None:
        self.key(hold.queue, hold.key)
        self._holds[hold.queue, hold.key] = self._changed_holds[hold.queue, hold.key] = hold

    def drop_key(self, hold: KeyHold) -> None:
        self.key(hold.queue, hold.key)
        self._holds[hold.queue, hold.key] = self._changed_holds[hold.queue, hold.key] = None

    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]:
        self._flush_holds()
        found = [KeyHold(*row) for row in self.rows("lapsed_holds", now, limit)]
        free = self.free_ones(key_lock(hold.queue, hold.key) for hold in found)
        locked = [hold for hold in found if key_lock(hold.queue, hold.key) in free]
        now_held = [self.key(hold.queue, hold.key) for hold in locked]
        return [hold for hold in now_held if hold is not None and hold.until is not None and hold.until <= now]

    def _flush_holds(self) -> None:
        kept = [hold for hold in self._changed_holds.values() if hold is not None]
        for (queue, key), hold in self._changed_holds.items():
            if hold is None:
                self.rows("drop_hold", queue, key)
        for hold in kept:
            self.rows("put_hold", hold.queue, hold.key, hold.owner, hold.seq, hold.scope, hold.until)
        self._changed_holds = {}

    # ── dependencies ──────────────────────────────────────────────────────────────────────────
    # Whoever looks for the children of a job, or adds one, holds the job's row; for a parent that is not there yet,
    # the store closes the gate.

    def add_dependency(self, parent: str, child: int) -> None:
        if self.by_id(parent) is None:
            self.close_gate()  # it may be on its way, and would not see this one
        self._children_of([parent])
        self._children.setdefault(parent, {})[child] = None
        self._change_dependency(parent, child, True)

    def drop_dependency(self, parent: str, child: int) -> None:
        self._children_of([parent])
        self._children.get(parent, {}).pop(child, None)
        self._change_dependency(parent, child, False)

    def _change_dependency(self, parent: str, child: int, is_open: bool) -> None:
        self._changed_dependencies[parent, child] = is_open
        self._changed_parents.setdefault(child, {})[parent] = is_open

    def children(self, parent: str) -> list[int]:
        if parent not in self._children:
            at_hand = [self._jobs.get(seq) for seq in self.recent_seqs]
            self._children_of([parent, *self.recent_ids, *(job.spec.id for job in at_hand if job is not None)])
        found = sorted(self._children.get(parent, ()))
        if len(found) > 1:
            recent = self.recent_seqs
            self.prefetch_seqs(found)
            self.recent_seqs = recent
        return found

    def prefetch_children(self, parents: Sequence[str]) -> None:
        self._children_of(parents)

    def _children_of(self, parents: Sequence[str]) -> None:
        unknown = [parent for parent in dict.fromkeys(parents) if parent not in self._children]
        if not unknown:
            return
        for parent in unknown:
            self._children[parent] = {}
        for parent, child in self.rows("children", texts(unknown)):
            if self._changed_dependencies.get((parent, child)) is not False:
                self._children[parent][child] = None

    def parents(self, child: int) -> list[str]:
        changed = self._changed_parents.get(child, {})
        stored = [row[0] for row in self.rows("parents", child)]
        new = [parent for parent, is_open in changed.items() if is_open and parent not in stored]
        return [parent for parent in stored if changed.get(parent) is not False] + new

    def _flush_dependencies(self) -> None:
        if not self._changed_dependencies:
            return
        kept = [pair for pair, is_open in self._changed_dependencies.items() if is_open]
        gone = [pair for pair, is_open in self._changed_dependencies.items() if not is_open]
        if gone:
            self.rows("drop_dependencies", *(list(column) for column in zip(*gone, strict=True)))
        if kept:
            self.rows("put_dependencies", *(list(column) for column in zip(*kept, strict=True)))
        self._changed_dependencies = {}
        self._changed_parents = {}
