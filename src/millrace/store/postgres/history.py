"""The feed of events in PostgreSQL.

The events of a step are one row of arrays, because one row per event would cost more than the transition itself. A
job's history needs no index: each event has the id of the row with the job's previous event, and the job has the id of
the row with its newest event. Events get their numbers after the commit (`number_events`). So the feed has no gaps, and
no event is inserted before a cursor that a reader already has. A combination is a (queue, task, priority), which has an
id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from millrace.domain.event import Event
from millrace.domain.feed import cursor_at
from millrace.domain.outcome import Failure
from millrace.store.postgres.registry import Registry
from millrace.store.postgres.sql import PostgresStatements, once
from millrace.store.sql.ports import Row
from millrace.store.sql.record import KIND_NUMBER, KINDS, NUMBER, STATES
from millrace.store.sql.unit import Combo

NUMBERED_AT_ONCE = 10_000  # rows
RESERVED = 100  # ids of rows that an import reserves at once
_encode = msgspec.msgpack.Encoder().encode
_errors = msgspec.msgpack.Decoder(list[tuple[int, Failure]]).decode
CombosByNumber = Callable[[int], Combo]
_STATE_NAMES = [state.value for state in STATES]


class _EventRow(NamedTuple):
    """The events of one row of arrays, and for each the row of the same job's previous event."""

    batch: int
    events: list[Event]
    before: list[int]


