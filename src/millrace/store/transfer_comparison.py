"""Compares the copy of a store with the original, before `millrace move` opens it.

An error names the field that differs. Payloads and results may contain personal data, so it shows of bytes only their
length and a hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable

import msgspec

from millrace.domain.errors import StoreError
from millrace.domain.export import Exported, ExportedHold, comparable, identity, shifted
from millrace.store.protocol import Store
from millrace.store.transfer_pages import records_of

SHOWN = 200  # characters of a value in an error


async def compare(source: Store, target: Store, shift: int, progress: Callable[[int], None]) -> None:
    """Raise StoreError if the target does not have exactly what the source has, with instants `shift` ms later.

    `progress` is called with the number of records compared so far.
    """
    done = 0
    keys: list[dict[tuple[str, ...], Exported]] = [{}, {}]  # their order is not defined
    async for one, other in _pairs(records_of(source), records_of(target)):
        wanted = None if one is None else comparable(shifted(one, shift))
        found = None if other is None else comparable(other)
        done += 1
        progress(done)
        if wanted == found and not isinstance(wanted, ExportedHold):
            continue
        if isinstance(wanted, ExportedHold | None) and isinstance(found, ExportedHold | None):
            for side, record in zip(keys, (wanted, found), strict=True):
                if record is not None:
                    side[identity(record)] = record
            continue
        raise _difference(wanted, found)
    for name in {**keys[0], **keys[1]}:
        if keys[0].get(name) != keys[1].get(name):
            raise _difference(keys[0].get(name), keys[1].get(name))


async def _pairs(
    ours: AsyncIterator[Exported], copies: AsyncIterator[Exported]
) -> AsyncIterator[tuple[Exported | None, Exported | None]]:
    while True:
        pair = await anext(ours, None), await anext(copies, None)
        if pair == (None, None):
            return
        yield pair


def _difference(wanted: Exported | None, found: Exported | None) -> StoreError:
    return StoreError(
        f"the copy differs from the source: {_described(wanted, found)}. The target stays closed, and no job is lost: "
        "run the command again, or end the move with --abort."
    )


def _described(wanted: Exported | None, found: Exported | None) -> str:
    """Describe how two records in the same place differ."""
    if wanted is None or found is None or identity(wanted) != identity(found):
        missing = "" if wanted is None else f"{_name(wanted)} is missing"
        added = "" if found is None else f"{_name(found)} is {'in its place' if missing else 'not in the source'}"
        return ", and ".join(filter(None, (missing, added)))
    return f"{_name(wanted)}: {_differing(wanted, found)}"


def _name(record: Exported) -> str:
    return " ".join(identity(record))


def _differing(wanted: object, found: object, path: str = "") -> str:
    """Return the first field that differs, with both values."""
    if isinstance(wanted, msgspec.Struct) and type(wanted) is type(found):
        for name in wanted.__struct_fields__:
            one, other = getattr(wanted, name), getattr(found, name)
            if one != other:
                return _differing(one, other, f"{path}.{name}".lstrip("."))
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        for number, (one, other) in enumerate(zip(wanted, found, strict=False)):
            if one != other:
                return _differing(one, other, f"{path}[{number}]")
        return f"{path} has {len(found)} entries, not {len(wanted)}"
    return f"{path} is {_shown(found)}, not {_shown(wanted)}"


def _shown(value: object) -> str:
    """Return a value as an error shows it: short, and without the content of payloads, results and logs."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes (SHA-256 {hashlib.sha256(value).hexdigest()[:12]}…)"
    if isinstance(value, msgspec.Struct):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
