"""A job's history from the versions of its object: the whole record as it was after each write (O-23, BO-19).

A version that was pending shows what became of it. Who left it so is known from what stands above it: a transaction
that failed was taken back, so the next version has the old value again; any other next version means that it happened.
For the newest there is nothing above, and its primary is asked. Versions that repeat the one below (a pending write
that was carried through, or taken back) are told as repeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.store.object.driver import Version
from millrace.store.object.envelope import Envelope, opened, plain
from millrace.store.object.store import ObjectStore
from millrace.store.object.values import JobValue, decode, job_value

PAGE = 100
_NOT_COMPARED = ("spec", "events", "seq", "result", "attempts", "lost_worker")


class Record(msgspec.Struct, frozen=True):
    """A job as one version of its object has it.

    `rev` counts the writes of a job, so it names a record in a history. `job` is None where the object says only what
    is remembered of it, and `deleted` where it was deleted. `undecided`: a write is under way, and the record is as it
    was before. `missing` names large parts ("input", "output") that are no longer kept.
    """

    version: str
    at: int
    rev: int = 0
    job: Job | None = None
    filed: str = ""
    parents: tuple[str, ...] = ()
    awaited: bool = False
    deleted: bool = False
    undecided: bool = False
    repeats: bool = False
    missing: tuple[str, ...] = ()


class RecordPage(msgspec.Struct, frozen=True):
    """Newest first; `cursor` leads to the next page, None at the end."""

    records: tuple[Record, ...]
    cursor: str | None = None


class Difference(msgspec.Struct, frozen=True):
    field: str
    before: Any
    after: Any


class _Read(msgspec.Struct):
    """A version, and the value that counts."""

    version: Version
    envelope: Envelope | None
    value: bytes | None = None
    undecided: bool = False


class Versions:
    """Reads only. `kept` says whether this store has any versions beside the newest."""

    def __init__(self, store: ObjectStore) -> None:
        self._blobs = store.blobs
        self._objects = store.engine.objects
        self._layout = store.engine.layout

    @property
    def kept(self) -> bool:
        return self._blobs.keeps_versions

    async def page(self, job_id: str, cursor: str | None = None, limit: int = PAGE) -> RecordPage:
        if not 1 <= limit <= 1_000:
            raise InvalidInput(f"a page holds 1 to 1,000 versions, not {limit}")
        key = self._layout.job(job_id)
        listed = await self._blobs.versions(key, cursor, limit)
        found = await self._read(key, listed.versions)
        above = None if cursor is None else await self._envelope(key, cursor)
        for number, one in enumerate(found):
            newest = cursor is None and number == 0
            await self._settle(key, one, above, newest)
            above = one.envelope
        below = await self._value_below(key, found[-1], listed.next) if found and listed.next else None
        values = [*(one.value for one in found[1:]), below][: len(found)]
        records = await asyncio.gather(*(self._record(one, low) for one, low in zip(found, values, strict=True)))
        return RecordPage(tuple(records), listed.next)

    async def newest_first(self, job_id: str) -> AsyncIterator[Record]:
        """Every kept version, page by page."""
        cursor: str | None = None
        while True:
            page = await self.page(job_id, cursor)
            for record in page.records:
                yield record
            if page.cursor is None:
                return
            cursor = page.cursor

    async def oldest_first(self, job_id: str) -> list[Record]:
        return [record async for record in self.newest_first(job_id)][::-1]

    # one page

    async def _read(self, key: str, versions: Sequence[Version]) -> list[_Read]:
        async def one(version: Version) -> _Read | None:
            if version.deleted:
                return _Read(version, None)
            envelope = await self._envelope(key, version.id)
            return None if envelope is None else _Read(version, envelope)  # removed since it was listed

        return [read for read in await asyncio.gather(*map(one, versions)) if read is not None]

    async def _envelope(self, key: str, version: str) -> Envelope | None:
        blob = await self._blobs.get_version(key, version)
        return None if blob is None else opened(blob.body)

    async def _settle(self, key: str, one: _Read, above: Envelope | None, newest: bool) -> None:
        """What counts of a version, given the one above it."""
        if one.envelope is None:
            return
        pending, before = one.envelope.pending, plain(one.envelope.value)
        one.value = before
        if pending is None:
            return
        after = plain(pending.next)
        if newest:
            [seen] = await self._objects.read([key])
            above = seen.envelope
            if above is not None and above.pending is not None and above.pending.tx == pending.tx:
                one.undecided = seen.lock is not None
                one.value = before if one.undecided else after
                return
        one.value = before if above is not None and plain(above.value) == before != after else after

    async def _value_below(self, key: str, last: _Read, cursor: str) -> bytes | None:
        """The value of the version before this page's last: the first of the next page."""
        listed = await self._blobs.versions(key, cursor, 1)
        [*found] = await self._read(key, listed.versions)
        if not found:
            return None
        await self._settle(key, found[0], last.envelope, newest=False)
        return found[0].value

    async def _record(self, one: _Read, below: bytes | None) -> Record:
        version = one.version
        if one.envelope is None:
            return Record(version.id, version.modified, deleted=True)
        repeats = one.value is not None and one.value == below
        if one.value is None:
            return Record(version.id, version.modified, undecided=one.undecided, repeats=repeats)
        large, missing = await self._large(one.value)
        value = _value(one.value, large, missing)
        return Record(
            version.id,
            version.modified,
            value.rev,
            value.job,
            value.filed,
            value.parents,
            value.awaited,
            undecided=one.undecided,
            repeats=repeats,
            missing=missing,
        )

    async def _large(self, value: bytes) -> tuple[dict[str, bytes], tuple[str, ...]]:
        data = decode(value, JobValue).data or {}
        blobs = await self._blobs.get_many([*data.values()])
        found = {blob.key: blob.body for blob in blobs if blob is not None}
        return found, tuple(name for name, key in data.items() if key not in found)


def diff(before: Record, after: Record) -> list[Difference]:
    """What differs between two records, field by field; events are left out."""
    one, other = _fields(before), _fields(after)
    names = [*other, *(name for name in one if name not in other)]
    return [Difference(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)]


def _fields(record: Record) -> dict[str, Any]:
    if record.job is None:
        return {"deleted": record.deleted, "awaited": record.awaited}
    job = record.job
    fields: dict[str, Any] = {}
    for name in job.spec.__struct_fields__:
        if name not in ("payload", "token"):
            fields[name] = getattr(job.spec, name)
    for name in job.__struct_fields__:
        if name not in _NOT_COMPARED:
            fields[name] = getattr(job, name)
    fields["payload"] = _decoded(job.spec.payload, job.spec.serde)
    fields["result"] = None if job.result is None else _decoded(job.result, job.spec.serde)
    fields["progress"] = None if job.progress is None else _decoded(job.progress, "json")
    fields |= {"waits_for": record.parents, "awaited": record.awaited, "deleted": record.deleted}
    return {name: msgspec.to_builtins(value) for name, value in fields.items()}


def _decoded(body: bytes, serde: str) -> Any:
    if serde == "json" and body:
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError:
            pass
    return body


def _value(body: bytes, large: dict[str, bytes], missing: tuple[str, ...]) -> JobValue:
    if not missing:
        return job_value(body, large)
    value = decode(body, JobValue)
    kept = {name: key for name, key in (value.data or {}).items() if name not in missing}
    return job_value(msgspec.json.encode(msgspec.structs.replace(value, data=kept)), large)
