"""The archive: files of compacted jobs, and the manifest that lists the valid files.

    write file → manifest lists it as open → its jobs are removed → manifest closes it

A file that the manifest does not list is ignored. While a file is open, a job may be both in the file and in the store;
of the two copies, the one in the store counts. When the file is closed, the rows whose jobs have changed meanwhile are
recorded as invalid. The jobs of all other rows exist only in the file. So a crash between two of these writes loses
nothing, and the next compaction continues from the manifest.

Only one process at a time may change the manifest: its turn is called an archive run. A new archive run takes over from
a dead one, and the next change of the dead run is refused. So a file that another run has written but not listed is
never listed later, and can be deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from millrace.domain.errors import QueueError, StoreError
from millrace.store.archived import ArchiveFile, ArchiveRun, ArchiveValue, Leaving
from millrace.store.object.engine.engine import Engine
from millrace.store.object.engine.objects import SeenObject, Swap
from millrace.store.object.engine.values import encode, value_of

MANIFEST = "archive/manifest.json"
FILES = "archive/files/"
TRIES = 20
SILENCE = 120_000  # milliseconds after which a silent run counts as dead
GRACE = 15 * 60_000  # milliseconds that a replaced file stays for current readers


class ArchiveBusy(QueueError):
    """Raised when another archive run is compacting, merging or expiring files."""


class Archive:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._blobs = engine.blobs

    async def value(self) -> ArchiveValue:
        [seen] = await self._engine.objects.read([MANIFEST])
        return self._read(seen)

    def _read(self, seen: SeenObject) -> ArchiveValue:
        value = value_of(seen, ArchiveValue) or ArchiveValue()
        if value.version > ArchiveValue().version:
            raise StoreError(
                f"{self._blobs.url}: the archive was written by a later version of Millrace (its manifest has version "
                f"{value.version}); use that one"
            )
        return value

    # runs

    async def begin(self) -> str:
        """Start an archive run and return its id. Raise ArchiveBusy while another archive run is alive."""
        now = await self._engine.clock()
        run = f"{now:013d}-{os.urandom(3).hex()}"

        def take(value: ArchiveValue) -> ArchiveValue:
            if value.run is not None and value.run.beat > now - SILENCE:
                raise ArchiveBusy(
                    f"{self._blobs.url}: another run works on the archive; its last heartbeat was "
                    f"{max(0, now - value.run.beat) // 1000} s ago. Wait for it to end; a killed run is taken "
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
        """Write a file under a new name and return its key. The file is ignored until the manifest lists it."""
        key = f"{FILES}{part}.{os.urandom(4).hex()}.parquet"
        await self._blobs.put(key, body)
        return key

    async def get(self, key: str) -> bytes | None:
        blob = await self._blobs.get(key)
        return None if blob is None else blob.body

    async def add(self, run: str, files: Sequence[ArchiveFile]) -> None:
        """Add these files to the manifest. While a file is open, the store's copies of its jobs count."""
        await self._change_in(run, lambda value: msgspec.structs.replace(value, files=_with(value.files, files)))

    async def close(self, run: str, void: Mapping[str, Sequence[int]]) -> None:
        """Close the files whose keys are in `void`, which maps each key to the seqs of invalid rows.

        From now on, the jobs of the valid rows exist only in the file.
        """

        def closed(file: ArchiveFile) -> ArchiveFile:
            if file.key not in void:
                return file
            return msgspec.structs.replace(file, open=False, void=tuple(sorted({*file.void, *void[file.key]})))

        await self._change_in(run, lambda value: msgspec.structs.replace(value, files=tuple(map(closed, value.files))))

    async def replace(self, run: str, old: Sequence[str], new: Sequence[ArchiveFile]) -> None:
        """Replace the files `old` by `new` in the manifest. If `new` is empty, remove them.

        The old files are deleted later, by `tidy`, so that current readers can finish.
        """
        now = await self._engine.clock()

        def replaced(value: ArchiveValue) -> ArchiveValue:
            kept = tuple(file for file in value.files if file.key not in old)
            gone = tuple(Leaving(file.key, now) for file in value.files if file.key in old)
            return msgspec.structs.replace(value, files=_with(kept, new), leaving=(*value.leaving, *gone))

        await self._change_in(run, replaced)

    async def tidy(self, run: str, grace: int = GRACE) -> int:
        """Delete files that were replaced at least `grace` milliseconds ago, and unlisted files of other archive runs.

        Return the number of deleted files.
        """
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
        written = await self._blobs.all_keys(FILES)
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
                    "too long. What it had written into the manifest is kept; the other one continues with it"
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
            committed = await self._engine.objects.commit([Swap(seen, encode(made))])
            if not committed.lost:
                return
        raise StoreError(f"{self._blobs.url}: {MANIFEST} is changed by too many processes at once; try again")


def _with(files: Sequence[ArchiveFile], more: Sequence[ArchiveFile]) -> tuple[ArchiveFile, ...]:
    """Return `files` and `more` without duplicates. After a lost reply, a change is applied a second time."""
    known = {file.key for file in files}
    return (*files, *(file for file in more if file.key not in known))
