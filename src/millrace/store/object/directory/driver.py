"""The directory driver: objects are files on a local disk, changed by appends, links and renames under locks."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar
from urllib.parse import quote

from millrace.domain.errors import StoreError
from millrace.store.clock import Clock, system_clock
from millrace.store.object.directory.change_signal import ChangeSignal
from millrace.store.object.directory.committer import FEW, FLUSHERS, Change, Committer, Outcome
from millrace.store.object.directory.file_format import Torn
from millrace.store.object.directory.folder import StoreFolder
from millrace.store.object.directory.listing import page
from millrace.store.object.directory.object_files import Drop, Inspect, ObjectFiles
from millrace.store.object.driver import Answer, Blob, Listing, Read, Unavailable, VersionPage, Want, Write, WriteReply

T = TypeVar("T")
READERS = 2


class DirectoryBlobs:
    """Objects as files below `root`.

    With `durability="full"`, a confirmed write is on disk, unless the write has `durable=False`. With "relaxed", no
    write waits for the disk. `keep_versions` lists the prefixes whose objects keep earlier versions: a new
    revision is appended to the object's file. `append` lists prefixes whose revisions are appended too, because they
    change often, but whose full files are replaced. `markers` lists the prefixes with many empty objects, which are
    kept as empty files. `reports` lists the foreign or damaged files that were found.
    """

    refusal_is_final = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durability: Literal["full", "relaxed"] = "full",
        keep_versions: Sequence[str] = (),
        append: Sequence[str] = (),
        markers: Sequence[str] = (),
        allow_network: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.home = StoreFolder(root)
        self.keeps_versions = bool(keep_versions)
        self.requests: Counter[str] = Counter()
        self._level = durability
        self._allow_network = allow_network
        self._clock = clock
        self._object_files = ObjectFiles(
            self.home,
            flushes=durability == "full",
            kept=tuple(keep_versions),
            appended=tuple(append),
            markers=tuple(markers),
            clock=clock,
        )
        self._threads: _Threads | None = None

    @property
    def url(self) -> str:
        return f"file://{quote(self.home.root)}" + ("?durability=relaxed" if self._level == "relaxed" else "")

    @property
    def durability(self) -> str:
        if self._level == "full":
            return "process kill, OS crash and power loss"
        return "process kill; an OS crash may lose the last writes"

    @property
    def reports(self) -> list[str]:
        return list(self.home.reports)

    async def connect(self) -> None:
        await asyncio.to_thread(self.home.open, allow_network=self._allow_network)
        self._threads = _Threads(self._object_files)

    async def connect_for_reading(self) -> None:
        await asyncio.to_thread(self.home.open_for_reading, allow_network=self._allow_network)
        self._threads = _Threads(self._object_files)

    async def close(self) -> None:
        """Finish pending writes, then close the driver."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.close)

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        self.requests["get"] += len(wants)
        found, torn = await self._read_some(wants)
        if torn:
            await self._inspect(torn)
            found, torn = await self._read_some(wants)
            broken = Unavailable("the file could not be read")
            return [broken if want.key in torn else read for want, read in zip(wants, found, strict=True)]
        return found

    async def _read_some(self, wants: Sequence[Want]) -> tuple[list[Read], list[str]]:
        """Read objects, and return them with the keys of files that could not be read.

        A few objects are read in the calling thread, because switching threads takes longer. Many are read in a reader
        thread.
        """
        self._working()
        if len(wants) <= FEW:
            await asyncio.sleep(0)  # a caller in a loop must not block the event loop
            return self._read_each(wants)
        return await self._in_reader(functools.partial(self._read_each, wants))

    def _read_each(self, wants: Sequence[Want]) -> tuple[list[Read], list[str]]:
        found: list[Read] = []
        torn: list[str] = []
        for want in wants:
            try:
                found.append(self._object_files.read(want))
            except (Torn, OSError):
                torn.append(want.key)
                found.append(None)
        return found, torn

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        self.requests["put"] += len(writes)
        durable = any(map(self._object_files.must_flush, writes))
        outcomes = await self._commit(writes, durable)
        return [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, BaseException)]

    async def delete(self, keys: Sequence[str]) -> None:
        self.requests["delete"] += len(keys)
        await self._commit([Drop(key) for key in keys], durable=False)

    async def remove(self, key: str, tag: str) -> bool:
        self.requests["delete"] += 1
        [outcome] = await self._commit([Drop(key, tag)], durable=False)
        return isinstance(outcome, WriteReply)

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        self.requests["list"] += 1
        listing, short = await self._in_reader(
            lambda: page(self.home, prefix, after, limit, self._object_files.markers, self._object_files.appended)
        )
        if short:
            await self._inspect(short)
        return listing

    async def _inspect(self, keys: Sequence[str]) -> None:
        """Check files that seem damaged under their lock, and move damaged ones to the quarantine.

        With read access, do nothing: the next read shows whether a file was only being written.
        """
        if not self.home.reads_only:
            await self._commit([Inspect(key) for key in keys], durable=False)

    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        self.requests["versions"] += 1
        every = await self._in_reader(lambda: self._object_files.versions(key))
        some = [version for version in every if after is None or int(version.id) < int(after)]
        return VersionPage(tuple(some[:limit]), some[limit - 1].id if len(some) > limit else None)

    async def read_version(self, key: str, version: str) -> Blob | None:
        self.requests["get"] += 1
        return await self._in_reader(lambda: self._object_files.read_version(key, version))

    async def now(self) -> int:
        return (self._clock or system_clock)()

    def mark(self, prefix: str) -> int:
        return self._working().changes.mark(prefix)

    def signal(self, prefix: str) -> None:
        self._working().changes.signal([prefix])

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        return await self._working().changes.wait(prefix, timeout, since)

    async def _in_reader(self, act: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._working().readers, act)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.home.root}: the file system failed: {error.strerror or error}. The operation may be partly done; "
            "it is safe to retry once the cause is fixed."
        )

    async def _commit(self, changes: Sequence[Change], durable: bool) -> Sequence[Outcome]:
        threads = self._working()
        outcomes = await (threads.durable.commit(changes) if durable else threads.quick.commit_here(changes))
        for outcome in outcomes:
            if isinstance(outcome, OSError):
                raise self._failed(outcome) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def _working(self) -> _Threads:
        if self._threads is None:
            raise StoreError(f"{self.home.root} is not connected; call connect() first")
        if self._threads.process != os.getpid():  # threads do not survive a fork
            self._threads.abandon()
            self._threads = _Threads(self._object_files)
        return self._threads


class _Threads:
    """The threads of one process. Writes that need not be flushed have their own thread, so that they do not wait for
    durable ones.
    """

    def __init__(self, object_files: ObjectFiles) -> None:
        self.process = os.getpid()
        self._object_files = object_files
        self.changes = ChangeSignal(f"{object_files.home.own}/bell")
        self.readers = ThreadPoolExecutor(READERS, "millrace-read")
        self._flushers = ThreadPoolExecutor(FLUSHERS, "millrace-flush")
        self.durable = Committer(object_files, self._flushers, self.changes.signal, "millrace-commit")
        self.quick = Committer(object_files, self._flushers, self.changes.signal, "millrace-commit-quick")

    def abandon(self) -> None:
        """In a forked child, close the lock files of the parent. Otherwise the child would keep them locked if the
        parent dies.
        """
        self.durable.abandon()
        self.quick.abandon()

    def close(self) -> None:
        self.durable.close()
        self.quick.close()
        self.changes.close()
        self._flushers.shutdown()
        self.readers.shutdown()
        self._object_files.remove_empty_file()
