"""Publishes events to the feed: the events of one job in order, and no event overwritten.

An operation writes its events first to the jobs' records, in the swap, and then to a feed part. A feed part is an
object named by the operation's stamp. It is created, or extended if it exists. A client that dies or is suspended in
between leaves events in the record that are not in the feed. The writer of the job's next event publishes them first,
and the sweep does too. A client that was only suspended publishes them itself:

- If no reader can have passed the part yet, it is completed.
- Otherwise the events get a new position, first in the record, then in the feed. The swap of the record decides which
  client publishes them. After a crash in between, the events are missing again.

An event is published twice only if a client is suspended while it writes the part itself, until readers may have passed
the part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.blobs import Won
from millrace.store.object.engine.numbers import COUNT
from millrace.store.object.engine.objects import Objects, SeenObject, Swap
from millrace.store.object.engine.values import (
    FeedEvent,
    FeedPart,
    Identity,
    JobValue,
    StoreValue,
    Trimmed,
    encode,
    events_in,
    value_of,
)
from millrace.store.object.keys import STORE, Layout

NEVER = 1 << 60  # milliseconds; with no reader delay, nothing counts as late
KNOWN = 2_000  # the most operations remembered as published
TRIES = 100
LATE_ATTEMPTS = 3  # new positions for events that are late; then the delay of readers is too short for this store

Record: TypeAlias = tuple[SeenObject, JobValue]


class EventPublisher:
    """Publishes events. `draw` returns a new stamp. Readers stay `delay` milliseconds behind the clock.

    `tally` counts the events that got a new position (`events_moved`).
    """

    def __init__(
        self,
        objects: Objects,
        clock: Callable[[], Awaitable[int]],
        draw: Callable[[int], Awaitable[int]],
        delay: int,
        tally: Counter[str],
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._draw = draw
        # In milliseconds after its stamp: when the write of a part may begin, and when it must have ended.
        self._begin_by, self._end_by = (delay // 2, delay * 3 // 4) if delay else (NEVER, NEVER)
        self._tally = tally
        self._known: dict[int, frozenset[Identity]] = {}  # published events by stamp

    async def publish(self, events: Mapping[str, Sequence[FeedEvent]], attempts: int = LATE_ATTEMPTS) -> bool:
        """Publish events that are in records, by the key of their record. Return whether records have changed.

        Readers may have passed the position of an event that is late. It gets a new position, which changes the record,
        and so do later events of the same job, to keep the order. With no `attempts` left, it is published late.
        """
        by_stamp: defaultdict[int, list[tuple[str, FeedEvent]]] = defaultdict(list)
        for key, of_job in events.items():
            for one in of_job:
                by_stamp[one.stamp].append((key, one))
        late: defaultdict[str, list[FeedEvent]] = defaultdict(list)
        for stamp, found in sorted(by_stamp.items()):
            part = sorted((one for key, one in found if key not in late), key=lambda one: one.place)
            if part and await self._is_published(stamp, part, in_time=attempts > 0):
                found = [(key, one) for key, one in found if key in late]
            for key, one in found:
                late[key].append(one)
        if late:
            await self._move(late, attempts - 1)
        return bool(late)

    async def _is_published(self, stamp: int, part: Sequence[FeedEvent], *, in_time: bool) -> bool:
        """Publish these events at their position, and return True. Return False if the position cannot be used.

        With `in_time`, check the time before and after the write: a client may be suspended at any moment.
        """
        if not in_time:
            await self.complete(part)
            return True
        at = stamp >> COUNT
        if await self._clock() - at > self._begin_by or not await self.complete(part):
            return False
        return await self._clock() - at <= self._end_by

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
            taken = {one.place: one.identity for one in there}
            if any(taken.get(one.place, one.identity) != one.identity for one in feed_events):
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

    async def _move(self, late: Mapping[str, Sequence[FeedEvent]], attempts: int) -> None:
        """Give these events new positions, in their records and then in the feed.

        Events that are not in their record are left out: another client has given them a new position.
        """
        for _ in range(TRIES):
            found = await self._objects.read([*late])
            locked = [seen for seen in found if seen.lock is not None]
            for seen in locked:
                await self._objects.unlock(seen)
            here = [
                (seen, value, events)
                for seen in found
                if seen.lock is None
                and (value := value_of(seen, JobValue)) is not None
                and (events := _those_in(value, late[seen.key]))
            ]
            moved = await self._swap_moved(here)
            await self.publish(moved, attempts)
            again = [seen.key for seen in locked] + [seen.key for seen, _, _ in here if seen.key not in moved]
            if not again:
                return
            late = {key: late[key] for key in again}

    async def _swap_moved(
        self, records: Sequence[tuple[SeenObject, JobValue, Sequence[FeedEvent]]]
    ) -> dict[str, list[FeedEvent]]:
        """Write new positions of these events to their records. Return the moved events of the records that were
        written, by key.
        """
        if not records:
            return {}
        stamp = await self._draw(await self._clock())
        order = sorted((one for _, _, events in records for one in events), key=lambda one: one.position)
        moved = {one.identity: FeedEvent(stamp, place, one.event) for place, one in enumerate(order)}
        changes = [
            Swap(seen, encode(msgspec.structs.replace(value, events=_with(value.events, moved))))
            for seen, value, _ in records
        ]
        written = await self._objects.commit_all([([change], None) for change in changes], durable=False)
        done: dict[str, list[FeedEvent]] = {}
        for (seen, _, events), outcome in zip(records, written, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            if not outcome.lost:
                done[seen.key] = [moved[one.identity] for one in events]
        self._tally["events_moved"] += sum(map(len, done.values()))
        return done

    # events that a crash kept from the feed

    async def publish_before(self, records: Iterable[Record], stamp: int) -> bool:
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
        wrong = [key for key, one in last.items() if one.identity not in published and not self._is_known(one)]
        if not wrong:
            return False
        found = [seen for seen in await self._objects.read(wrong) if seen.lock is None]
        there = [(seen, value) for seen in found if (value := value_of(seen, JobValue)) is not None]
        return await self.publish(await self.missing(there, await self._trimmed()))

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
        found = {key: [one for one in events if one.identity not in published] for key, events in looked_for.items()}
        return {key: events for key, events in found.items() if events}

    # what is in the feed

    async def _published(self, stamps: Iterable[int]) -> set[Identity]:
        published: set[Identity] = set()
        wanted = [*stamps]
        for stamp, blob in zip(
            wanted, await self._objects.blobs.get_many([Layout.feed(one) for one in wanted]), strict=True
        ):
            events = events_in(blob)
            published.update(one.identity for one in events)
            self._note(stamp, events)
        return published

    async def _trimmed(self) -> Trimmed:
        [seen] = await self._objects.read([STORE])
        return (value_of(seen, StoreValue) or StoreValue()).trimmed

    def _is_known(self, event: FeedEvent) -> bool:
        return event.identity in self._known.get(event.stamp, ())

    def _note(self, stamp: int, feed_events: Sequence[FeedEvent]) -> None:
        if feed_events:
            self._known[stamp] = self._known.get(stamp, frozenset()).union(one.identity for one in feed_events)
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]


def _before(value: JobValue, stamp: int) -> list[FeedEvent]:
    """Return the events of a job that have another stamp. Return an empty list if none of its events has this stamp."""
    older = [one for one in value.events if one.stamp != stamp]
    return older if len(older) < len(value.events) else []


def _those_in(value: JobValue, events: Sequence[FeedEvent]) -> list[FeedEvent]:
    """Return those of these events that are in the record, at the same positions."""
    wanted = {one.identity for one in events}
    return [one for one in value.events if one.identity in wanted]


def _with(events: Sequence[FeedEvent], moved: Mapping[Identity, FeedEvent]) -> tuple[FeedEvent, ...]:
    return tuple(moved.get(one.identity, one) for one in events)
