"""The feed of events, and what is remembered of jobs that are gone.

The events of a commit are written as pages, because one row per event would cost more than the transition it tells
of. A job's history needs no index: each event names the job's event before it, and the job's row the newest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from millrace.domain.event import Event
from millrace.domain.tables import Past
from millrace.store.sqlite.record import NUMBER, STATES
from millrace.store.sqlite.registry import Registry

PAGE = 256
_PAGES_AT_ONCE = 8


class _Packed(Event, frozen=True, gc=False, array_like=True):
    """An event without its field names."""


class _Page(msgspec.Struct, array_like=True, gc=False):
    before: list[int]  # of each event: the cursor of the same job's event before it, or 0
    events: list[_Packed]

    def event(self, index: int) -> Event:
        return unpacked(self.events[index])


def unpacked(event: Event) -> Event:
    return Event(*msgspec.structs.astuple(event))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Page).decode


class History(Registry):
    def forget(self) -> None:
        super().forget()
        self._events: list[Event] = []
        self._before: list[int] = []
        self._newest: dict[int, int] = {}  # of a job at hand: the cursor of its newest event
        self._past: dict[str, list[Past]] = {}
        self._past_known: set[str] = set()
        self._past_newest: dict[int, int] = {}
        self._any_past: bool | None = None

    def flush(self) -> None:
        if self._events:
            self._store_changed = True
        super().flush()
        if self._events:
            self._write_pages()

    def _write_pages(self) -> None:
        last = self.counters()[1]
        first = last - len(self._events) + 1
        packed = list(map(msgspec.structs.astuple, self._events))
        cuts = [*range(0, len(packed), PAGE), len(packed)]
        for start, end in pairwise(cuts):
            page = _encode((self._before[start:end], packed[start:end]))
            self.rows("insert_page", {"last": first + end - 1, "first": first + start, "page": page})
        self._events, self._before = [], []

    def append(self, event: Event) -> None:
        counters = self._store or self.counters()
        counters[1] = cursor = counters[1] + 1
        self._events.append(event)
        newest, seq = self._newest, event.seq
        self._before.append(newest.get(seq, 0))
        newest[seq] = cursor

    def append_first(self, events: Sequence[Event]) -> None:
        """The first events of as many new jobs."""
        counters = self._store or self.counters()
        first = counters[1] + 1
        counters[1] += len(events)
        self._events += events
        self._before += [0] * len(events)
        self._newest.update(zip([event.seq for event in events], range(first, counters[1] + 1), strict=True))

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def feed_bounds(self) -> tuple[int, int]:
        _, last_event, trimmed = self.counters()
        return trimmed, last_event

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        self.flush()
        found: list[tuple[int, Event]] = []
        while len(found) < limit:
            rows = self.rows("pages_after", {"after": after, "limit": _PAGES_AT_ONCE})
            if not rows:
                break
            for first, blob in rows:
                page = _decode(blob)
                start = max(0, after + 1 - first)
                room = limit - len(found)
                found += [
                    (first + index, page.event(index)) for index in range(start, min(len(page.events), start + room))
                ]
                after = first + len(page.events) - 1
        return found

    def packed(self, after: int, limit: int) -> list[_Packed]:
        """As `feed`, but as they are stored: in bulk, to make each an `Event` would cost more than to read it."""
        self.flush()
        found: list[_Packed] = []
        while len(found) < limit:
            pages = max(_PAGES_AT_ONCE, (limit - len(found)) // PAGE)
            rows = self.rows("pages_after", {"after": after, "limit": pages})
            if not rows:
                break
            for first, blob in rows:
                events = _decode(blob).events
                found += events[after + 1 - first :] if first <= after else events
                after = first + len(events) - 1
                if len(found) >= limit:
                    break
        return found[:limit]

    def history_back_from(self, cursor: int) -> list[Event]:
        """The events of one job, oldest first, from its newest back to what retention has left."""
        self.flush()
        trimmed = self.counters()[2]
        found: list[Event] = []
        first, page = 0, _Page([], [])
        while cursor > trimmed:
            if not first <= cursor < first + len(page.events):
                rows = self.rows("page_of", {"cursor": cursor})
                if not rows:
                    break
                first, page = rows[0][0], _decode(rows[0][1])
            found.append(page.event(cursor - first))
            cursor = page.before[cursor - first]
        return found[::-1]

    # ── retention ─────────────────────────────────────────────────────────────────────────────

    def trim_events(self, before: int, limit: int) -> int:
        self.flush()
        counters = self.counters()
        count = self._count_older(before, limit)
        if count:
            counters[2] += count
            self.touched = self._store_changed = True
            self.rows("drop_pages", {"trimmed": counters[2]})
            self.rows("drop_spans")
        return count

    def _count_older(self, before: int, limit: int) -> int:
        """How many events from the start of the feed, up to a limit, happened by then."""
        trimmed = self.counters()[2]
        count = 0
        while rows := self.rows("pages_after", {"after": trimmed + count, "limit": _PAGES_AT_ONCE}):
            for first, blob in rows:
                for event in _decode(blob).events[trimmed + count + 1 - first :]:
                    if event.at > before or count >= limit:
                        return count
                    count += 1
        return count

    # ── generations whose record is gone ──────────────────────────────────────────────────────

    def prefetch_past(self, ids: list[str]) -> None:
        if self._any_past is None:
            self._any_past = bool(self.value("any_past"))
        if not self._any_past:
            return
        unknown = [job_id for job_id in ids if job_id not in self._past_known]
        if not unknown:
            return
        self._past_known.update(unknown)
        for job_id, seq, generation, state, token, gone_at, newest in self.rows("past", {"ids": json_list(unknown)}):
            self._past.setdefault(job_id, []).append(Past(job_id, seq, generation, STATES[state], token, gone_at))
            self._past_newest[seq] = newest

    def no_past(self, ids: list[str]) -> bool:
        return self._any_past is False or not any(self.past(job_id) for job_id in ids)

    def past(self, job_id: str) -> list[Past]:
        if self._any_past is False:
            return []
        if job_id not in self._past_known:
            self.prefetch_past([job_id])
        return self._past.get(job_id, [])

    def add_past(self, past: Past) -> None:
        self.prefetch_past([past.id])
        self._any_past = self.touched = True
        newest = self._newest[past.seq]
        self._past_known.add(past.id)
        self._past.setdefault(past.id, []).append(past)
        self._past_newest[past.seq] = newest
        self.rows(
            "put_past",
            (past.seq, past.id, past.generation, NUMBER[past.state], past.token, past.gone_at, newest),
        )

    def stale_past(self, before: int, limit: int) -> list[Past]:
        rows = self.rows("stale_past", {"before": before, "limit": limit})
        return [
            Past(job_id, seq, generation, STATES[state], token, gone_at)
            for job_id, seq, generation, state, token, gone_at in rows
        ]

    def drop_past(self, past: Past) -> None:
        self.touched = True
        self.rows("drop_past", {"seq": past.seq})
        if past.id in self._past:
            self._past[past.id] = [kept for kept in self._past[past.id] if kept.seq != past.seq]


def json_list(items: list[str]) -> str:
    try:
        return msgspec.json.encode(items).decode()
    except UnicodeEncodeError:  # half a surrogate pair: no job can have such an id, so it need not be looked for
        return msgspec.json.encode([item for item in items if item.isascii() or _is_text(item)]).decode()


def _is_text(item: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in item)