class Events:
    """The events of one step. `priority_of` returns the priority of the job with a seq."""

    def __init__(self, statements: PostgresStatements, registry: Registry, priority_of: Callable[[int], int]) -> None:
        self._db = statements
        self._registry = registry
        self._priority_of = priority_of
        self.newest: dict[int, int] = {}  # row of the newest event of each loaded job, by seq
        self._events: list[Event] = []
        self._before: list[int] = []
        self._batch: int | None = None
        self._rows: list[_EventRow] = []  # before the one of `_events`
        self._reserved: list[int] = []  # ids for further rows of an import
        self._spare: int | None = None  # an id that was reserved for the first row of events
        self._feed_bounds: Row | None = None  # (trimmed, newest, mark of the last trimmed event)
        self._unnumbered: Sequence[Row] = ()  # shown after the newest: (number of the last event, size, id) of a row

    def begin(self, event: int) -> None:
        """Start a step. `event` is an id that is reserved for the first row of events of the step."""
        self._spare = event

    def append(self, event: Event) -> None:
        if self._events and self._events[0].at != event.at:
            self._begin_row()
        if self._batch is None:
            self._batch, self._spare = (int(self._db.value("next_event")) if self._spare is None else self._spare), None
        self._events.append(event)
        self._before.append(self.newest.get(event.seq, 0))
        self.newest[event.seq] = self._batch

    def _begin_row(self) -> None:
        """Begin another row, because a row has one instant. Only an import has events of several instants."""
        assert self._batch is not None
        self._rows.append(_EventRow(self._batch, self._events, self._before))
        if not self._reserved:
            self._reserved = self._db.seqs("next_events", RESERVED)[::-1]
        self._events, self._before, self._batch = [], [], self._reserved.pop()

    def append_first(self, events: Sequence[Event]) -> None:
        """Append the first events of new jobs, one event per job."""
        for event in events:
            self.append(event)

    def flush(self) -> None:
        if not self._events:
            return
        assert self._batch is not None
        rows, self._rows = [*self._rows, _EventRow(self._batch, self._events, self._before)], []
        self._events, self._before, self._batch = [], [], None
        places = [(row.batch, len(row.events), row.events[0].at) for row in rows]
        if len(places) == 1:
            self._db.execute("put_outbox", *places[0])
        else:
            self._db.write("put_outbox_rows", places)
        self._db.execute_each("put_events", [self._values_of(row) for row in rows])

    def _values_of(self, row: _EventRow) -> tuple[Any, ...]:
        """Return the columns of a row of events."""
        events = row.events
        columns = [*zip(*map(msgspec.structs.astuple, events), strict=True)]
        errors = [(index, event.error) for index, event in enumerate(events) if event.error is not None]
        return (
            row.batch,
            events[0].at,
            list(columns[1]),
            once(row.before),
            once([self._combo_id_of(event) for event in events]),
            once(columns[2]),
            once(columns[3]),
            once(columns[9]),
            once(columns[10]),
            once([KIND_NUMBER[event.kind] for event in events]),
            once([NUMBER[event.state] for event in events]),  # type: ignore[index]  # a StrEnum is its text
            list(columns[0]),
            _some(columns[11]),
            _some(columns[12]),
            _some(columns[13]),
            _some(columns[16]),
            _some(columns[14]),
            _encode(errors) if errors else None,
        )

    def _combo_id_of(self, event: Event) -> int:
        """Return the id of the combination of the event's job."""
        return self._registry.combo_id((event.queue, event.task, self._priority_of(event.seq)))[0]

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def show_unnumbered(self, settled: int, shown: int) -> None:
        """Show events without a number too, with the numbers that they will get: up to the place `settled`, and up to
        the number `shown`.
        """
        rows = self._db.rows("unnumbered", NUMBERED_AT_ONCE)
        self._unnumbered = [row[:3] for row in rows if row[3] <= settled or row[0] - row[1] < shown]

    def feed_bounds(self) -> tuple[int, int]:
        if self._feed_bounds is None:
            self._feed_bounds = self._db.rows("feed_bounds")[0]
        newest = self._unnumbered[-1][0] if self._unnumbered else self._feed_bounds[1]
        return self._feed_bounds[0], newest

    def trimmed_mark(self) -> str:
        self.feed_bounds()
        assert self._feed_bounds is not None
        return str(self._feed_bounds[2])

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        found: list[tuple[int, Event]] = []
        for last, size, *row in self._db.rows("feed", after, limit):
            first = last - size + 1
            events = list(unpack(row, self._registry.combo_name))
            found += [(first + index, events[index]) for index in range(max(0, after + 1 - first), size)]
        if self._unnumbered and len(found) < limit:
            found += self._feed_unnumbered(after + len(found), limit - len(found))
        return found[:limit]

    def _feed_unnumbered(self, after: int, limit: int) -> list[tuple[int, Event]]:
        rows = [row for row in self._unnumbered if row[0] > after and row[0] - row[1] < after + limit]
        bodies = {row[0]: row[1:] for row in self._db.rows("event_rows", [event for _, _, event in rows])}
        found: list[tuple[int, Event]] = []
        for last, size, event in rows:
            events = enumerate(unpack(bodies[event], self._registry.combo_name), start=last - size + 1)
            found += [(number, one) for number, one in events if number > after]
        return found

    def of(self, newest: Mapping[int, int]) -> dict[int, list[Event]]:
        """Return the events of many jobs, oldest first. `newest` maps their seqs to the rows of their newest events.

        Each row is read once, and all rows of one step back together.
        """
        hidden: dict[int, int] = {row[0]: row[1] for row in self._db.rows("feed_edge")}  # deleted events of a row
        known: dict[int, tuple[Row, list[Event]]] = {}
        wanted, found = dict(newest), defaultdict[int, list[Event]](list)
        while wanted:
            missing = sorted({row for row in wanted.values() if row and row not in known})
            for row in self._db.rows("event_rows", missing) if missing else ():
                known[row[0]] = row, list(unpack(row[1:], self._registry.combo_name))
            earlier: dict[int, int] = {}
            for seq, number in wanted.items():
                if number not in known:
                    continue  # deleted by retention
                row, events = known[number]
                places = [place for place, event in enumerate(events) if event.seq == seq]
                found[seq] += [events[place] for place in places if place >= hidden.get(number, 0)]
                before = row[3][0] if len(row[3]) == 1 else row[3][places[0]]
                if before not in (0, number):
                    earlier[seq] = before
            wanted = earlier
        return {seq: sorted(found[seq], key=lambda event: event.n) for seq in newest}

    # ── retention ─────────────────────────────────────────────────────────────────────────────

    def trim(self, before: int, limit: int) -> int:
        while self._db.value("number_events", NUMBERED_AT_ONCE) == NUMBERED_AT_ONCE:
            pass
        self._feed_bounds = None
        trimmed = self.feed_bounds()[0]
        count = 0
        done = False
        while not done and (rows := self._db.rows("feed_sizes", trimmed + count, 1_000)):
            for last, at in rows:
                if at > before or count >= limit:
                    done = True
                    break
                count = min(limit, last - trimmed)
        if count:
            self._db.rows("trim_feed", trimmed + count, cursor_at(self, trimmed + count).mark)
            self._feed_bounds = None
        return count


