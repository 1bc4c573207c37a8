"""Where one object is put, compared and removed. Everything but `prepare` and `read` is called under its shard's lock.

Readers take no lock: an object becomes visible by one link or rename of a finished file, so they see the old one or the
new one, and a process killed at any point leaves the same choice.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress

import msgspec

from millrace.store.clock import Clock
from millrace.store.object.directory.files import (
    TRAILER_SIZE,
    Torn,
    read_all,
    revision_of,
    seal,
    tag_of,
    unseal,
    write_all,
)
from millrace.store.object.directory.home import Home, make_folders, sync_folder
from millrace.store.object.driver import UNCHANGED, Blob, Done, Expect, Read, Refused, Version, Want, Write
from millrace.store.object.names import path_of

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MARK = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
MARKER = "1-marker"  # the tag of every empty file: nobody swaps one
_TRIES = 50  # of a folder that others remove because it is empty, while we fill it


class Drop(msgspec.Struct, frozen=True):
    """Remove an object, if it is there; with a tag, only that very one, and for good: its versions go with it."""

    key: str
    tag: str | None = None


class Inspect(msgspec.Struct, frozen=True):
    """A reader found the file of this key broken: look again under the lock, and put it aside if it is."""

    key: str


class Prepared(msgspec.Struct):
    """A finished file that waits to be named."""

    write: Write
    temporary: str
    tag: str
    durable: bool
    landed: bool = False
    folders: tuple[str, ...] = ()  # that must be flushed before the write is durable


class Shelf:
    def __init__(
        self,
        home: Home,
        *,
        flushes: bool,
        kept: tuple[str, ...] = (),
        markers: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        self.home = home
        self.flushes = flushes  # False: no write waits for the disk
        self.markers = markers  # prefixes where an empty object is an empty file
        self._kept = kept  # prefixes whose versions are kept
        self._clock = clock  # None: what the file system says
        self._serial = itertools.count()
        self._writer = secrets.token_hex(4)  # a process id alone comes round again
        self._flushed: dict[str, int] = {}  # folders whose own names are durable, by path → inode

    # reading

    def read(self, want: Want) -> Read:
        """Raises Torn for a file that is not whole."""
        return self._read_file(self._path(want.key), want.key, want.unless)

    def read_version(self, key: str, version: str) -> Blob | None:
        number = revision_of(version + "-")
        names = (f"{self._attic(key)}/{number:012d}", self._path(key))
        for path in names:
            found = self._read_file(path, key, None)
            if isinstance(found, Blob) and revision_of(found.tag) == number:
                return found
        return None

    def _read_file(self, path: str, key: str, unless: str | None) -> Read:
        try:
            file = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            if unless is not None and tag_of(file) == unless:
                return UNCHANGED
            status = os.fstat(file)
            modified = status.st_mtime_ns // 1_000_000
            if not status.st_size and key.startswith(self.markers):
                return Blob(key, b"", MARKER, modified)
            body, tag = unseal(key, read_all(file))
        finally:
            os.close(file)
        return Blob(key, body, tag, modified)

    def versions(self, key: str) -> list[Version]:
        """Newest first, the present one included."""
        paths: dict[int, str] = {}
        with suppress(FileNotFoundError):
            paths.update(
                (int(entry.name), entry.path) for entry in os.scandir(self._attic(key)) if entry.name.isdigit()
            )
        tag = self._tag(self._path(key))
        if tag is not None:
            paths[revision_of(tag)] = self._path(key)
        found = [self._version(number, paths[number]) for number in sorted(paths, reverse=True)]
        return [version for version in found if version is not None]

    # markers: empty objects under names that are used once. They are made and removed without a lock.

    def is_marker(self, change: Write | Drop | Inspect) -> bool:
        """Those that need not be durable: what is lost of them with the power is put back from what they tell of."""
        if not change.key.startswith(self.markers):
            return False
        if isinstance(change, Write):
            return change.expect is Expect.ANYTHING and not change.body and not change.durable
        return isinstance(change, Drop)

    def mark(self, key: str) -> Done:
        path = self._path(key)

        def make() -> None:
            file = os.open(path, _MARK, 0o600)
            if self._clock is not None:
                now = self._clock() * 1_000_000
                os.utime(file, ns=(now, now))
            os.close(file)

        self._in_folder(path, make)
        return Done(MARKER)

    def unmark(self, key: str) -> None:
        path = self._path(key)
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
            self._prune(os.path.dirname(path))

    # writing

    def prepare(self, write: Write) -> Prepared | Refused:
        """Write the file, and flush it if it is to be durable. A swap that is too late already is not worth it."""
        path = self._path(write.key)
        revision = self._next_revision(write, path)
        if revision is None:
            return Refused()
        durable = write.durable and self.flushes
        content, tag = seal(write.key, write.body, revision)
        temporary = self._temporary()
        file = os.open(temporary, _NEW, 0o600)
        try:
            write_all(file, content)
            if self._clock is not None:
                now = self._clock() * 1_000_000
                os.utime(file, ns=(now, now))
            if durable:
                os.fsync(file)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(file)
        return Prepared(write, temporary, tag, durable)

    def _next_revision(self, write: Write, path: str) -> int | None:
        """None: the write is refused anyway."""
        if isinstance(write.expect, str):
            there = self._tag(path) if write.durable else None  # for others the look costs more than it saves
            return revision_of(write.expect) + 1 if there in (None, write.expect) else None
        there = self._tag(path)
        if there is not None:
            return None if write.expect is Expect.ABSENT else revision_of(there) + 1
        return 1 + self._last_kept(write.key)

    def place(self, prepared: Prepared) -> Done | Refused:
        """The moment a write happens."""
        write, path = prepared.write, self._path(prepared.write.key)
        if write.expect is Expect.ABSENT:
            if self._settled_tag(write.key, path) is not None:
                return Refused()
            try:
                self._in_folder(path, lambda: os.link(prepared.temporary, path))
            except FileExistsError:
                return Refused()
            os.unlink(prepared.temporary)
            self._landed(prepared, path)
            return Done(prepared.tag)
        there = self._settled_tag(write.key, path)
        if isinstance(write.expect, str) and there != write.expect:
            return Refused()
        kept = self._keep(write.key, path, there)
        self._in_folder(path, lambda: os.rename(prepared.temporary, path))
        self._landed(prepared, path, *kept)
        return Done(prepared.tag)

    def _landed(self, prepared: Prepared, path: str, *others: str) -> None:
        prepared.landed = True
        prepared.folders = (os.path.dirname(path), *others)

    def _in_folder(self, path: str, act: Callable[[], None]) -> None:
        """Make the folder if it is not there; another process may remove it again for being empty."""
        for attempt in range(_TRIES):
            try:
                act()
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
                make_folders(os.path.dirname(path))
            else:
                return

    def discard(self, prepared: Prepared) -> None:
        with suppress(FileNotFoundError):
            os.unlink(prepared.temporary)

    def drop(self, key: str, only: str | None = None) -> Done | Refused:
        path = self._path(key)
        tag = self._settled_tag(key, path)
        if tag is None or only not in (None, tag):
            return Refused()
        if only is None:
            self._keep(key, path, tag)
        os.unlink(path)
        self._prune(os.path.dirname(path))
        if only is not None:
            shutil.rmtree(self._attic(key), ignore_errors=True)
        return Done(None)

    def inspect(self, key: str) -> None:
        path = self._path(key)
        try:
            self._read_file(path, key, None)
        except Torn:
            self._put_aside(key, path)
        except OSError:
            self.home.put_aside(path, "cannot be read as a file")

    def flush(self, folder: str) -> None:
        """Make the names in a folder durable, and the folder's own name, and so on up."""
        known = self._flushed.get(folder)
        try:
            inode = sync_folder(folder)
        except FileNotFoundError:
            return  # what was written has been deleted again, and the empty folder with it
        while inode != known and folder != self.home.root:
            self._flushed[folder] = inode
            folder = os.path.dirname(folder)
            known = self._flushed.get(folder)
            inode = sync_folder(folder)

    # versions

    def _keep(self, key: str, path: str, tag: str | None) -> tuple[str, ...]:
        """Give the file that is about to be replaced a second name; answers the folder of it."""
        if tag is None or not key.startswith(self._kept):
            return ()
        attic = self._attic(key)
        name = f"{attic}/{revision_of(tag):012d}"
        with suppress(FileExistsError):  # kept by a process that died before it replaced the object
            self._in_folder(name, lambda: os.link(path, name))
        return (attic,)

    def _last_kept(self, key: str) -> int:
        """An object that is made anew goes on counting, so that its versions keep their numbers."""
        if not key.startswith(self._kept):
            return 0
        try:
            return max(map(int, os.listdir(self._attic(key))), default=0)
        except FileNotFoundError:
            return 0

    def _put_aside(self, key: str, path: str) -> str | None:
        """Move a file that is not whole out of the way, and put the newest sound version of it back, if one was kept:
        a write that did not wait for the disk may be cut short by a power loss, what it replaced was durable."""
        self.home.put_aside(path, "is torn or was not written by this store")
        if not key.startswith(self._kept):
            return None
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._attic(key)), reverse=True):
                kept = f"{self._attic(key)}/{name}"
                try:
                    blob = self._read_file(kept, key, None)
                except Torn:
                    continue
                if isinstance(blob, Blob):
                    self.home.put_back(kept, path)
                    return blob.tag
        return None

    def _version(self, number: int, path: str) -> Version | None:
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return Version(str(number), status.st_mtime_ns // 1_000_000, status.st_size - TRAILER_SIZE)

    # paths

    def _path(self, key: str) -> str:
        return f"{self.home.root}/{path_of(key)}"

    def _attic(self, key: str) -> str:
        return f"{self.home.own}/versions/{path_of(key)}"

    def _temporary(self) -> str:
        return f"{self.home.own}/tmp/{os.getpid()}-{self._writer}-{next(self._serial)}"

    def _tag(self, path: str) -> str | None:
        """The tag of what is there; None for nothing, and for a file that is not whole."""
        try:
            return self._tag_of_whole(path)
        except Torn:
            return None

    def _settled_tag(self, key: str, path: str) -> str | None:
        """As `_tag`, and what is no object of ours is moved out of the way of the write that comes. Under the lock."""
        try:
            return self._tag_of_whole(path)
        except Torn:
            return self._put_aside(key, path)

    def _tag_of_whole(self, path: str) -> str | None:
        try:
            file = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a symbolic link
                raise Torn from None
            raise
        try:
            return tag_of(file)
        finally:
            os.close(file)

    def _prune(self, folder: str) -> None:
        """Remove folders that became empty, so that a listing never walks through the remains of the past."""
        while folder != self.home.root:
            try:
                os.rmdir(folder)
            except OSError:
                return
            self._flushed.pop(folder, None)
            folder = os.path.dirname(folder)
