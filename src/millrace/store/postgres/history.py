"""The feed of events, and what is remembered of jobs that are gone.

The events of a step are one row of arrays: one row per event would cost more than the transition it tells of. A job's
history needs no index: each event names the row with the job's event before it, and the job the newest one. Events
get their numbers in the feed after the commit (`number_events`), so the feed has no gaps and nothing appears behind a
reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec

from millrace.domain.event import Event
from millrace.domain.outcome import Failure
from millrace.domain.tables import Past
from millrace.store.postgres.record import KIND_NUMBER, KINDS, NUMBER, STATES
from millrace.store.postgres.registry import Combo, Registry
from millrace.store.postgres.unit import Row

NUMBERED_AT_ONCE = 10_000  # rows
_encode = msgspec.msgpack.Encoder().encode
_errors = msgspec.msgpack.Decoder(list[tuple[int, Failure]]).decode
CombosByNumber = Callable[[int], Combo]
_STATE_NAMES = [state.value for state in STATES]


class History(Registry):
    def start(self) -> None:
        super().start()
        self._events: list[Event] = []
        self._before: list[int] = []
        self._batch: int | None = None
        self._spare: int | None = None  # a number that was drawn for the first row of events
        self._newest: dict[int, int] = {}  # of a job at hand: the row of its newest event
        self._past: dict[str, list[Past]] = {}
        self._past_known: set[str] = set()
        self._new_past: dict[int, Past] = {}
        self._dropped_past: list[int] = []

    def flush(self) -> None:
        super().flush()
        self._flush_past()
        if self._events:
            self._write_events()

    def _write_events(self) -> None:
        events = self._events
        columns = [*zip(*map(msgspec.structs.astuple, events), strict=True)]
        errors = [(index, event.error) for index, event in enumerate(events) if event.error is not None]
        self.rows(
            "put_events",
            self._batch,
            events[0].at,
            list(columns[1]),
            self._before,
            [self.combo_id_of(event) for event in events],
            list(columns[2]),
            list(columns[3]),
            list(columns[9]),
            list(columns[10]),
            [KIND_NUMBER[event.kind] for event in events],
            [NUMBER[event.state] for event in events],  # type: ignore[index]  # a StrEnum is its text
            list(columns[0]),
            _some(columns[11]),
            _some(columns[12]),
            _some(columns[13]),
            _some(columns[16]),
            _some(columns[14]),
            _encode(errors) if errors else None,
        )
        self._events, self._before, self._batch = [], [], None

    def combo_id_of(self, event: Event) -> int:
        """Of the job that the event tells of."""
        raise NotImplementedError

    def begun(self, event: int, tasks: Sequence[str]) -> None:
        super().begun(event, tasks)
        self._spare = event

    def append(self, event: Event) -> None:
        if self._batch is None:
            self._batch, self._spare = (int(self.value("next_event")) if self._spare is None else self._spare), None
        self._events.append(event)
        self._before.append(self._newest.get(event.seq, 0))
        self._newest[event.seq] = self._batch

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def feed_bounds(self) -> tuple[int, int]:
        trimmed, numbered = self.rows("feed_bounds")[0]
        return trimmed, numbered

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        found: list[tuple[int, Event]] = []
        for last, size, *row in self.rows("feed", after, limit):
            first = last - size + 1
            events = self.events_of(row)
            found += [(first + index, events[index]) for index in range(max(0, after + 1 - first), size)]
        return found[:limit]

    def events_of(self, row: Row) -> list[Event]:
        return list(unpack(row, self.combo_name))

    def history(self, job_id: str) -> list[Event]:
        self.flush()
        return events_of_id(self.rows("history", job_id), self.combo_name)

    # ── retention ─────────────────────────────────────────────────────────────────────────────

    def trim_events(self, before: int, limit: int) -> int:
        self.flush()
        while self.value("number_events", NUMBERED_AT_ONCE) == NUMBERED_AT_ONCE:
            pass
        trimmed = self.feed_bounds()[0]
        count = 0
        done = False
        while not done and (rows := self.rows("feed_sizes", trimmed + count, 1_000)):
            for last, at in rows:
                if at > before or count >= limit:
                    done = True
                    break
                count = min(limit, last - trimmed)
        if count:
            self.rows("trim_feed", trimmed + count)
        return count

    # ── generations whose record is gone ──────────────────────────────────────────────────────

    def prefetch_past(self, ids: Sequence[str]) -> None:
        unknown = [job_id for job_id in ids if job_id not in self._past_known]
        if not unknown:
            return
        self._flush_past()
        self._past_known.update(unknown)
        for job_id, seq, generation, state, token, gone_at in self.rows("past", texts(unknown)):
            self._past.setdefault(job_id, []).append(Past(job_id, seq, generation, STATES[state], token, gone_at))

    def past(self, job_id: str) -> list[Past]:
        if job_id not in self._past_known:
            self.prefetch_past([job_id])
        return self._past.get(job_id, [])

    def add_past(self, past: Past) -> None:
        self._new_past[past.seq] = past
        if past.id in self._past_known:
            self._past.setdefault(past.id, []).append(past)

    def stale_past(self, before: int, limit: int) -> list[Past]:
        self._flush_past()
        found = [
            Past(job_id, seq, generation, STATES[state], token, gone_at)
            for job_id, seq, generation, state, token, gone_at in self.rows("stale_past", before, limit)
        ]
        self.prefetch_children([past.id for past in found])
        return found

    def prefetch_children(self, parents: Sequence[str]) -> None:
        """Who waits for these will be asked for next."""
        raise NotImplementedError

    def drop_past(self, past: Past) -> None:
        self._dropped_past.append(past.seq)
        if past.id in self._past:
            self._past[past.id] = [kept for kept in self._past[past.id] if kept.seq != past.seq]

    def _flush_past(self) -> None:
        if self._new_past:
            rows = [
                (past.seq, past.id, past.generation, NUMBER[past.state], past.token, past.gone_at, self._newest[seq])
                for seq, past in self._new_past.items()
            ]
            self.rows("put_past", *(list(column) for column in zip(*rows, strict=True)))
            self._new_past = {}
        if self._dropped_past:
            self.rows("drop_past", self._dropped_past)
            self._dropped_past = []


class FeedPage:
    """A page that was read in one statement, as the tables that a question about the feed is put to."""

    def __init__(self, rows: Sequence[Row], combo_name: CombosByNumber) -> None:
        self._rows = rows
        self._combo_name = combo_name

    def feed_bounds(self) -> tuple[int, int]:
        return self._rows[0][1], self._rows[0][2]

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        found: list[tuple[int, Event]] = []
        for _, _, _, last, size, *row in self._rows:
            if last is None or len(found) >= limit:
                break
            first = last - size + 1
            events = list(unpack(row, self._combo_name))
            found += [(first + index, events[index]) for index in range(max(0, after + 1 - first), size)]
        return found[:limit]


def events_of_id(rows: Sequence[Row], combo_name: CombosByNumber) -> list[Event]:
    """All that is told of an id: generation by generation, each in order."""
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
    """The events of one row, in order."""
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
    """One value stands for all."""
    if values is None:
        return repeat(None, size)
    return repeat(values[0], size) if len(values) == 1 else values


def texts(items: Sequence[str]) -> list[str]:
    """What can be text in the database; no job can have another id, so those need not be looked for."""
    return [item for item in items if (item.isascii() and "\0" not in item) or _is_text(item)]


def _is_text(item: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" or character == "\0" for character in item)