class FeedPage:
    """A page of the feed that was read in one statement, with the interface `FeedTables` that domain/feed.py reads."""

    def __init__(self, rows: Sequence[Row], combo_name: CombosByNumber) -> None:
        self._rows = rows
        self._combo_name = combo_name

    def feed_bounds(self) -> tuple[int, int]:
        return self._rows[0][1], self._rows[0][2]

    def trimmed_mark(self) -> str:
        return str(self._rows[0][3])

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        found: list[tuple[int, Event]] = []
        for _, _, _, _, last, size, *row in self._rows:
            if last is None or len(found) >= limit:
                break
            first = last - size + 1
            events = list(unpack(row, self._combo_name))
            found += [(first + index, events[index]) for index in range(max(0, after + 1 - first), size)]
        return found[:limit]


def events_of_id(rows: Sequence[Row], combo_name: CombosByNumber) -> list[Event]:
    """Return all events of the jobs that have used an id, ordered by generation and then by number."""
    found = [
        event
        for wanted, hidden, *row in rows
        for index, event in enumerate(unpack(row, combo_name))
        if event.seq == wanted and index >= hidden
    ]
    return sorted(found, key=lambda event: (event.seq, event.n))


def _some(values: Sequence[Any]) -> list[Any] | None:
    return list(values) if any(value is not None for value in values) else None


def unpack(row: Row, combo_name: CombosByNumber) -> Iterator[Event]:
    """Yield the events of one row of arrays, in order."""
    at, seqs, _, combos, generations, ns, attempts, failures, kinds, states, ids, *rare = row
    size = len(seqs)
    workers, leases, delays, durations, reasons, blob = rare
    errors: dict[int, Failure] = dict(_errors(blob)) if blob is not None else {}
    names = {combo: combo_name(combo) for combo in set(combos)}
    for index, (
        seq,
        combo,
        generation,
        n,
        attempt,
        failed,
        kind,
        state,
        job,
        worker,
        lease,
        delay,
        duration,
        reason,
    ) in enumerate(
        zip(
            seqs,
            _each(combos, size),
            _each(generations, size),
            _each(ns, size),
            _each(attempts, size),
            _each(failures, size),
            _each(kinds, size),
            _each(states, size),
            ids,
            _each(workers, size),
            _each(leases, size),
            _each(delays, size),
            _each(durations, size),
            _each(reasons, size),
            strict=True,
        )
    ):
        queue, task, _ = names[combo]
        error = errors.get(index)
        yield Event(
            job,
            seq,
            generation,
            n,
            KINDS[kind],
            at,
            queue,
            task,
            _STATE_NAMES[state],
            attempt,
            failed,
            worker,
            lease,
            delay,
            reason,
            error,
            duration,
        )


def _each(values: Sequence[Any] | None, size: int) -> Any:
    """Return `size` values, one per event. A list with a single value stands for the same value in all events; so does
    None.
    """
    if values is None:
        return repeat(None, size)
    return repeat(values[0], size) if len(values) == 1 else values
