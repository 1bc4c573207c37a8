"""Checks jobs and shrinks their records.

Each job must have its index keys (for its state, its parents and its past), a settings object of its queue, its
triggers, and its events in the feed. Whatever is missing is restored.

A job that snoozes every minute for a month has forty thousand events, and each step writes the whole record. So events
that the feed no longer has are dropped. The older part of a long history moves to objects under data/, which are read
only for the history.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from millrace.store.object.engine.engine import Engine
from millrace.store.object.engine.job_table import IndexFacts
from millrace.store.object.engine.objects import SeenObject, Swap
from millrace.store.object.engine.values import FeedPart, JobValue, Trigger, Trimmed, encode, value_of
from millrace.store.object.events.publishing import Record
from millrace.store.object.keys import Layout, name_in
from millrace.store.object.sweep.round import Round

LONG = 200  # events in a record
KEPT = 50  # events of a long history that stay in the record
TRIMMED_AT_ONCE = 20  # the fewest events for which a live record is rewritten
REMEMBERED = 24 * 60 * 60 * 1000  # milliseconds for which jobs may wait for an id that was never enqueued
STAMPS = 4  # the number of last events whose stamps are tried for a job's trigger


class JobSweep:
    def __init__(self, engine: Engine, round_: Round, trimmed: Trimmed) -> None:
        self._engine = engine
        self._layout: Layout = engine.layout
        self._round = round_
        self._trimmed = trimmed
        self._cut = trimmed.position

    async def check(self, keys: Sequence[str]) -> None:
        found = await self._round.read(keys)
        values = [(seen, value) for seen in found if (value := value_of(seen, JobValue)) is not None]
        for seen, value in values:
            self._round.note(name_in(seen.key), value.index_key)
        await self._restore_keys(values)
        queues = {value.job.queue for _, value in values if value.job is not None}
        self._round.done["queues_restored"] += await self._engine.register_queues(queues)
        await self._restore_triggers(values)
        await self._shrink(await self._restore_events(values))

    async def _restore_keys(self, values: Sequence[Record]) -> None:
        wanted = [*dict.fromkeys(key for _, value in values for key in self._keys_of(value))]
        found = await self._round.blobs.get_many(wanted)
        missing = [key for key, blob in zip(wanted, found, strict=True) if blob is None]
        await self._round.blobs.put_many(dict.fromkeys(missing, b""), durable=False)
        self._round.done["index_restored"] += len(missing)

    def _keys_of(self, value: JobValue) -> list[str]:
        keys = [value.index_key] if value.index_key else []
        if value.job is not None:
            job = value.job
            keys += [self._layout.dependency(parent, job.seq, job.id) for parent in dict.fromkeys(job.spec.after)]
        return keys + [self._layout.gone(past.gone_at, past.seq, past.id) for past in value.past]

    async def _restore_triggers(self, values: Sequence[Record]) -> None:
        """Create the missing triggers of these jobs.

        The name of a trigger has its time and the stamp of the step that created it. That step also wrote an event. So
        the triggers are looked up under the stamps of the job's last events. If none is found, one is created; a
        duplicate is harmless.
        """
        promised: list[tuple[str, int, list[str]]] = []  # job, time, possible keys of its trigger: its own first
        for seen, value in values:
            if value.job is None:
                continue
            seq = value.job.seq
            stamps = [*dict.fromkeys(one.stamp for one in value.events if one.event.seq == seq)]
            for family, at in IndexFacts.of(value).triggers:
                if at is None:
                    continue
                names = [self._layout.trigger(family, at, number) for number in (seq, *stamps[-STAMPS:])]
                promised.append((seen.key, at, names))
        wanted = [*dict.fromkeys(name for *_, names in promised for name in names)]
        there = {blob.key for blob in await self._round.blobs.get_many(wanted) if blob is not None}
        lost = {names[0]: encode(Trigger(((at, key),))) for key, at, names in promised if not there.intersection(names)}
        await self._round.blobs.put_many(lost, durable=False)
        self._round.done["triggers_restored"] += len(lost)

    # events

    async def _restore_events(self, records: Sequence[Record]) -> list[Record]:
        """Publish missing events. Return the records that have not changed since they were read."""
        since = None if self._round.since is None else self._round.since - self._round.young
        missing = await self._engine.publisher.missing(records, self._trimmed, since)
        if not missing:
            return [*records]
        changed = await self._engine.publisher.publish(missing)
        self._round.done["events_restored"] += sum(map(len, missing.values()))
        return [record for record in records if record[0].key not in missing] if changed else [*records]

    async def _shrink(self, records: Sequence[Record]) -> None:
        changes: list[Swap] = []
        drops: list[int] = []
        for seen, value in records:
            dropped = self._drop_old_events(value)
            put_aside = await self._put_aside(value)
            forgotten = await self._forget_who_waited(seen, value)
            if dropped >= (1 if value.job is None else TRIMMED_AT_ONCE) or put_aside or forgotten:
                changes.append(Swap(seen, None if value.is_empty else encode(value)))
                drops.append(dropped)
        written = await self._round.rewrite(changes)
        self._round.done["events_dropped"] += sum(n for n, done in zip(drops, written, strict=True) if done)

    def _drop_old_events(self, value: JobValue) -> int:
        """Drop the events that the feed no longer has, and return their number. An object with older events counts as
        one.
        """
        events = tuple(one for one in value.events if one.position > self._cut)
        spilled = tuple(key for key in value.spilled if _last_stamp(key) >= self._cut[0])
        dropped = len(value.events) - len(events) + len(value.spilled) - len(spilled)
        value.events, value.spilled = events, spilled
        return dropped

    async def _put_aside(self, value: JobValue) -> bool:
        """Move the older events of a long history to a separate object. Return whether events were moved.

        The object is written before the record that names it. A crash in between leaves an object that no record names;
        a later sweep deletes it.
        """
        if value.job is None or len(value.events) <= LONG:
            return False
        old = value.events[:-KEPT]
        last = max(one.stamp for one in old)
        key = self._layout.data(value.job.id, f"events-{last:019d}", os.urandom(8).hex())
        await self._round.blobs.put(key, encode(FeedPart(old)))
        value.events, value.spilled = value.events[-KEPT:], (*value.spilled, key)
        return True

    async def _forget_who_waited(self, seen: SeenObject, value: JobValue) -> bool:
        """Clear the flag `awaited` of an id that no job has, if no job waits for it any more. Return whether it was
        cleared.
        """
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
