"""The ledger's tables in a SQLite file: a unit of work that is reused for many transactions, and the indexes of jobs.

Rows that were read stay cached until another connection writes to the file. A combination is a (queue, task, priority).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence

from millrace.domain.event import Event
from millrace.domain.job import FINISHED, State
from millrace.domain.tables import Range
from millrace.store.sql.jobs import Gone
from millrace.store.sql.lines import Lines
from millrace.store.sql.ports import Batch, Effects, NoLocks, Statements
from millrace.store.sql.record import NUMBER
from millrace.store.sql.records import Workers
from millrace.store.sql.search import END, Walk
from millrace.store.sql.unit import Unit
from millrace.store.sqlite.connection import Io, SqliteStatements
from millrace.store.sqlite.history import Events
from millrace.store.sqlite.jobs import SPAN_BLOCK, SqliteRows
from millrace.store.sqlite.registry import Registry

MOST_LOADED = 20_000  # records cached between transactions …
MOST_BYTES = 32 << 20  # … and bytes of their specs
OPEN = (0, 1, 2)  # values of the column `open`
_FIRST_LOOK = 16  # entries read from a range at least


class _Due:
    """Open, due jobs of one combination in the order of claims, read some at a time by one of two statements.

    `in_order` finds those that are in order (see schema.sql), and `ready` the others. This is a `Range` of
    domain/tables.py.
    """

    __slots__ = (
        "_combo",
        "_heads",
        "_look",
        "_next",
        "_now",
        "_shown",
        "_statement",
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
        statement: str,
    ) -> None:
        self._tables = tables
        self._statement = statement
        self.queue = queue
        self.task, self.priority, self._combo = combo
        self._now = now
        self._look = look
        self._shown = shown  # seqs of all ranges of this priority: their records are loaded in one statement
        self._heads: list[tuple[int, int]] = []
        self._next = 0
        self._whole = False

    def read(self) -> int:
        """Read the next entries. Return the total number of entries read so far."""
        tables = self._tables
        found = tables.statements.rows(self._statement, self._combo, self._now, self._look, len(self._heads))
        seqs = [seq for _, seq in found]
        self._shown += seqs
        tables.jobs.shown.update(dict.fromkeys(seqs, self._shown))
        self._heads += found  # type: ignore[arg-type]  # rows of two columns
        self._whole = len(found) < self._look
        self._look = 2 * len(self._heads)
        return len(self._heads)

    def peek(self) -> tuple[int, int] | None:
        if self._next >= len(self._heads) and (self._whole or self.read() <= self._next):
            return None
        return self._heads[self._next]

    def advance(self) -> None:
        self._next += 1


class SqliteTables(Unit):
    """The tables of the ledger, read and written through one connection.

    `Effects` in store/sql/ports.py explains `watched` and `reply_to`.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        io: Io,
        watched: Mapping[str, int] | None = None,
        reply_to: Callable[[], str | None] | None = None,
    ) -> None:
        statements, effects, locks = SqliteStatements(connection, io), Effects(watched, reply_to), NoLocks()
        batch = Batch()
        self.registry = Registry(statements, effects)
        self.events = Events(statements, self.registry)
        lines = Lines(statements, self.registry, locks, effects, batch)
        self._sqlite_rows = SqliteRows(statements, effects, self.registry, self.events, lines)
        self._version: int | None = None
        super().__init__(
            statements,
            effects,
            locks,
            batch,
            registry=self.registry,
            events=self.events,
            gone=Gone(statements, self.events.newest, effects, alone=True),
            lines=lines,
            rows=self._sqlite_rows,
            indexes=_Indexes(statements),
            workers=Workers(statements, effects),
            alone=True,
        )

    # ── between transactions ──────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Drop cached rows if another connection has written to the file. Every transaction must call this first."""
        version: int = self.statements.rows("data_version")[0][0]
        if version != self._version:
            self._forget_shared()
            self.registry.outdated()
            self._sqlite_rows.outdated()
            self._version = version

    def forget(self) -> None:
        """Drop all cached rows, including changes that are not written yet."""
        self._forget_shared()
        self.registry.forget()
        self._sqlite_rows.forget()

    def _forget_shared(self) -> None:
        parts = (
            *(self._batch, self.jobs, self.events, self._gone),
            *(self.lines, self._members, self._keys, self._dependencies, self._schedules),
        )
        for part in parts:
            part.forget()

    def trim_cache(self) -> None:
        """Drop all cached rows if there are too many. Called at the end of a transaction."""
        self.jobs.shown.clear()
        if len(self.jobs.loaded) > MOST_LOADED or self._sqlite_rows.weight > MOST_BYTES:
            self.forget()

    # ── history ───────────────────────────────────────────────────────────────────────────────

    def history(self, job_id: str) -> list[Event]:
        newest = [(past.seq, self._gone.newest[past.seq]) for past in self.past(job_id)]
        job = self.by_id(job_id)
        if job is not None:
            newest.append((job.seq, self.events.newest[job.seq]))
        return [event for _, cursor in sorted(newest) for event in self.events.back_from(cursor)]

    def events_of(self, seqs: Sequence[int]) -> dict[int, list[Event]]:
        newest = {**self._gone.newest, **self.events.newest}
        return self.events.of({seq: newest.get(seq, 0) for seq in seqs})

    def trim_events(self, before: int, limit: int) -> int:
        self.jobs.flush()
        return self.events.trim(before, limit)

    # ── what a claim and the reaper look at ───────────────────────────────────────────────────

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        self.jobs.flush()
        by_priority: dict[int, list[tuple[str, int, int]]] = {}
        for combo in self.registry.combos(queue):
            if tasks is None or combo[0] in tasks:
                by_priority.setdefault(combo[1], []).append(combo)
        most = limit + (len(by_priority) > 1)  # a merge of several ranges reads one entry more than it takes
        ranges: list[Range] = []
        known = 0
        for _, combos in sorted(by_priority.items(), reverse=True):
            look = min(most, max(_FIRST_LOOK, limit * 5 // (4 * len(combos)) + 1))  # a little more than its share
            shown: list[int] = []
            level = [
                _Due(self, queue, combo, now, look, shown, statement)
                for combo in combos
                for statement in ("in_order", "ready")
            ]
            if known < limit:  # otherwise higher priorities have enough jobs, and this range is read on demand
                found = [(due, due.read()) for due in level]
                level = [due for due, heads in found if heads]
                known += sum(heads for _, heads in found)
            ranges += level
        return ranges

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        self.jobs.flush()
        wanted = None if queues is None and tasks is None else self._combos_of(queues, tasks)
        found: list[int] = []
        offset = 0
        while len(found) < limit:
            rows = self.statements.rows("lapsed", now, limit, offset)
            found += [seq for seq, combo, lease in rows if (wanted is None or combo in wanted) and lease not in ignore]
            if len(rows) < limit:
                break
            offset += limit
        return found[:limit]

    def _combos_of(self, queues: tuple[str, ...] | None, tasks: frozenset[str] | None) -> set[int]:
        names = self.queues() if queues is None else queues
        return {
            combo for name in names for task, _, combo in self.registry.combos(name) if tasks is None or task in tasks
        }

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        self.jobs.flush()
        instants = [
            self.statements.value("first_ready", combo)
            for task, _, combo in self.registry.combos(queue)
            if (tasks is None or task in tasks) and task not in without
        ]
        queue_id = self.registry.queue_id(queue)
        if queue_id is not None:
            instants.append(self.statements.value("first_outside", queue_id))
        return min((at for at in instants if at is not None), default=None)

    def waiting_counts(self, queue: str, now: int) -> tuple[int, int, int | None]:
        self.jobs.flush()
        queue_id = self.registry.queue_id(queue)
        if queue_id is None:
            return 0, 0, None
        value = self.statements.value
        combos = [combo for _, _, combo in self.registry.combos(queue)]
        later: int = sum(value("ready_later", combo, now) for combo in combos) + value("aside_later", queue_id, now)
        retrying: int = value("retrying_later", queue_id, now)
        firsts = [value("first_ready", combo) for combo in combos]
        oldest = min((at for at in firsts if at is not None and at <= now), default=None)
        return later - retrying, retrying, oldest


class _Indexes:
    finds_finished = True

    def __init__(self, statements: Statements) -> None:
        self._db = statements

    def walks(self, combos: Iterable[int], states: frozenset[State]) -> list[Walk]:
        combos = list(combos)
        live: list[Walk] = []
        if State.WAITING in states:
            live = [("walk_waiting", (combo, is_open)) for combo in combos for is_open in OPEN]
        if State.RUNNING in states:
            live.append(("walk_running", (combos,)))
        ended: list[Walk] = [("walk_ended", (combo, NUMBER[state])) for combo in combos for state in states & FINISHED]
        return live + ended

    def seqs_enqueued(self, since: int | None, before: int | None) -> tuple[int, int]:
        first, last = self._db.rows("span_bounds", since or 0, END if before is None else before)[0]
        return (0, 0) if first is None else ((first << SPAN_BLOCK) - 1, (last + 1) << SPAN_BLOCK)
