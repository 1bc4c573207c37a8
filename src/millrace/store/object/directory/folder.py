"""The store's directory: checks its format and its file system, and moves files that are not objects to a quarantine.

Besides the objects, the directory contains the driver's own folder. Its name is `.millrace`, which no key can have:

    format       says that this directory is a store, and in which format
    locks/       one file per shard, locked while objects of the shard are compared and replaced
    tmp/         files being written; each becomes an object by one rename or link
    bell/        one file per first part of a key, touched after every change to wake waiters
    versions/    earlier versions of objects, if they are kept and are not in the object's own file
    quarantine/  files that were found among the objects but are not objects
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from pathlib import Path

from millrace.domain.errors import StoreError, StoreNotFound
from millrace.store.file_system import NETWORK_FILE_SYSTEMS, file_system_of, mounts_here

log = logging.getLogger("millrace.store")

OWN = ".millrace"
FORMAT = "millrace directory 2\n"
LOCKS = 64  # lock files; a process may have each open twice
STALE_TMP = 3600  # seconds; a write takes milliseconds


class StoreFolder:
    """The root directory of a store, its `.millrace` folder, and the quarantine for files that are not objects."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.realpath(root)
        self.own = f"{self.root}/{OWN}"
        self.reports: deque[str] = deque(maxlen=1000)  # files that were moved aside, newest last
        self.reads_only = False  # whether strange files stay where they are

    def open(self, *, allow_network: bool = False) -> None:
        """Create the store, or check that the directory contains one. Several processes may call this at once."""
        try:
            os.makedirs(self.root, 0o700, exist_ok=True)
            if not allow_network:
                refuse_network_file_system(self.root)
            if not os.path.exists(f"{self.own}/format"):
                self._take_over()
            self._check_format()
            for folder in ("locks", "tmp", "bell", "versions", "quarantine"):
                make_folders(f"{self.own}/{folder}")
        except OSError as error:
            raise StoreError(
                f"{self.root} cannot be used as a store: {error.strerror or error}. "
                "Name a directory that this user may create files in."
            ) from None
        self._sweep()

    def open_for_reading(self, *, allow_network: bool = False) -> None:
        """Check that the directory contains a store. Nothing is created, moved or removed from now on."""
        self.reads_only = True
        try:
            if not allow_network:
                refuse_network_file_system(self.root)
            self._check_format()
        except FileNotFoundError:
            raise StoreNotFound(
                f"{self.root} is not a store of Millrace. Check the path; access=read creates none."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{self.root} cannot be read: {error.strerror or error}. Let this user read the directory and all that "
                "is in it."
            ) from None

    def _check_format(self) -> None:
        found = Path(self.own, "format").read_text("utf-8", "replace")
        if found != FORMAT:
            raise StoreError(
                f"{self.root} is a store of another format ({found.strip()[:60]!r}, expected {FORMAT.strip()!r}). "
                "Use the version of millrace that made it, or another directory."
            )

    def _take_over(self) -> None:
        strangers = [name for name in os.listdir(self.root) if name not in (OWN, "lost+found")]
        if strangers and not os.path.exists(f"{self.own}/format"):
            raise StoreError(
                f"{self.root} is not empty and is not a store: it contains {min(strangers)!r}. "
                "Name an empty directory, or one that does not exist yet."
            )
        make_folders(f"{self.own}/tmp")
        note = f"{self.own}/tmp/format-{os.getpid()}-{time.monotonic_ns()}"
        file = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, FORMAT.encode())
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(note, f"{self.own}/format")
        for folder in (self.own, self.root, os.path.dirname(self.root)):
            sync_folder(folder)

    def _sweep(self) -> None:
        """Remove temporary files that dead writers have left. Their writes were never confirmed."""
        oldest = time.time() - STALE_TMP
        for entry in os.scandir(f"{self.own}/tmp"):
            try:
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
                    self._report(f"removed {entry.name}, left by a writer that died")
            except OSError:
                continue

    def put_aside(self, path: str, why: str) -> None:
        """Move a file that is not an object to the quarantine, where an operator can inspect it."""
        if self.reads_only:
            self.pass_over(path, why)
            return
        name = f"{time.time_ns()}-{os.getpid()}-{os.path.basename(path)}"[:250]
        try:
            os.rename(path, f"{self.own}/quarantine/{name}")
        except FileNotFoundError:
            return  # another process moved it
        self._report(f"{os.path.relpath(path, self.root)} {why}; moved to {OWN}/quarantine/{name}")

    def replace(self, path: str, why: str, kept: str, temporary: str) -> None:
        """Move the file of an object to the quarantine, and restore the object from an earlier version, in one step."""
        name = f"{time.time_ns()}-{os.getpid()}-{os.path.basename(path)}"[:250]
        os.link(path, f"{self.own}/quarantine/{name}", follow_symlinks=False)
        os.link(kept, temporary)
        os.rename(temporary, path)
        self._report(f"{os.path.relpath(path, self.root)} {why}; moved to {OWN}/quarantine/{name}")
        self._report(f"{os.path.relpath(path, self.root)} was restored to an earlier version")

    def pass_over(self, path: str, why: str) -> None:
        """Report that a file is ignored, once per file. The file stays where it is."""
        text = f"{os.path.relpath(path, self.root)} {why}; it is ignored"
        if text not in self.reports:
            self._report(text)

    def _report(self, text: str) -> None:
        self.reports.append(text)
        log.warning("store %s: %s", self.root, text)


def make_folders(path: str) -> None:
    """Create a folder and its missing parents, like os.makedirs, but accessible to their owner only."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        make_folders(path)


def sync_folder(path: str) -> int:
    """Flush a folder to disk, which makes the file names in it durable. Return the inode of the folder."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
        return os.fstat(folder).st_ino
    finally:
        os.close(folder)


def refuse_network_file_system(path: str, mounts: str | None = None) -> None:
    """Raise StoreError on a network file system, where locks are not reliable and renames may be seen late."""
    kind = file_system_of(path, mounts_here() if mounts is None else mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), whose locks cannot be trusted. Put the directory on a "
            "local disk; for several machines use a bucket (s3://…) or a server store such as postgresql://."
        )
