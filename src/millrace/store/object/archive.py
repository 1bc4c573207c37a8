"""The archive: files of compacted jobs, and the manifest that says which of them count.

    file → manifest names it, open → its jobs are removed → manifest closes it

A file that the manifest does not name does not exist. While it is open, a job may be in it and in the store, and the
store's is the one that counts. Closing notes the rows whose jobs had lived on: from then on all others are in the file
alone. So a crash between any two steps loses nothing, and whoever comes next carries on from the manifest.

One run at a time may change the manifest. Whoever begins one takes it from those before, and these are refused at their
next change: so files of other runs, which the manifest does not name, never will be named, and can be deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from millrace.domain.errors import QueueError, StoreError
from millrace.store.archived import ArchiveFile, ArchiveRun, ArchiveValue, Leaving
from millrace.store.object.engine import Engine
from millrace.store.object.objects import Change, Seen
from millrace.store.object.values import decode, encode
from millrace.store.object.view import all_keys

MANIFEST = "archive/manifest.json"
FILES = "archive/files/"
TRIES = 20
SILENCE = 120_000  # of a run, before it is taken for dead; in milliseconds
GRACE = 15 * 60_000  # how long a file that was replaced stays, for those who read it


class ArchiveBusy(QueueError):
    """Somebody else is compacting, merging or expiring."""


class Archive:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._blobs = engine.blobs

    async def value(self) -> ArchiveValue:
        [seen] = await self._engine.objects.read([MANIFEST])
        return self._read(seen)

    def _read(self, seen: Seen) -> ArchiveValue:
        value = ArchiveValue() if seen.value is None else decode(seen.value, ArchiveValue)
        if value.version > ArchiveValue().version:
            raise StoreError(
                f"{self._blobs.url}: the archive was written by a later version of Millrace (its manifest has version "
                f"{value.version}); use that one"
            )
        return value

    # runs

    async def begin(self) -> str:
        """A run of our own; ArchiveBusy while that of somebody else is alive."""
        now = await self._engine.clock()
        run = f"{now:013d}-{os.urandom(3).hex()}"

        def take(value: ArchiveValue) -> ArchiveValue:
            if value.run is not None and value.run.beat > now - SILENCE:
                raise ArchiveBusy(
                    f"{self._blobs.url}: another run works on the archive; it was heard of "
                    f"{max(0, now - value.run.beat) // 1000} s ago. Wait for its end; one that was killed is taken "
                    f"over after {SILENCE // 1000} s of silence"
                )
            return msgspec.structs.replace(value, run=ArchiveRun(run, now))

        await self._change(take)
        return run

    async def beat(self, run: str) -> None:
        now = await self._engine.clock()
        await self._change_in(run, lambda value: msgspec.structs.replace(value, run=ArchiveRun(run, now)))

    async def end(self, run: str) -> None:
        await self._change_in(run, lambda value: msgspec.structs.replace(value, run=None))

    # files

    async def put(self, part: str, body: bytes) -> str:
        """Write a file, under a name that is used once. It counts when the manifest names it."""
        key = f"{FILES}{part}.{os.urandom(4).hex()}.parquet"
        await self._blobs.put(key, body)
        return key

    async def get(self, key: str) -> bytes | None:
        blob = await self._blobs.get(key)
        return None if blob is None else blob.body

    async def add(self, run: str, files: Sequence[ArchiveFile]) -> None:
        """From now on these count, beside the jobs that they hold."""
        await self._change_in(run, lambda value: msgspec.structs.replace(value, files=_with(value.files, files)))

    async def close(self, run: str, void: Mapping[str, Sequence[int]]) -> None:
        """By key, the rows that do not count. All others are in their file alone by now."""

        def closed(file: ArchiveFile) -> ArchiveFile:
            if file.key not in void:
                return file
            return msgspec.structs.replace(file, open=False, void=tuple(sorted({*file.void, *void[file.key]})))

        await self._change_in(run, lambda value: msgspec.structs.replace(value, files=tuple(map(closed, value.files))))

    async def replace(self, run: str, old: Sequence[str], new: Sequence[ArchiveFile]) -> None:
        """These instead of those, which stay for a while for whoever is reading them. None: they are given up."""
        now = await self._engine.clock()

        def replaced(value: ArchiveValue) -> ArchiveValue:
            kept = tuple(file for file in value.files if file.key not in old)
            gone = tuple(Leaving(file.key, now) for file in value.files if file.key in old)
            return msgspec.structs.replace(value, files=_with(kept, new), leaving=(*value.leaving, *gone))

        await self._change_in(run, replaced)

    async def tidy(self, run: str, grace: int = GRACE) -> int:
        """Delete what has left for long, and what runs that are over have written for nothing. How many files."""
        now = await self._engine.clock()
        value = await self.value()
        over = [one.key for one in value.leaving if one.since <= now - grace]
        if over:  # a crash afterwards leaves files that the manifest does not name
            await self._change_in(
                run,
                lambda value: msgspec.structs.replace(
                    value, leaving=tuple(one for one in value.leaving if one.key not in over)
                ),
            )
            value = await self.value()
        named = {file.key for file in value.files} | {one.key for one in value.leaving}
        written = await all_keys(self._engine.objects, FILES)
        stray = [key for key in written if key not in named and (key in over or not key.startswith(FILES + run))]
        await self._hold(run)
        await self._blobs.delete(stray)
        return len(stray)

    # changing the manifest

    async def _hold(self, run: str) -> None:
        await self._change_in(run, lambda value: value)

    async def _change_in(self, run: str, make: Callable[[ArchiveValue], ArchiveValue]) -> None:
        def guarded(value: ArchiveValue) -> ArchiveValue:
            if value.run is None or value.run.id != run:
                raise ArchiveBusy(
                    f"{self._blobs.url}: another run has taken over the archive, because this one had been silent for "
                    "too long. What it had written into the manifest is kept; the other one goes on with it"
                )
            return make(value)

        await self._change(guarded)

    async def _change(self, make: Callable[[ArchiveValue], ArchiveValue]) -> None:
        for _ in range(TRIES):
            [seen] = await self._engine.objects.read([MANIFEST])
            value = self._read(seen)
            made = make(value)
            if made == value:
                return
            committed = await self._engine.objects.commit([Change(seen, encode(made))])
            if not committed.lost:
                return
        raise StoreError(f"{self._blobs.url}: {MANIFEST} is changed by too many at once; ask again")


def _with(files: Sequence[ArchiveFile], more: Sequence[ArchiveFile]) -> tuple[ArchiveFile, ...]:
    """Each once. Where the answer to a change was lost, and our own beat came after it, the change is made again."""
    known = {file.key for file in files}
    return (*files, *(file for file in more if file.key not in known))
