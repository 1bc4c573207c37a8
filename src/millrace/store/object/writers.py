"""Writer numbers: each process that connects takes one, and gives it back when it closes (`control/numbers.json`).

The same object says with how many shard digits the store was made, which every process must know before it looks for a
job.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.object.keys import NUMBERS
from millrace.store.object.numbers import WRITERS, Numbers
from millrace.store.object.objects import Change, Objects
from millrace.store.object.values import NumbersValue, decode, encode


async def take(objects: Objects, numbers: Numbers, shard_digits: int, now: int) -> None:
    writer = 0

    def choose(kept: NumbersValue) -> NumbersValue:
        nonlocal writer
        new, writer = taken(_same_shards(kept, shard_digits, objects.blobs.url), now)
        return new

    kept = await _change(objects, choose)
    if not numbers.begin(writer, kept.high):
        await give_back(objects, writer, kept.high)


async def give_back(objects: Objects, writer: int, high: int) -> None:
    await _change(objects, lambda kept: given_back(kept, writer, high))


async def _change(objects: Objects, change: Callable[[NumbersValue], NumbersValue]) -> NumbersValue:
    while True:
        [seen] = await objects.read([NUMBERS])
        kept = change(NumbersValue() if seen.value is None else decode(seen.value, NumbersValue))
        if not (await objects.commit([Change(seen, encode(kept))])).lost:
            return kept


def _same_shards(kept: NumbersValue, digits: int, url: str) -> NumbersValue:
    if kept.shard_digits not in (None, digits):
        raise StoreError(
            f"{url} was made with {kept.shard_digits} shard digits, and here are {digits}: its jobs would not "
            f"be found. Set MILLRACE_SHARD_DIGITS={kept.shard_digits}."
        )
    return msgspec.structs.replace(kept, shard_digits=digits)


def taken(kept: NumbersValue, now: int) -> tuple[NumbersValue, int]:
    """The smallest number that is free; when none is, the one that was taken longest ago: its taker has crashed."""
    free = next((number for number in range(WRITERS) if number not in kept.taken), None)
    writer = min(kept.taken, key=lambda number: kept.taken[number]) if free is None else free
    return NumbersValue({**kept.taken, writer: now}, kept.high, kept.shard_digits), writer


def given_back(kept: NumbersValue, writer: int, high: int) -> NumbersValue:
    rest = {number: at for number, at in kept.taken.items() if number != writer}
    return NumbersValue(rest, max(kept.high, high), kept.shard_digits)
