"""Records that have grown: what the feed has forgotten is dropped from them, and a long history is put aside.

A job that snoozes every minute for a month has forty thousand events, and each step of it writes the record anew. So
the older part of a long history moves to objects of its own under data/, which only a reader of the history reads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from millrace.store.object.keys import Layout, name_in
from millrace.store.object.objects import Change, Seen
from millrace.store.object.sweep.round import Round
from millrace.store.object.values import FeedPart, JobValue, Trimmed, encode

LONG = 200  # events in a record
KEPT = 50  # of a long history, in the record itself
TRIMMED_AT_ONCE = 20  # a live record is not written anew for the sake of fewer
REMEMBERED = 24 * 60 * 60 * 1000  # how long somebody may have begun to wait for an id that nobody enqueued


class RecordSweep:
    def __init__(self, layout: Layout, round_: Round, trimmed: Trimmed) -> None:
        self._layout = layout
        self._round = round_
        self._cut = (trimmed.stamp, trimmed.place)

    async def slim(self, values: Sequence[tuple[Seen, JobValue]]) -> None:
        changes: list[Change] = []
        drops: list[int] = []
        for seen, value in values:
            dropped = self._drop_old_events(value)
            put_aside = await self._put_aside(value)
            forgotten = await self._forget_who_waited(seen, value)
            if dropped >= (1 if value.job is None else TRIMMED_AT_ONCE) or put_aside or forgotten:
                changes.append(Change(seen, None if value.is_empty else encode(value)))
                drops.append(dropped)
        written = await self._round.rewrite(changes)
        self._round.done["events_dropped"] += sum(n for n, done in zip(drops, written, strict=True) if done)

    def _drop_old_events(self, value: JobValue) -> int:
        """How many were; what was put aside counts as one."""
        events = tuple(filed for filed in value.events if (filed.stamp, filed.place) > self._cut)
        spilled = tuple(key for key in value.spilled if _last_stamp(key) >= self._cut[0])
        dropped = len(value.events) - len(events) + len(value.spilled) - len(spilled)
        value.events, value.spilled = events, spilled
        return dropped

    async def _put_aside(self, value: JobValue) -> bool:
        """The object first, then the record that names it; a crash in between leaves data that nobody names."""
        if value.job is None or len(value.events) <= LONG:
            return False
        old = value.events[:-KEPT]
        last = max(filed.stamp for filed in old)
        key = self._layout.data(value.job.id, f"events-{last:019d}", os.urandom(8).hex())
        await self._round.blobs.put(key, encode(FeedPart(old)))
        value.events, value.spilled = value.events[-KEPT:], (*value.spilled, key)
        return True

    async def _forget_who_waited(self, seen: Seen, value: JobValue) -> bool:
        """Does nobody wait any more for this id, of which nothing is known?"""
        if not value.awaited or value.job is not None or value.past or value.events or value.spilled:
            return False
        blob = await self._round.blobs.get(seen.key)
        if blob is None or blob.modified > self._round.now - REMEMBERED:
            return False
        page = await self._round.blobs.list(f"deps/{name_in(seen.key)}/", None, 1)
        value.awaited = bool(page.entries)
        return not value.awaited


def _last_stamp(key: str) -> int:
    return int(key.rsplit("/", 1)[1].split("-")[1])
