"""Events that a crash kept from the feed: their jobs' records have them, and name the part they belong in.

Where no reader can have been yet, the part is completed. Else the event gets a new place: first in the record, then
in the feed, so that a crash in between leaves an event that is missing again, and never one that was told twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from millrace.store.object.blobs import Won
from millrace.store.object.engine import Engine
from millrace.store.object.keys import Layout
from millrace.store.object.numbers import COUNT
from millrace.store.object.objects import Change, Seen
from millrace.store.object.sweep.round import Round
from millrace.store.object.values import FeedPart, Filed, JobValue, Trimmed, decode, encode

MARGIN = 5_000  # between when a reader may come by and when a part must be complete
TRIES = 10
Record = tuple[Seen, JobValue]


class EventSweep:
    def __init__(self, engine: Engine, round_: Round, feed_delay: int, trimmed: Trimmed) -> None:
        self._engine = engine
        self._round = round_
        self._delay = feed_delay
        self._trimmed = (trimmed.stamp, trimmed.place)

    async def restore(self, records: Sequence[Record]) -> list[Record]:
        """The records that are still as they were read."""
        missing = await self._missing(records)
        if not missing:
            return [*records]
        now = await self._engine.clock()
        in_time: defaultdict[int, list[Filed]] = defaultdict(list)
        late: dict[str, list[Filed]] = defaultdict(list)
        for key, events in missing.items():
            for filed in events:
                if (filed.stamp >> COUNT) > now - self._delay + MARGIN:
                    in_time[filed.stamp].append(filed)
                else:
                    late[key].append(filed)
        for stamp, events in in_time.items():
            await self._complete(Layout.feed(stamp), events)
        await self._file_anew([record for record in records if record[0].key in late], late, now)
        return [record for record in records if record[0].key not in late]

    async def _missing(self, records: Sequence[Record]) -> dict[str, list[Filed]]:
        """By record: events whose part of the feed does not hold them, and that have not been cut off the feed."""
        looked_for = {seen.key: [*self._recent(value.events)] for seen, value in records}
        stamps = [*dict.fromkeys(filed.stamp for events in looked_for.values() for filed in events)]
        told: set[tuple[int, int, int, int]] = set()
        for blob in await self._round.blobs.get_many([Layout.feed(stamp) for stamp in stamps]):
            told.update(map(_identity, decode(blob.body, FeedPart).events if blob is not None else ()))
        missing = {
            key: [filed for filed in events if _identity(filed) not in told] for key, events in looked_for.items()
        }
        return {key: events for key, events in missing.items() if events}

    def _recent(self, events: Iterable[Filed]) -> Iterable[Filed]:
        since = self._round.since
        for filed in events:
            is_kept = (filed.stamp, filed.place) > self._trimmed
            if is_kept and (since is None or (filed.stamp >> COUNT) > since - self._round.young):
                yield filed

    async def _complete(self, key: str, events: Sequence[Filed]) -> None:
        for _ in range(TRIES):
            blob = await self._round.blobs.get(key)
            there = () if blob is None else decode(blob.body, FeedPart).events
            new = {_identity(filed): filed for filed in (*there, *events)}
            body = encode(FeedPart(tuple(sorted(new.values(), key=lambda filed: filed.place))))
            if blob is None:
                written = await self._round.blobs.create(key, body)
            else:
                written = await self._round.blobs.swap(key, body, blob.tag)
            if isinstance(written, Won):
                self._round.done["events_restored"] += len(new) - len(there)
                return

    async def _file_anew(self, late: Sequence[Record], missing: dict[str, list[Filed]], now: int) -> None:
        if not late:
            return
        stamp = self._engine.numbers.stamps.draw(now)
        order = sorted(
            (filed for seen, _ in late for filed in missing[seen.key]), key=lambda one: (one.stamp, one.place)
        )
        moved = {_identity(filed): Filed(stamp, place, filed.event) for place, filed in enumerate(order)}
        changes: list[Change] = []
        for seen, value in late:
            events = tuple(moved.get(_identity(filed), filed) for filed in value.events)
            changes.append(Change(seen, encode(msgspec.structs.replace(value, events=events))))
        written = await self._round.rewrite(changes)
        done = [seen.key for (seen, _), is_done in zip(late, written, strict=True) if is_done]
        filed_anew = [moved[_identity(filed)] for key in done for filed in missing[key]]
        if filed_anew:
            filed_anew.sort(key=lambda filed: filed.place)
            await self._round.blobs.put(Layout.feed(stamp), encode(FeedPart(tuple(filed_anew))))
            self._round.done["events_restored"] += len(filed_anew)


def _identity(filed: Filed) -> tuple[int, int, int, int]:
    return (filed.stamp, filed.place, filed.event.seq, filed.event.n)
