"""A job's history from the versions of its object: the whole record after each write.

A version may be pending in a transaction. It is shown with the outcome of the transaction, which the next newer version
shows: if that version has the old value again, the transaction failed; otherwise it succeeded. For the newest version,
the primary of the transaction is read. A version that repeats the one before it is marked as a repeat; a pending write
that is completed or undone leaves such versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.job import Job
from millrace.store.object.driver import Version
from millrace.store.object.engine.objects import Envelope, opened, value_bytes
from millrace.store.object.engine.values import JobValue, decode, job_value
from millrace.store.object.store import ObjectStore

PAGE = 100
_NOT_COMPARED = ("spec", "events", "seq", "result", "attempts", "lost_worker")


class VersionRecord(msgspec.Struct, frozen=True):
    """A job as stored in one version of its object.

    `rev` counts the writes of a job and identifies a record in its history. `job` is None if the job was removed and
    the object has only what is remembered of it. `deleted` means that the object was deleted. `undecided` means that a
    write is in progress; the record then shows the state before that write. `missing` names large parts ("input",
    "output") that are no longer kept.
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
    """A page of versions, newest first. `cursor` is where the next page starts; None if there is no next page."""

    records: tuple[VersionRecord, ...]
    cursor: str | None = None


class VersionDifference(msgspec.Struct, frozen=True):
    field: str
    before: Any
    after: Any


class _Read(msgspec.Struct):
    """A version and its effective value: the new value if its transaction was committed, else the value before it."""

    version: Version
    envelope: Envelope | None
    value: bytes | None = None
    undecided: bool = False


class Versions:
    """Reads the versions of jobs. `kept` says whether this store keeps versions other than the newest."""

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

    async def newest_first(self, job_id: str) -> AsyncIterator[VersionRecord]:
        """Yield every kept version of a job, newest first."""
        cursor: str | None = None
        while True:
            page = await self.page(job_id, cursor)
            for record in page.records:
                yield record
            if page.cursor is None:
                return
            cursor = page.cursor

    async def oldest_first(self, job_id: str) -> list[VersionRecord]:
        return [record async for record in self.newest_first(job_id)][::-1]

    # one page

    async def _read(self, key: str, versions: Sequence[Version]) -> list[_Read]:
        async def one(version: Version) -> _Read | None:
            if version.deleted:
                return _Read(version, None)
            envelope = await self._envelope(key, version.id)
            return None if envelope is None else _Read(version, envelope)  # removed after it was listed

        return [read for read in await asyncio.gather(*map(one, versions)) if read is not None]

    async def _envelope(self, key: str, version: str) -> Envelope | None:
        blob = await self._blobs.get_version(key, version)
        return None if blob is None else opened(blob.body)

    async def _settle(self, key: str, one: _Read, above: Envelope | None, newest: bool) -> None:
        """Set the effective value of a version (see `_Read`). `above` is the envelope of the next newer version."""
        if one.envelope is None:
            return
        pending, before = one.envelope.pending, value_bytes(one.envelope.value)
        one.value = before
        if pending is None:
            return
        after = value_bytes(pending.next)
        if newest:
            [seen] = await self._objects.read([key])
            above = seen.envelope
            if above is not None and above.pending is not None and above.pending.tx == pending.tx:
                one.undecided = seen.lock is not None
                one.value = before if one.undecided else after
                return
        one.value = before if above is not None and value_bytes(above.value) == before != after else after

    async def _value_below(self, key: str, last: _Read, cursor: str) -> bytes | None:
        """Return the effective value of the first version of the next page; None if there is none."""
        listed = await self._blobs.versions(key, cursor, 1)
        [*found] = await self._read(key, listed.versions)
        if not found:
            return None
        await self._settle(key, found[0], last.envelope, newest=False)
        return found[0].value

    async def _record(self, one: _Read, below: bytes | None) -> VersionRecord:
        version = one.version
        if one.envelope is None:
            return VersionRecord(version.id, version.modified, deleted=True)
        repeats = one.value is not None and one.value == below
        if one.value is None:
            return VersionRecord(version.id, version.modified, undecided=one.undecided, repeats=repeats)
        large, missing = await self._large(one.value)
        value = _value(one.value, large, missing)
        return VersionRecord(
            version.id,
            version.modified,
            value.rev,
            value.job,
            value.index_key,
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


def diff(before: VersionRecord, after: VersionRecord) -> list[VersionDifference]:
    """Return the fields in which two records differ. Events are not compared."""
    one, other = _fields(before), _fields(after)
    names = [*other, *(name for name in one if name not in other)]
    return [
        VersionDifference(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
    ]


def _fields(record: VersionRecord) -> dict[str, Any]:
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
    fields["payload"] = _decoded(job.spec.payload, job.spec.payload_serde)
    fields["result"] = None if job.result is None else _decoded(job.result, job.spec.result_serde)
    fields["progress"] = None if job.progress is None else _decoded(job.progress, "json")
    fields["log"] = None if job.log is None else _decoded(job.log, "json")
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
