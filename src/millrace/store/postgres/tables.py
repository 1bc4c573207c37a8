"""The ledger's tables in PostgreSQL: the unit of work of one try of a step, and the indexes of jobs.

A job found in an index is locked and checked again before the ledger sees it, because another step may have changed it
in between. Jobs that another step has locked are skipped. A combination is a (queue, task, priority).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace.domain.event import Event
from millrace.domain.job import State, lane_line
from millrace.domain.request import WorkerRecord
from millrace.domain.tables import Range
from millrace.store.postgres.history import Events, events_of_id
from millrace.store.postgres.jobs import PostgresRows
from millrace.store.postgres.locks import Plan, StepLocks
from millrace.store.postgres.registry import Registry
from millrace.store.postgres.sql import PostgresStatements, Wire
from millrace.store.sql.jobs import Gone
from millrace.store.sql.lines import Lines
from millrace.store.sql.ports import Batch, Effects, Statements
from millrace.store.sql.records import Workers
from millrace.store.sql.search import END, Walk
from millrace.store.sql.unit import Combo, Unit

_OUT_OF_STEP = 60_000  # milliseconds by which the order of enqueued_at may differ from that of the seqs


class _Due:
    """The open, due jobs of one combination in the order of claims (a `Range`). They are read on first use."""

    def __init__(self, tables: PostgresTables, queue: str, combo: tuple[str, int, int], now: int, limit: int) -> None:
        self._tables = tables
        self.queue = queue
        self.task, self.priority, self._combo = combo
        self._now = now
        self._limit = limit
        self._heads: list[tuple[int, int]] | None = None
        self._next = 0

    def peek(self) -> tuple[int, int] | None:
        if self._heads is None:
            self._heads = self._tables.heads(self._combo, self._now, self._limit)
        return self._heads[self._next] if self._next < len(self._heads) else None

    def advance(self) -> None:
        self._next += 1


class PostgresTables(Unit):
    """The tables of the ledger in one transaction. With `writes=False`, the step only reads, and nothing is locked.

    For `combo_ids` and `combo_names` see `Registry`.
    """

    def __init__(
        self,
        wire: Wire,
        sql: Mapping[str, str],
        plan: Plan | None = None,
        effects: Effects | None = None,
        *,
        writes: bool = True,
        combo_ids: Mapping[Combo, tuple[int, int]] | None = None,
        combo_names: dict[int, Combo] | None = None,
    ) -> None:
        statements, effects = PostgresStatements(wire, sql), effects or Effects()
        self.locks = StepLocks(statements, plan or Plan(), writes=writes)
        names = {} if combo_names is None else combo_names
        batch = Batch()
        self.registry = Registry(statements, self.locks, batch, dict(combo_ids or {}), names)
        self.events = Events(statements, self.registry, self._priority_of)
        lines = Lines(statements, self.registry, self.locks, effects, batch)
        self._locked_rows = PostgresRows(statements, self.locks, self.registry, self.events, lines)
        super().__init__(
            statements,
            effects,
            self.locks,
            batch,
            registry=self.registry,
            events=self.events,
            gone=Gone(statements, self.events.newest, effects, alone=False, ahead=writes),
            lines=lines,
            rows=self._locked_rows,
            indexes=_Indexes(statements),
            workers=Workers(statements, effects, _worker_columns),
            alone=False,
        )
        self.waiting_counts = self.registry.waiting_counts

    def _priority_of(self, seq: int) -> int:
        return self.jobs.priority_of(seq)

    def begin(self, given: int | None, soon: int) -> int:
        """Start a step: take the planned locks, load the planned jobs, and return the time.

        Jobs that are due within `soon` milliseconds are worth waking a worker for.
        """
        now, event, tasks = self.locks.begin(given)
        self.registry.begin(now, tasks)
        self.events.begin(event)
        self.begin_call(now + soon)
        self._locked_rows.load_planned(self.jobs)
        return now

    def begin_reading(self, given: int | None) -> int:
        now = int(self.statements.value("clock", None)) if given is None else given
        self.registry.begin(now)
        return now

    # ── history ───────────────────────────────────────────────────────────────────────────────

    def history(self, job_id: str) -> list[Event]:
        self.flush()
        return events_of_id(self.statements.rows("history", job_id), self.registry.combo_name)

    def events_of(self, seqs: Sequence[int]) -> dict[int, list[Event]]:
        self.flush()
        newest = {**self._gone.newest, **self.events.newest}
        return self.events.of({seq: newest.get(seq, 0) for seq in seqs})

    def trim_events(self, before: int, limit: int) -> int:
        self.flush()
        return self.events.trim(before, limit)

    # ── what a claim and the reaper look at ───────────────────────────────────────────────────

    def heads(self, combo: int, now: int, limit: int) -> list[tuple[int, int]]:
        """Return (available_at, seq) of the first due jobs of a combination whose rows and lines no other step has
        locked.
        """
        found = [(at, seq) for at, seq in self.statements.rows("ready", combo, now, limit)]
        mine = set(self._locked_rows.confirmed(self.jobs, [seq for _, seq in found], lambda job: True))
        return [(at, seq) for at, seq in found if seq in mine]

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        self.jobs.flush()
        wanted = [combo for combo in self.registry.combos(queue) if tasks is None or combo[0] in tasks]
        return [_Due(self, queue, combo, now, limit + (len(wanted) > 1)) for combo in wanted]

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        self.jobs.flush()
        wanted = None if queues is None else list(queues)
        known = None if tasks is None else list(tasks)
        seqs = self.statements.seqs("lapsed", now, wanted, known, list(ignore), limit)
        jobs = self._locked_rows.load_free(self.jobs, seqs)
        return [job.seq for job in jobs if job.lease_until is not None and job.lease_until < now]

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        combos = [
            combo
            for task, _, combo in self.registry.combos(queue)
            if (tasks is None or task in tasks) and task not in without
        ]
        instants = [self.statements.value("first_ready", combos)]
        queue_id = self.registry.queue_id(queue)
        if queue_id is not None:
            instants.append(self.statements.value("first_outside", queue_id))
        return min((at for at in instants if at is not None), default=None)

    def look_at_lanes(self, queue: str) -> None:
        """Load the `Line` records of all lanes of a pool in one statement."""
        lanes = self.queue(queue).settings.lanes or 0
        self.lines.load([(queue, lane_line(lane)) for lane in range(lanes)])


def _worker_columns(record: WorkerRecord) -> tuple[list[str], int]:
    return list(record.info.queues), record.last_beat + record.ttl


class _Indexes:
    finds_finished = False

    def __init__(self, statements: Statements) -> None:
        self._db = statements

    def walks(self, combos: Iterable[int], states: frozenset[State]) -> list[Walk]:
        name = "walk_dead" if states == {State.DEAD} else "walk_combo"
        return [(name, (combo,)) for combo in combos] if states else []

    def seqs_enqueued(self, since: int | None, before: int | None) -> tuple[int, int]:
        return (
            0 if since is None else self._db.value("seq_at", since - _OUT_OF_STEP) - 1,
            END if before is None else self._db.value("seq_at", before + _OUT_OF_STEP),
        )
