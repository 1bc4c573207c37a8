"""Publishes events to the feed: each event once, the events of one job in order, and no event overwritten.

An operation writes its events first to the jobs' records, in the swap, and then to a feed part. A feed part is an
object named by the operation's stamp. It is created, or extended if it exists. After a crash in between, some events
are in the record but not in the feed. The writer of the job's next event repairs that first, and the sweep does too:

- If no reader can have passed the part yet, it is completed.
- Otherwise the events get a new position, first in the record, then in the feed. After a crash in between, the events
  are missing again, but no event is ever published twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Won
from millrace.store.object.engine.numbers import COUNT
from millrace.store.object.engine.objects import Committed, Objects, SeenObject, Swap
from millrace.store.object.engine.values import (
    FeedEvent,
    FeedPart,
    JobValue,
    StoreValue,
    Trimmed,
    encode,
    events_in,
    value_of,
)
from millrace.store.object.keys import STORE, Layout

MARGIN = 5_000  # milliseconds before a reader may arrive, by which a part must be complete
NEVER = 1 << 60  # milliseconds; with no reader delay, nothing counts as late
KNOWN = 2_000  # the most operations remembered as published
TRIES = 100

Record: TypeAlias = tuple[SeenObject, JobValue]
Identity: TypeAlias = tuple[int, int, int, int]
Draw: TypeAlias = Callable[[int], Awaitable[int]]


class EventPublisher:
    """Publishes events. `draw` returns a new stamp. Readers stay `delay` milliseconds behind the clock."""

    def __init__(self, objects: Objects, draw: Draw, delay: int) -> None:
        self._objects = objects
        self._draw = draw
        self._in_time = delay - min(MARGIN, delay // 2) if delay else NEVER
        self._known: dict[int, frozenset[Identity]] = {}  # published events by stamp

    async def publish(self, feed_events: Sequence[FeedEvent], now: int) -> None:
        """Publish the events of one operation in the feed part named by their stamp.

        If that part contains events of another operation, use a new stamp.
        """
        for _ in range(TRIES):
            if await self.complete(feed_events):
                return
            feed_events = moved(feed_events, await self._draw(now))
        raise StoreError(f"{self._objects.blobs.url}: no part of the feed could be written; report this")

    async def complete(self, feed_events: Sequence[FeedEvent]) -> bool:
        """Add these events to the feed part named by their stamp. Return False if other events have their positions."""
        blobs, stamp = self._objects.blobs, feed_events[0].stamp
        key = Layout.feed(stamp)
        written = await blobs.create(key, encode(FeedPart(tuple(feed_events))), durable=False)
        for _ in range(TRIES):
            if isinstance(written, Won):
                self._note(stamp, feed_events)
                return True
            blob = written.current if written.looked else await blobs.get(key)
            there = events_in(blob)
            taken = {one.place: _identity(one) for one in there}
            if any(taken.get(one.place, _identity(one)) != _identity(one) for one in feed_events):
                return False
            new = [one for one in feed_events if one.place not in taken]
            if not new:
                self._note(stamp, feed_events)
                return True
            body = encode(FeedPart(tuple(sorted((*there, *new), key=lambda one: one.place))))
            if blob is None:
                written = await blobs.create(key, body, durable=False)
            else:
                written = await blobs.swap(key, body, blob.tag, durable=False)
        raise StoreError(f"{blobs.url}: {key!r} keeps changing; nothing is lost, the sweep repairs it")

    # events that a crash kept from the feed

    async def publish_before(self, records: Iterable[Record], stamp: int, now: int) -> bool:
        """Publish earlier events of these jobs that are missing in the feed. Call this before swapping in an operation.

        `stamp` is the stamp of that operation. Return True if records have changed; the caller must decide the
        operation again. Only the last earlier event of each job is checked, because its writer has checked the events
        before it.
        """
        last = {seen.key: older[-1] for seen, value in records if (older := _before(value, stamp))}
        unknown = [one for one in last.values() if not self._is_known(one)]
        if not unknown:
            return False
        published = await self._published({one.stamp for one in unknown})
        wrong = [seen.key for seen, value in records if seen.key in last and _identity(last[seen.key]) not in published]
        wrong = [key for key in wrong if not self._is_known(last[key])]
        if not wrong:
            return False
        found = [seen for seen in await self._objects.read(wrong) if seen.lock is None]
        there = [(seen, value) for seen in found if (value := value_of(seen, JobValue)) is not None]
        missing = await self.missing(there, await self._trimmed())
        if not missing:
            return False
        _, changed = await self.restore(there, missing, now)
        return changed

    async def missing(
        self, records: Sequence[Record], trimmed: Trimmed, since: int | None = None
    ) -> dict[str, list[FeedEvent]]:
        """Return the events that are neither in the feed nor trimmed, by the key of their record.

        With `since`, in milliseconds, only later events are checked.
        """
        cut = trimmed.position
        looked_for = {
            seen.key: [
                one for one in value.events if one.position > cut and (since is None or (one.stamp >> COUNT) > since)
            ]
            for seen, value in records
        }
        published = await self._published({one.stamp for events in looked_for.values() for one in events})
        found = {key: [one for one in events if _identity(one) not in published] for key, events in looked_for.items()}
        return {key: events for key, events in found.items() if events}

    async def restore(
        self, records: Sequence[Record], missing: Mapping[str, Sequence[FeedEvent]], now: int
    ) -> tuple[int, bool]:
        """Publish missing events. Return the number of published events, and whether records have changed.

        An event that is too late for its position gets a new position, which changes the record of its job. Later
        events of the same job that are missing move too, to keep the order.
        """
        in_time: defaultdict[int, list[FeedEvent]] = defaultdict(list)
        late: defaultdict[str, list[FeedEvent]] = defaultdict(list)
        for key, events in missing.items():
            for one in sorted(events, key=lambda one: one.position):
                if late[key] or (one.stamp >> COUNT) <= now - self._in_time:
                    late[key].append(one)
                else:
                    in_time[one.stamp].append(one)
        restored = 0
        for _, events in sorted(in_time.items()):
            if await self.complete(sorted(events, key=lambda one: one.place)):
                restored += len(events)
            else:
                for one in events:
                    late[_key_of(records, one)].append(one)
        wrong = {key: events for key, events in late.items() if events}
        if wrong:
            restored += await self._publish_moved([one for one in records if one[0].key in wrong], wrong, now)
        return restored, bool(wrong)

    async def _publish_moved(self, records: Sequence[Record], late: Mapping[str, Sequence[FeedEvent]], now: int) -> int:
        stamp = await self._draw(now)
        order = sorted((one for events in late.values() for one in events), key=lambda one: one.position)
        places = {_identity(old): new for old, new in zip(order, moved(order, stamp), strict=True)}
        changes = [
            ([Swap(seen, encode(msgspec.structs.replace(value, events=_with(value.events, places))))], None)
            for seen, value in records
        ]
        written = await self._objects.commit_all(changes)
        for outcome in written:
            if isinstance(outcome, BaseException):
                raise outcome
        done = [seen.key for (seen, _), one in zip(records, written, strict=True) if _is_done(one)]
        moved_events = sorted((places[_identity(one)] for key in done for one in late[key]), key=lambda one: one.place)
        if moved_events:
            await self.publish(moved_events, now)
        return len(moved_events)

    # what is in the feed

    async def _published(self, stamps: Iterable[int]) -> set[Identity]:
        published: set[Identity] = set()
        wanted = [*stamps]
        for stamp, blob in zip(
            wanted, await self._objects.blobs.get_many([Layout.feed(one) for one in wanted]), strict=True
        ):
            events = events_in(blob)
            published.update(map(_identity, events))
            self._note(stamp, events)
        return published

    async def _trimmed(self) -> Trimmed:
        [seen] = await self._objects.read([STORE])
        return (value_of(seen, StoreValue) or StoreValue()).trimmed

    def _is_known(self, event: FeedEvent) -> bool:
        return _identity(event) in self._known.get(event.stamp, ())

    def _note(self, stamp: int, feed_events: Sequence[FeedEvent]) -> None:
        if feed_events:
            self._known[stamp] = self._known.get(stamp, frozenset()).union(map(_identity, feed_events))
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]


def moved(feed_events: Sequence[FeedEvent], stamp: int) -> list[FeedEvent]:
    """Return these events with new positions, in the operation with this stamp."""
    return [FeedEvent(stamp, place, one.event) for place, one in enumerate(feed_events)]


def _before(value: JobValue, stamp: int) -> list[FeedEvent]:
    """Return the events of a job that have another stamp. Return an empty list if none of its events has this stamp."""
    older = [one for one in value.events if one.stamp != stamp]
    return older if len(older) < len(value.events) else []


def _with(events: Sequence[FeedEvent], places: Mapping[Identity, FeedEvent]) -> tuple[FeedEvent, ...]:
    return tuple(places.get(_identity(one), one) for one in events)


def _key_of(records: Sequence[Record], event: FeedEvent) -> str:
    return next(seen.key for seen, value in records if event in value.events)


def _is_done(outcome: Committed | BaseException) -> bool:
    return isinstance(outcome, Committed) and not outcome.lost


def _identity(event: FeedEvent) -> Identity:
    return (event.stamp, event.place, event.event.seq, event.event.n)
