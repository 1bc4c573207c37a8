"""Jobs: each stands where its record says, is found when its time comes, and waits for parents that know of it."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.store.object.driver import Expect, Write
from millrace.store.object.engine import Engine
from millrace.store.object.job_table import Facts
from millrace.store.object.keys import Layout, name_in
from millrace.store.object.objects import Seen
from millrace.store.object.sweep.events import EventSweep
from millrace.store.object.sweep.records import RecordSweep
from millrace.store.object.sweep.round import Round
from millrace.store.object.values import JobValue, Trigger, Trimmed, decode, encode

STAMPS = 4  # of its last events, under which a job's trigger is looked for


class JobSweep:
    def __init__(self, engine: Engine, round_: Round, feed_delay: int, trimmed: Trimmed) -> None:
        self._engine = engine
        self._layout: Layout = engine.layout
        self._round = round_
        self._events = EventSweep(engine, round_, feed_delay, trimmed)
        self._records = RecordSweep(engine.layout, round_, trimmed)

    async def look(self, keys: Sequence[str]) -> None:
        found = await self._round.read(keys)
        values = [(seen, decode(seen.value, JobValue)) for seen in found if seen.value is not None]
        for seen, value in values:
            self._round.note(name_in(seen.key), value.filed)
        await self._restore_keys(values)
        queues = {value.job.queue for _, value in values if value.job is not None}
        self._round.done["queues_restored"] += await self._engine.know_queues(queues)
        await self._restore_triggers(values)
        kept = await self._events.restore(values)
        await self._records.slim(kept)

    async def _restore_keys(self, values: Sequence[tuple[Seen, JobValue]]) -> None:
        wanted = [*dict.fromkeys(key for _, value in values for key in self._keys_of(value))]
        found = await self._round.blobs.get_many(wanted)
        missing = [key for key, blob in zip(wanted, found, strict=True) if blob is None]
        await self._round.blobs.write_many([Write(key, b"", Expect.ANYTHING, durable=False) for key in missing])
        self._round.done["index_restored"] += len(missing)

    def _keys_of(self, value: JobValue) -> list[str]:
        keys = [value.filed] if value.filed else []
        if value.job is not None:
            job = value.job
            keys += [self._layout.dependency(parent, job.seq, job.id) for parent in value.parents]
        return keys + [self._layout.gone(past.gone_at, past.seq, past.id) for past in value.past]

    async def _restore_triggers(self, values: Sequence[tuple[Seen, JobValue]]) -> None:
        """A trigger is named by its instant and by the stamp of the step that wanted it, which left an event too. If
        it is under none of the last ones, the job gets one of its own: two say no more than one."""
        promised: list[tuple[str, int, list[str]]] = []  # job, when, where the promise may stand: its own place first
        for seen, value in values:
            if value.job is None:
                continue
            seq = value.job.seq
            stamps = [*dict.fromkeys(filed.stamp for filed in value.events if filed.event.seq == seq)]
            for family, at in _instants(value):
                names = [self._layout.trigger(family, at, number) for number in (seq, *stamps[-STAMPS:])]
                promised.append((seen.key, at, names))
        wanted = [*dict.fromkeys(name for *_, names in promised for name in names)]
        there = {blob.key for blob in await self._round.blobs.get_many(wanted) if blob is not None}
        lost = {names[0]: encode(Trigger(((at, key),))) for key, at, names in promised if not there.intersection(names)}
        await self._round.blobs.put_many(lost, durable=False)
        self._round.done["triggers_restored"] += len(lost)


def _instants(value: JobValue) -> list[tuple[str, int]]:
    facts = Facts.of(value)
    found = (("due", facts.outside), ("due", facts.expires), ("upkeep", facts.retry), ("upkeep", facts.result))
    return [(family, at) for family, at in found if at is not None]
