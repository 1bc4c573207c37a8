"""Where one object is put, compared and removed. Everything but `prepare` and `read` is called under its shard's lock.

Readers take no lock: an object becomes visible by one link or rename of a finished file, and a revision by the last
byte of it, so they see the old one or the new one, and a process killed at any point leaves the same choice.

Where versions are kept, a swap puts the new revision behind the old one, in the same file: that costs a fraction of a
new file, most of all on a disk where making a file is slow, and the versions are kept by it.
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
from millrace.store.object.directory.files import (
    LANDED,
    NO_BOOT,
    TRAILER_SIZE,
    Revision,
    Torn,
    newest,
    place_of_word,
    read_all,
    revision_of,
    revisions,
    seal,
    summary,
    this_boot,
    write_all,
)
from millrace.store.object.directory.home import Home, make_folders, sync_folder
from millrace.store.object.driver import UNCHANGED, Blob, Done, Expect, Read, Refused, Version, Want, Write
from millrace.store.object.names import path_of

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
MARKER = "1-marker"  # the tag of every empty file: nobody swaps one
MARKS_TOGETHER = 0.25  # seconds; markers made within are names of one empty file, and as old as the first of them
LONGEST_FILE = 64 << 10  # bytes; then the next revision begins a new file
TRUSTED = 5  # seconds; a folder that was removed and made again may have its old inode, but not sooner (EMPTY_FOR)
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


class Appended(msgspec.Struct):
    """A revision behind the others, which nobody sees until it is flushed and `land`ed."""

    key: str
    file: int
    word: int  # where in the file it says whether it counts
    end: int  # of what counted before
    tag: str


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
        self.kept = kept  # prefixes whose versions are kept
        self._clock = clock  # None: what the file system says
        self._serial = itertools.count()
        self._writer = secrets.token_hex(4)  # a process id alone comes round again
        self._flushed: dict[str, tuple[int, float]] = {}  # folders with durable names: path → inode, when
        self._empty: tuple[str, float, float] | None = None  # the file that markers are names of, since and until when

    # reading

    def read(self, want: Want) -> Read:
        """Raises Torn for a file that is not whole."""
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
            if unless is not None and summary(key, file).tag == unless:
                return UNCHANGED
            content = read_all(file)
            modified = os.fstat(file).st_mtime_ns // 1_000_000
        finally:
            os.close(file)
        found = newest(key, content)
        if len(found.body) + TRAILER_SIZE != len(content) and not key.startswith(self.kept):
            raise Torn
        return Blob(key, found.body, found.tag, modified)

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
        """Newest first, the present one included."""
        found: dict[int, Version] = {}
        for path in (self._path(key), *self._kept_files(key)):
            for revision in self._revisions(path, key):
                number = revision_of(revision.tag)
                found.setdefault(number, Version(str(number), revision.at, len(revision.body)))
        return [found[number] for number in sorted(found, reverse=True)]

    # markers: empty objects under names that are used once. They are made and removed without a lock.

    def is_marker(self, change: Write | Drop | Inspect) -> bool:
        """Those that need not be durable: what is lost of them with the power is put back from what they tell of."""
        if not change.key.startswith(self.markers):
            return False
        if isinstance(change, Write):
            return change.expect is Expect.ANYTHING and not change.body and not change.durable
        return isinstance(change, Drop) and change.tag is None

    def mark(self, key: str) -> Done:
        """One more name for an empty file: to make a new file for each would cost twenty times as much."""
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
                    self._renew_empty_file()  # it was cleared away
                else:
                    make_folders(os.path.dirname(path))
            except OSError as error:
                if error.errno != errno.EMLINK:  # as many names as one file can have
                    raise
                self._renew_empty_file()
        return Done(MARKER)

    def _empty_file(self) -> str:
        empty = self._empty
        if empty is None or not empty[1] <= (self._clock or time.time)() <= empty[2]:
            return self._renew_empty_file()
        return empty[0]

    def _renew_empty_file(self) -> str:
        self.let_go()
        path = self._temporary()
        file = os.open(path, _NEW, 0o600)
        self._date(file)
        os.close(file)
        # By the wall clock: the monotonic one stands still while the machine sleeps, and the file grows old.
        now = time.time() if self._clock is None else self._clock()
        self._empty = (path, now, now + MARKS_TOGETHER if self._clock is None else now)
        return path

    def let_go(self) -> None:
        """Leave nothing of this process behind."""
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
        """Does this write go behind what is there? A line break would make its end hard to find."""
        return (
            isinstance(change, Write)
            and isinstance(change.expect, str)
            and change.key.startswith(self.kept)
            and len(change.body) < LONGEST_FILE // 2
            and b"\n" not in change.body
        )

    def must_flush(self, write: Write) -> bool:
        """Also a file that later revisions will go into: to flush those says nothing about the file's name."""
        begins = write.key.startswith(self.kept) and not self.is_appended(write)
        return self.flushes and (write.durable or begins)

    def append(self, write: Write) -> Done | Refused | Appended | None:
        """The moment a swap happens, or the first half of it. None: the file is long enough, begin a new one."""
        path = self._path(write.key)
        try:
            file = os.open(path, _MORE)
        except (FileNotFoundError, NotADirectoryError):
            return Refused()
        except OSError:  # a symbolic link, a folder: whatever it is, it is not ours
            return Refused() if self._settled_tag(write.key, path) != write.expect else None
        waits = False
        try:
            try:
                there = summary(write.key, file)
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
                return Done(tag)
            return Appended(write.key, file, end + place_of_word(write.body), end, tag)
        except BaseException:
            waits = False
            raise
        finally:
            if not waits:
                os.close(file)

    def _put_behind(self, file: int, end: int, content: bytes) -> None:
        """Whatever stands there was never finished."""
        os.ftruncate(file, end)
        os.lseek(file, end, os.SEEK_SET)
        try:
            write_all(file, content)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, end)
            raise
        self._date(file)

    def land(self, appended: Appended) -> Done:
        """It is on the disk: let it count."""
        os.pwrite(appended.file, LANDED, appended.word)
        if this_boot() == NO_BOOT:
            os.fsync(appended.file)
        self._date(appended.file)
        return Done(appended.tag)

    def take_back(self, appended: Appended) -> None:
        with suppress(OSError):
            os.ftruncate(appended.file, appended.end)

    def prepare(self, write: Write, *, next_file: bool = False) -> Prepared | Refused:
        """Write the file, and flush it if it is to be durable. A swap that is too late already is not worth it."""
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
        """None: the write is refused anyway."""
        if isinstance(write.expect, str):
            # For what need not be durable, the look costs more than it saves.
            there = self._tag(write.key, path) if write.durable else None
            return revision_of(write.expect) + 1 if there in (None, write.expect) else None
        there = self._tag(write.key, path)
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
        if only is not None:
            shutil.rmtree(self._attic(key), ignore_errors=True)
        return Done(None)

    def inspect(self, key: str) -> None:
        path = self._path(key)
        try:
            self._read_file(path, key, None)
        except Torn:
            self._put_aside(key, path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise  # no descriptors left, a disk that fails: that says nothing about the file
            self.home.put_aside(path, "cannot be read as a file")

    def flush(self, folder: str) -> None:
        """Make the names in a folder durable, and the folder's own name, and so on up."""
        try:
            inode = sync_folder(folder)
        except FileNotFoundError:
            return  # what was written has been deleted again, and the empty folder with it
        passed: dict[str, tuple[int, float]] = {}
        while folder != self.home.root:
            known = self._flushed.get(folder)
            passed[folder] = (inode, time.monotonic())
            if known is not None and known[0] == inode and passed[folder][1] - known[1] < TRUSTED:
                break
            folder = os.path.dirname(folder)
            inode = sync_folder(folder)
        self._flushed.update(passed)  # only now: a flush above them may have failed

    # versions

    def _keep(self, key: str, path: str, tag: str | None) -> tuple[str, ...]:
        """Give the file that is about to be replaced a second name; answers the folder of it."""
        if tag is None or not key.startswith(self.kept):
            return ()
        attic = self._attic(key)
        name = f"{attic}/{revision_of(tag):012d}"
        with suppress(FileExistsError):  # kept by a process that died before it replaced the object
            self._in_folder(name, lambda: os.link(path, name))
        return (attic,)

    def _last_kept(self, key: str) -> int:
        """An object that is made anew goes on counting, so that its versions keep their numbers."""
        return max((int(os.path.basename(path)) for path in self._kept_files(key)), default=0)

    def _kept_files(self, key: str, at_least: int = 0) -> list[str]:
        """Files that held the object before, newest first. Each is named by its last revision and holds some before
        that one too."""
        if not key.startswith(self.kept):
            return []
        try:
            names = [name for name in os.listdir(self._attic(key)) if name.isdigit() and int(name) >= at_least]
        except FileNotFoundError:
            return []
        return [f"{self._attic(key)}/{name}" for name in sorted(names, key=int, reverse=True)]

    def _put_aside(self, key: str, path: str) -> str | None:
        """Move a file that is not whole out of the way, and put the newest sound version of it back, if one was kept:
        a write that did not wait for the disk may be cut short by a power loss, what it replaced was durable."""
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

    def _attic(self, key: str) -> str:
        return f"{self.home.own}/versions/{path_of(key)}"

    def _temporary(self) -> str:
        return f"{self.home.own}/tmp/{os.getpid()}-{self._writer}-{next(self._serial)}"

    def _tag(self, key: str, path: str) -> str | None:
        """The tag of what is there; None for nothing, and for a file that is not whole."""
        try:
            return self._tag_of_whole(key, path)
        except Torn:
            return None

    def _settled_tag(self, key: str, path: str) -> str | None:
        """As `_tag`, and what is no object of ours is moved out of the way of the write that comes. Under the lock."""
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
            return summary(key, file).tag
        finally:
            os.close(file)
