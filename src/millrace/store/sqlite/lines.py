"""Lines, keys and dependencies: looked up by name, so what was changed is served from memory until the commit."""

from __future__ import annotations

import msgspec

from millrace.domain.job import Job
from millrace.domain.tables import KeyHold, Line
from millrace.store.sqlite.history import json_list
from millrace.store.sqlite.jobs import Jobs, Place
from millrace.store.sqlite.record import IN_LINE, place_of


class Lines(Jobs):
    def forget(self) -> None:
        super().forget()
        self._lines: dict[Place, Line | None] = {}
        self._changed_lines: dict[Place, Line | None] = {}
        self._holds: dict[tuple[str, str], KeyHold | None] = {}
        self._changed_holds: dict[tuple[str, str], KeyHold | None] = {}
        self._children: dict[str, dict[int, None]] = {}
        self._changed_dependencies: dict[tuple[str, int], bool] = {}
        self._any_dependency: bool | None = None

    def flush(self) -> None:
        super().flush()
        if self._changed_lines:
            self._flush_lines()
        if self._changed_holds:
            self._flush_holds()
        if self._changed_dependencies:
            self._flush_dependencies()

    # ── lines ─────────────────────────────────────────────────────────────────────────────────

    def prefetch_lines(self, jobs: list[Job]) -> None:
        unknown = {(job.spec.queue, job.line or "") for job in jobs} - self._lines.keys()
        if unknown:
            self._load_lines(list(unknown))

    def _load_lines(self, places: list[Place]) -> None:
        names = {self.queue_id(queue): queue for queue, _ in places}
        wanted = msgspec.json.encode([(self.queue_id(queue), name) for queue, name in places]).decode()
        for queue_id, name, holder, is_open, waiting, live, processed, died in self.rows("lines", {"places": wanted}):
            line = Line(names[queue_id], name, holder, is_open, waiting, live, processed, died)
            self._lines[line.queue, name] = line
        for place in places:
            self._lines.setdefault(place)

    def line(self, queue: str, name: str) -> Line | None:
        place = queue, name
        if place not in self._lines:
            self._load_lines([place])
        return self._lines[place]

    def put_line(self, line: Line) -> None:
        self.touched = True
        place = line.queue, line.name
        self._lines[place] = self._changed_lines[place] = line

    def drop_line(self, line: Line) -> None:
        self.touched = True
        place = line.queue, line.name
        self._lines[place] = self._changed_lines[place] = None

    def _flush_lines(self) -> None:
        kept: list[object] = []
        gone: list[tuple[int | None, str]] = []
        for (queue, name), line in self._changed_lines.items():
            queue_id = self.queue_id(queue)
            if line is None:
                gone.append((queue_id, name))
            else:
                kept += (queue_id, name, line.holder, line.open, line.waiting, line.live, line.processed, line.died)
        if kept:
            self.write_rows("put_line", kept)
        if gone:
            self.rows("drop_lines", {"places": msgspec.json.encode(gone).decode()})
        self._changed_lines = {}

    def best_in_line(self, queue: str, name: str) -> int | None:
        """From what is known, or from the index and what has changed since it was written."""
        place = queue, name
        if place not in self.line_best:
            self._prefetch_best(place)
        if place not in self.line_best:
            changed = self.line_changes.get(place, {})
            wanted = {"queue": self.queue_id(queue), "line": name, "limit": 1 + len(changed)}
            members = [(rank, seq) for rank, seq in self.rows("members", wanted) if seq not in changed]
            self.line_best[place] = self._better(place, members)
        best = self.line_best[place]
        return None if best is None else best[1]

    def _better(self, place: Place, members: list[tuple[int, int]]) -> tuple[int, int] | None:
        """The best of these members and of those that the index does not show yet."""
        changed = self.line_changes.get(place, {})
        members += [(-job.spec.priority, seq) for seq, job in changed.items() if place_of(job, place[1]) == IN_LINE]
        return min(members, default=None)

    def _prefetch_best(self, place: Place) -> None:
        """The best of this line and, in one go with it, of the lines of the jobs at hand: they are asked for next."""
        places: dict[Place, list[tuple[int, int]]] = {place: []}
        for seq in self.recent_seqs:
            job = self._jobs.get(seq)
            name = None if job is None else job.line
            if job is not None and name is not None and (job.spec.queue, name) not in self.line_best:
                places[job.spec.queue, name] = []
        wanted = msgspec.json.encode([(self.queue_id(queue), name) for queue, name in places]).decode()
        rows = self.rows("first_members", {"places": wanted})
        self._take([row for row in rows if row[0] not in self._jobs])
        for row in rows:
            first = self._jobs[row[0]]
            if first is not None:
                places[first.spec.queue, row[12]].append((-first.spec.priority, first.seq))
        for each, members in places.items():
            if not any(seq in self.line_changes.get(each, ()) for _, seq in members):
                self.line_best[each] = self._better(each, members)

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        self.flush_jobs()
        wanted = {"queue": self.queue_id(queue), "line": name, "limit": limit}
        return [seq for _, seq in self.rows("members", wanted)]

    # ── keys ──────────────────────────────────────────────────────────────────────────────────

    def key(self, queue: str, key: str) -> KeyHold | None:
        name = queue, key
        if name not in self._holds:
            found = self.rows("hold", {"queue": queue, "key": key})
            self._holds[name] = KeyHold(*found[0]) if found else None
        return self._holds[name]

    def put_key(self, hold: KeyHold) -> None:
        self.touched = True
        self._holds[hold.queue, hold.key] = self._changed_holds[hold.queue, hold.key] = hold

    def drop_key(self, hold: KeyHold) -> None:
        self.touched = True
        self._holds[hold.queue, hold.key] = self._changed_holds[hold.queue, hold.key] = None

    def _flush_holds(self) -> None:
        kept: list[object] = []
        for (queue, key), hold in self._changed_holds.items():
            if hold is None:
                self.rows("drop_hold", {"queue": queue, "key": key})
            else:
                kept += (queue, key, hold.owner, hold.seq, hold.scope, hold.until)
        if kept:
            self.write_rows("put_hold", kept)
        self._changed_holds = {}

    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]:
        self._flush_holds()
        return [KeyHold(*row) for row in self.rows("lapsed_holds", {"now": now, "limit": limit})]

    # ── dependencies ──────────────────────────────────────────────────────────────────────────

    def add_dependency(self, parent: str, child: int) -> None:
        self._children_of([parent])
        self.touched = self._any_dependency = True
        self._children.setdefault(parent, {})[child] = None
        self._changed_dependencies[parent, child] = True

    def drop_dependency(self, parent: str, child: int) -> None:
        self._children_of([parent])
        self.touched = True
        self._children.get(parent, {}).pop(child, None)
        self._changed_dependencies[parent, child] = False

    def children(self, parent: str) -> list[int]:
        if self._any_dependency is False:
            return []
        if parent not in self._children:
            at_hand = [self._jobs.get(seq) for seq in self.recent_seqs]
            self._children_of([parent, *self.recent_ids, *(job.spec.id for job in at_hand if job is not None)])
        found = sorted(self._children.get(parent, ()))
        if len(found) > 1:
            self.prefetch_seqs(found)
        return found

    def _children_of(self, parents: list[str]) -> None:
        if self._any_dependency is None:
            self._any_dependency = bool(self.value("any_dependency"))
        unknown = [parent for parent in parents if parent not in self._children]
        if not unknown:
            return
        for parent in unknown:
            self._children[parent] = {}
        if self._any_dependency:
            for parent, child in self.rows("children", {"parents": json_list(unknown)}):
                if self._changed_dependencies.get((parent, child)) is not False:
                    self._children[parent][child] = None

    def parents(self, child: int) -> list[str]:
        self._flush_dependencies()
        return [parent for (parent,) in self.rows("parents", {"child": child})]

    def _flush_dependencies(self) -> None:
        kept: list[object] = []
        for (parent, child), is_open in self._changed_dependencies.items():
            if is_open:
                kept += (parent, child)
            else:
                self.rows("drop_dependency", {"parent": parent, "child": child})
        if kept:
            self.write_rows("put_dependency", kept)
        self._changed_dependencies = {}
