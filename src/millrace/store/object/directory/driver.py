"""The directory driver: exclusive links, renames and locks on a local disk."""

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
from millrace.store.object.directory.bell import Bell
from millrace.store.object.directory.committer import FEW, Change, Committer, Outcome
from millrace.store.object.directory.files import Torn
from millrace.store.object.directory.home import Home
from millrace.store.object.directory.shelf import Drop, Inspect, Shelf
from millrace.store.object.directory.walk import page
from millrace.store.object.driver import Answer, Blob, Done, Listing, Read, Trouble, VersionPage, Want, Write

T = TypeVar("T")
READERS = 2
FLUSHERS = 16  # a disk flushes many files in the time of one


class DirectoryBlobs:
    """Objects as files below `root`.

    With `durability="full"` a write is on the disk when it is answered, unless the write itself says that it need not
    be (`durable=False`); with "relaxed" none waits for the disk. `keep_versions` names prefixes whose objects keep
    what they were before, `markers` those where empty objects are many and are kept as empty files. `reports` says what
    was found in the directory and put aside.
    """

    refusal_is_final = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durability: Literal["full", "relaxed"] = "full",
        keep_versions: Sequence[str] = (),
        markers: Sequence[str] = (),
        allow_network: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.home = Home(root)
        self.keeps_versions = bool(keep_versions)
        self.requests: Counter[str] = Counter()
        self._level = durability
        self._allow_network = allow_network
        self._clock = clock
        self._shelf = Shelf(
            self.home, flushes=durability == "full", kept=tuple(keep_versions), markers=tuple(markers), clock=clock
        )
        self._crew: _Crew | None = None

    @property
    def url(self) -> str:
        return f"file://{quote(self.home.root)}" + ("?durability=relaxed" if self._level == "relaxed" else "")

    @property
    def durability(self) -> str:
        if self._level == "full":
            return "process kill, OS crash and power loss"
        return "process kill; the last moments may go with the OS"

    @property
    def reports(self) -> list[str]:
        return list(self.home.reports)

    async def connect(self) -> None:
        await asyncio.to_thread(self.home.open, allow_network=self._allow_network)
        self._crew = _Crew(self._shelf)

    async def close(self) -> None:
        """What was begun is finished first."""
        crew, self._crew = self._crew, None
        if crew is not None:
            await asyncio.to_thread(crew.close)

    async def read(self, wants: Sequence[Want]) -> Sequence[Read]:
        self.requests["get"] += len(wants)
        found, torn = await self._read_some(wants)
        if torn:
            await self._commit([Inspect(key) for key in torn], durable=False)
            found, torn = await self._read_some(wants)
            broken = Trouble("the file could not be read")
            return [broken if want.key in torn else read for want, read in zip(wants, found, strict=True)]
        return found

    async def _read_some(self, wants: Sequence[Want]) -> tuple[list[Read], list[str]]:
        """A few are read where they were asked for: it takes less than the way to another thread and back."""
        self._working()
        if len(wants) <= FEW:
            await asyncio.sleep(0)  # whoever asks again and again must not keep the loop to itself
            return self._read_each(wants)
        return await self._in_reader(functools.partial(self._read_each, wants))

    def _read_each(self, wants: Sequence[Want]) -> tuple[list[Read], list[str]]:
        found: list[Read] = []
        torn: list[str] = []
        for want in wants:
            try:
                found.append(self._shelf.read(want))
            except (Torn, OSError):
                torn.append(want.key)
                found.append(None)
        return found, torn

    async def write(self, writes: Sequence[Write]) -> Sequence[Answer]:
        self.requests["put"] += len(writes)
        durable = any(map(self._shelf.must_flush, writes))
        outcomes = await self._commit(writes, durable)
        return [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, BaseException)]

    async def delete(self, keys: Sequence[str]) -> None:
        self.requests["delete"] += len(keys)
        await self._commit([Drop(key) for key in keys], durable=False)

    async def remove(self, key: str, tag: str) -> bool:
        self.requests["delete"] += 1
        [outcome] = await self._commit([Drop(key, tag)], durable=False)
        return isinstance(outcome, Done)

    async def list(self, prefix: str, after: str | None, limit: int) -> Listing:
        self.requests["list"] += 1
        listing, short = await self._in_reader(
            lambda: page(self.home, prefix, after, limit, self._shelf.markers, self._shelf.kept)
        )
        if short:
            await self._commit([Inspect(key) for key in short], durable=False)
        return listing

    async def versions(self, key: str, after: str | None, limit: int) -> VersionPage:
        self.requests["versions"] += 1
        every = await self._in_reader(lambda: self._shelf.versions(key))
        some = [version for version in every if after is None or int(version.id) < int(after)]
        return VersionPage(tuple(some[:limit]), some[limit - 1].id if len(some) > limit else None)

    async def read_version(self, key: str, version: str) -> Blob | None:
        self.requests["get"] += 1
        return await self._in_reader(lambda: self._shelf.read_version(key, version))

    async def now(self) -> int:
        return (self._clock or system_clock)()

    def mark(self, prefix: str) -> int:
        return self._working().bell.mark(prefix)

    async def wait_for_change(self, prefix: str, timeout: float, since: int | None = None) -> bool:
        return await self._working().bell.wait(prefix, timeout, since)

    async def _in_reader(self, act: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._working().readers, act)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.home.root}: the file system failed: {error.strerror or error}. What was asked may be partly done; "
            "asking again is safe once the cause is gone."
        )

    async def _commit(self, changes: Sequence[Change], durable: bool) -> Sequence[Outcome]:
        crew = self._working()
        outcomes = await (crew.patient.commit(changes) if durable else crew.quick.commit_here(changes))
        for outcome in outcomes:
            if isinstance(outcome, OSError):
                raise self._failed(outcome) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def _working(self) -> _Crew:
        if self._crew is None:
            raise StoreError(f"{self.home.root} is not connected; call connect() first")
        if self._crew.process != os.getpid():  # threads do not survive a fork
            self._crew.abandon()
            self._crew = _Crew(self._shelf)
        return self._crew


class _Crew:
    """The threads of one process. What need not reach the disk does not queue behind what must."""

    def __init__(self, shelf: Shelf) -> None:
        self.process = os.getpid()
        self._shelf = shelf
        self.bell = Bell(f"{shelf.home.own}/bell")
        self.readers = ThreadPoolExecutor(READERS, "millrace-read")
        self._flushers = ThreadPoolExecutor(FLUSHERS, "millrace-flush")
        self.patient = Committer(shelf, self._flushers, self.bell.ring, "millrace-commit")
        self.quick = Committer(shelf, self._flushers, self.bell.ring, "millrace-commit-quick")

    def abandon(self) -> None:
        """In a forked child: give up the parent's lock files, which would stay locked here if the parent died."""
        self.patient.abandon()
        self.quick.abandon()

    def close(self) -> None:
        self.patient.close()
        self.quick.close()
        self.bell.close()
        self._flushers.shutdown()
        self.readers.shutdown()
        self._shelf.let_go()
