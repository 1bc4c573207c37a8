"""Reads, writes and removes the files of objects.

Changes are made under the shard's lock, with two exceptions: `prepare`, which writes a temporary file, and markers,
which are empty objects with unique names.

Readers take no lock. A complete file becomes visible as an object by one link or rename, and an appended revision by
its last byte. So readers see either the old or the new state, even if a writer is killed.

For prefixes that keep versions, a swap appends the new revision to the same file. That is much cheaper than a new file,
especially on disks where creating files is slow, and it keeps the earlier versions.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from millrace.store.clock import Clock, system_clock
from millrace.store.object.directory.file_format import (
    LANDED,
    NO_BOOT,
    TRAILER_SIZE,
    Revision,
    Torn,
    last_revision,
    place_of_word,
    read_all,
    revision_of,
    revisions,
    seal,
    this_boot,
    write_all,
)
from millrace.store.object.directory.folder import StoreFolder, make_folders, sync_folder
from millrace.store.object.driver import UNCHANGED, Blob, Expect, Read, Refused, Version, Want, Write, WriteReply
from millrace.store.object.names import path_of

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
MARKER = "1-marker"  # the tag of every empty file; markers are never swapped
MARKS_TOGETHER = 0.25  # seconds; markers made within this time are links to one empty file, and have its age
LONGEST_FILE = 256 << 10  # bytes; then the next revision starts a new file, which replaces this one by a slow rename
TRUSTED = 5  # seconds; a folder that was removed and created again may have its old inode, but not sooner (EMPTY_FOR)
_TRIES = 50  # attempts to write into a folder that others keep removing because it is empty


class Drop(msgspec.Struct, frozen=True):
    """A change that removes an object, if it exists.

    With a tag, the object is removed only if it has this tag, and all its versions are removed too.
    """

    key: str
    tag: str | None = None


class Inspect(msgspec.Struct, frozen=True):
    """A change that checks a file which a reader found damaged.

    The file is checked again under the lock. If it is damaged, it is moved to the quarantine.
    """

    key: str


class Prepared(msgspec.Struct):
    """A complete temporary file that does not have its final name yet."""

    write: Write
    temporary: str
    tag: str
    durable: bool
    landed: bool = False
    folders: tuple[str, ...] = ()  # folders that must be flushed before the write is durable


class Appended(msgspec.Struct):
    """An appended revision. It becomes visible when it has been flushed and `land` is called."""

    key: str
    file: int
    word: int  # offset of the word that makes it valid
    end: int  # end of the earlier valid revisions
    tag: str


class ObjectFiles:
    def __init__(
        self,
        home: StoreFolder,
        *,
        flushes: bool,
        kept: tuple[str, ...] = (),
        appended: tuple[str, ...] = (),
        markers: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        self.home = home
        self.flushes = flushes  # False: no write waits for the disk
        self.markers = markers  # prefixes where an empty object is an empty file
        self.kept = kept  # prefixes whose versions are kept
        self.appended = (*kept, *appended)  # prefixes whose revisions are appended to the same file
        self._clock = clock  # None: the file system's clock
        self._serial = itertools.count()
        self._writer = secrets.token_hex(4)  # a process id alone may be reused
        self._flushed: dict[str, tuple[int, float]] = {}  # folders with durable names: path → inode and time
        # The file that markers link to, with the start and end of its use.
        self._empty: tuple[str, float, float] | None = None

    # reading

    def read(self, want: Want) -> Read:
        """Read an object. Raise Torn if its file is incomplete."""
        return self._read_file(self._path(want.key), want.key, want.unless)

    def read_version(self, key: str, version: str) -> Blob | None:
        number = revision_of(version + "-")
        for path in (self._path(key), *self._kept_files(key, at_least=number)):
            for revision in self._revisions(path, key):
                if revision_of(revision.tag) == number:
                    return Blob(key, revision.body, revision.tag, revision.at)
        return None

    def _read_file(self, path: str, key: str, unless: str | None) -> Read:
        try:
            file = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            status = os.fstat(file)
            if not status.st_size and key.startswith(self.markers):
                return UNCHANGED if unless == MARKER else Blob(key, b"", MARKER, status.st_mtime_ns // 1_000_000)
            found = last_revision(key, file)
            if unless == found.tag:
                return UNCHANGED
            status = os.fstat(file)
        finally:
            os.close(file)
        if len(found.body) + TRAILER_SIZE != status.st_size and not key.startswith(self.appended):
            raise Torn
        return Blob(key, found.body, found.tag, status.st_mtime_ns // 1_000_000)

    def _revisions(self, path: str, key: str) -> list[Revision]:
        try:
            file = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return list(revisions(key, read_all(file)))
        finally:
            os.close(file)

    def versions(self, key: str) -> list[Version]:
        """Return the versions of an object, newest first, including the current one."""
        found: dict[int, Version] = {}
        for path in (self._path(key), *self._kept_files(key)):
            for revision in self._revisions(path, key):
                number = revision_of(revision.tag)
                found.setdefault(number, Version(str(number), revision.at, len(revision.body)))
        return [found[number] for number in sorted(found, reverse=True)]

    # markers: empty objects with unique names. They are made and removed without a lock.

    def is_marker(self, change: Write | Drop | Inspect) -> bool:
        """Return whether this change writes or deletes a marker, which is an empty object that need not be durable.

        A marker that is lost in a power failure is restored from its job.
        """
        if not change.key.startswith(self.markers):
            return False
        if isinstance(change, Write):
            return change.expect is Expect.ANYTHING and not change.body and not change.durable
        return isinstance(change, Drop) and change.tag is None

    def mark(self, key: str) -> WriteReply:
        """Create a marker as a link to an empty file. A new file for each marker would cost twenty times as much."""
        path = self._path(key)
        for attempt in range(_TRIES):
            try:
                os.link(self._empty_file(), path)
                break
            except FileExistsError:
                break
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
                if os.path.isdir(os.path.dirname(path)):
                    self._renew_empty_file()  # it was removed
                else:
                    make_folders(os.path.dirname(path))
            except OSError as error:
                if error.errno != errno.EMLINK:  # the file has the maximum number of links
                    raise
                self._renew_empty_file()
        return WriteReply(MARKER)

    def _empty_file(self) -> str:
        empty = self._empty
        if empty is None or not empty[1] <= (self._clock or time.time)() <= empty[2]:
            return self._renew_empty_file()
        return empty[0]

    def _renew_empty_file(self) -> str:
        self.remove_empty_file()
        path = self._temporary()
        file = os.open(path, _NEW, 0o600)
        self._date(file)
        os.close(file)
        # Use the wall clock: the monotonic one stops while the machine sleeps, but the file ages.
        now = time.time() if self._clock is None else self._clock()
        self._empty = (path, now, now + MARKS_TOGETHER if self._clock is None else now)
        return path

    def remove_empty_file(self) -> None:
        """Remove the temporary empty file that this process links its markers to."""
        empty, self._empty = self._empty, None
        if empty is not None:
            with suppress(FileNotFoundError):
                os.unlink(empty[0])

    def unmark(self, key: str) -> None:
        path = self._path(key)
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    # writing

    def is_appended(self, change: Write | Drop | Inspect) -> bool:
        """Return whether this write is appended to the existing file. A body with a line break is not appended, because
        its end would be hard to find.
        """
        return (
            isinstance(change, Write)
            and isinstance(change.expect, str)
            and change.key.startswith(self.appended)
            and len(change.body) < LONGEST_FILE // 2
            and b"\n" not in change.body
        )

    def must_flush(self, write: Write) -> bool:
        """Return whether the write must be flushed to disk.

        The first write of a file that is appended to is always flushed. Later revisions are appended to this file, and
        flushing them would not make the name of the file durable.
        """
        begins = write.key.startswith(self.appended) and not self.is_appended(write)
        return self.flushes and (write.durable or begins)

    def append(self, write: Write) -> WriteReply | Refused | Appended | None:
        """Append a revision. A durable revision becomes visible only with `land`.

        Return Refused if the object is not as the write expects. Return None if the file is full and a new one must be
        started.
        """
        path = self._path(write.key)
        try:
            file = os.open(path, _MORE)
        except (FileNotFoundError, NotADirectoryError):
            return Refused()
        except OSError:  # a symbolic link or a folder: not one of our files
            return Refused() if self._settled_tag(write.key, path) != write.expect else None
        waits = False
        try:
            try:
                there = last_revision(write.key, file)
            except Torn:
                return Refused() if self._put_aside(write.key, path) != write.expect else None
            if there.tag != write.expect:
                return Refused()
            end = there.end
            waits = write.durable and self.flushes
            content, tag = seal(
                write.key, write.body, revision_of(there.tag) + 1, self._now(), this_boot() if waits else LANDED
            )
            if end + len(content) > LONGEST_FILE:
                waits = False
                return None
            self._put_behind(file, end, content)
            if not waits:
                return WriteReply(tag)
            return Appended(write.key, file, end + place_of_word(write.body), end, tag)
        except BaseException:
            waits = False
            raise
        finally:
            if not waits:
                os.close(file)

    def _put_behind(self, file: int, end: int, content: bytes) -> None:
        """Write `content` at the offset `end`. Data after this offset is from an incomplete write and is removed."""
        os.ftruncate(file, end)
        os.lseek(file, end, os.SEEK_SET)
        try:
            write_all(file, content)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, end)
            raise
        self._date(file)

    def land(self, appended: Appended) -> WriteReply:
        """Make an appended revision visible. It must have been flushed."""
        os.pwrite(appended.file, LANDED, appended.word)
        if this_boot() == NO_BOOT:
            os.fsync(appended.file)
        self._date(appended.file)
        return WriteReply(appended.tag)

    def take_back(self, appended: Appended) -> None:
        with suppress(OSError):
            os.ftruncate(appended.file, appended.end)

    def prepare(self, write: Write, *, next_file: bool = False) -> Prepared | Refused:
        """Write the temporary file, and flush it if it must be durable.

        Return Refused, and write nothing, if it is already clear that the write will be refused.
        """
        path = self._path(write.key)
        revision = self._next_revision(write, path)
        if revision is None:
            return Refused()
        durable = self.must_flush(write) or (next_file and self.flushes)
        content, tag = seal(write.key, write.body, revision, self._now())
        temporary = self._temporary()
        file = os.open(temporary, _NEW, 0o600)
        try:
            write_all(file, content)
            self._date(file)
            if durable:
                os.fsync(file)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(file)
        return Prepared(write, temporary, tag, durable)

    def _now(self) -> int:
        return (self._clock or system_clock)()

    def _date(self, file: int) -> None:
        if self._clock is not None:
            now = self._clock() * 1_000_000
            os.utime(file, ns=(now, now))

    def _next_revision(self, write: Write, path: str) -> int | None:
        """Return the number of the next revision; None if it is already clear that the write will be refused."""
        if isinstance(write.expect, str):
            # For writes that need not be durable, the check costs more than it saves.
            there = self._tag(write.key, path) if write.durable else None
            return revision_of(write.expect) + 1 if there in (None, write.expect) else None
        there = self._tag(write.key, path)
        if there is not None:
            return None if write.expect is Expect.ABSENT else revision_of(there) + 1
        return 1 + self._last_kept(write.key)

    def place(self, prepared: Prepared) -> WriteReply | Refused:
        """Link or rename the prepared file to its final name, which makes the write visible.

        Return Refused if the object is not as the write expects.
        """
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
            return WriteReply(prepared.tag)
        there = self._settled_tag(write.key, path)
        if isinstance(write.expect, str) and there != write.expect:
            return Refused()
        kept = self._keep(write.key, path, there)
        self._in_folder(path, lambda: os.rename(prepared.temporary, path))
        self._landed(prepared, path, *kept)
        return WriteReply(prepared.tag)

    def _landed(self, prepared: Prepared, path: str, *others: str) -> None:
        prepared.landed = True
        prepared.folders = (os.path.dirname(path), *others)

    def _in_folder(self, path: str, act: Callable[[], None]) -> None:
        """Call `act`. If the folder of `path` is missing, create it and call `act` again.

        Another process may remove the folder while it is empty.
        """
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

    def drop(self, key: str, only: str | None = None) -> WriteReply | Refused:
        path = self._path(key)
        tag = self._settled_tag(key, path)
        if tag is None or only not in (None, tag):
            return Refused()
        if only is None:
            self._keep(key, path, tag)
        os.unlink(path)
        if only is not None:
            shutil.rmtree(self._versions_folder(key), ignore_errors=True)
        return WriteReply(None)

    def inspect(self, key: str) -> None:
        path = self._path(key)
        try:
            self._read_file(path, key, None)
        except Torn:
            self._put_aside(key, path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise  # out of descriptors, or a failing disk: the file itself may be fine
            self.home.put_aside(path, "cannot be read as a file")

    def flush(self, folder: str) -> None:
        """Make the file names in a folder durable, and the names of its parent folders."""
        try:
            inode = sync_folder(folder)
        except FileNotFoundError:
            return  # the files and their empty folder were deleted meanwhile
        passed: dict[str, tuple[int, float]] = {}
        while folder != self.home.root:
            known = self._flushed.get(folder)
            passed[folder] = (inode, time.monotonic())
            if known is not None and known[0] == inode and passed[folder][1] - known[1] < TRUSTED:
                break
            folder = os.path.dirname(folder)
            inode = sync_folder(folder)
        self._flushed.update(passed)  # only now: flushing a parent may have failed

    # versions

    def _keep(self, key: str, path: str, tag: str | None) -> tuple[str, ...]:
        """If versions are kept, link the file that is about to be replaced into the versions folder.

        Return the folders to flush: the versions folder, or none.
        """
        if tag is None or not key.startswith(self.kept):
            return ()
        folder = self._versions_folder(key)
        name = f"{folder}/{revision_of(tag):012d}"
        with suppress(FileExistsError):  # linked by a process that died before it replaced the object
            self._in_folder(name, lambda: os.link(path, name))
        return (folder,)

    def _last_kept(self, key: str) -> int:
        """Return the number of the last revision in the versions folder; 0 if there is none.

        If the object is created again, its revisions continue from this number, so that each has a unique number.
        """
        return max((int(os.path.basename(path)) for path in self._kept_files(key)), default=0)

    def _kept_files(self, key: str, at_least: int = 0) -> list[str]:
        """Return the files in the versions folder of the object, newest first.

        The name of each file is its last revision. The file may contain earlier revisions too.
        """
        if not key.startswith(self.kept):
            return []
        try:
            names = [
                name for name in os.listdir(self._versions_folder(key)) if name.isdigit() and int(name) >= at_least
            ]
        except FileNotFoundError:
            return []
        return [f"{self._versions_folder(key)}/{name}" for name in sorted(names, key=int, reverse=True)]

    def _put_aside(self, key: str, path: str) -> str | None:
        """Move an incomplete file to the quarantine, and restore the newest intact version.

        Return the tag of that version; None if no intact version was kept. A power loss may truncate a write that did
        not wait for the disk. The version that it replaced was durable.
        """
        why = "is torn or was not written by this store"
        for kept in self._kept_files(key):
            try:
                blob = self._read_file(kept, key, None)
            except Torn:
                continue
            if isinstance(blob, Blob):
                self.home.replace(path, why, kept, self._temporary())
                if self.flushes:
                    self.flush(os.path.dirname(path))
                return blob.tag
        self.home.put_aside(path, why)
        return None

    # paths

    def _path(self, key: str) -> str:
        return f"{self.home.root}/{path_of(key)}"

    def _versions_folder(self, key: str) -> str:
        return f"{self.home.own}/versions/{path_of(key)}"

    def _temporary(self) -> str:
        return f"{self.home.own}/tmp/{os.getpid()}-{self._writer}-{next(self._serial)}"

    def _tag(self, key: str, path: str) -> str | None:
        """Return the object's tag; None if the object does not exist or its file is incomplete."""
        try:
            return self._tag_of_whole(key, path)
        except Torn:
            return None

    def _settled_tag(self, key: str, path: str) -> str | None:
        """Like `_tag`, but first move an incomplete or foreign file to the quarantine, so that the coming write can
        succeed. The caller holds the lock.
        """
        try:
            return self._tag_of_whole(key, path)
        except Torn:
            return self._put_aside(key, path)

    def _tag_of_whole(self, key: str, path: str) -> str | None:
        try:
            file = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a symbolic link
                raise Torn from None
            raise
        try:
            if key.startswith(self.markers) and os.fstat(file).st_size == 0:
                return MARKER
            return last_revision(key, file).tag
        finally:
            os.close(file)
