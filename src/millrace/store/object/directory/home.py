"""The directory itself: whose it is, where it may lie, and what stands in it that is not ours.

Besides the objects it holds one folder of the driver's own, `.millrace`, whose name no key can take:

    format       says that this directory is a store, and of which format
    locks/       one file per shard, locked while objects of the shard are compared and replaced
    tmp/         files being written; each becomes an object by one rename or link
    bell/        a file per first part of the keys, touched after every change: a cheap hint for those who wait
    versions/    what objects were before, where that is kept and does not stand in their own files
    quarantine/  files that were found among the objects and are none
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from pathlib import Path

from millrace.domain.errors import StoreError
from millrace.store.file_system import NETWORK_FILE_SYSTEMS, file_system_of, mounts_here

log = logging.getLogger("millrace.store")

OWN = ".millrace"
FORMAT = "millrace directory 2\n"
LOCKS = 64  # files that a process may have open twice
STALE_TMP = 3600  # seconds; a write takes milliseconds


class Home:
    """Paths below the root, and the quarantine."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.realpath(root)
        self.own = f"{self.root}/{OWN}"
        self.reports: deque[str] = deque(maxlen=1000)  # what was found and put aside, newest last

    def open(self, *, allow_network: bool = False) -> None:
        """Make it a store, or see that it is one. Several processes may do so at once."""
        try:
            os.makedirs(self.root, 0o700, exist_ok=True)
            if not allow_network:
                refuse_network_file_system(self.root)
            if not os.path.exists(f"{self.own}/format"):
                self._take_over()
            found = Path(self.own, "format").read_text("utf-8", "replace")
            if found != FORMAT:
                raise StoreError(
                    f"{self.root} is a store of another format ({found.strip()[:60]!r}, expected {FORMAT.strip()!r}). "
                    "Use the version of millrace that made it, or another directory."
                )
            for folder in ("locks", "tmp", "bell", "versions", "quarantine"):
                make_folders(f"{self.own}/{folder}")
        except OSError as error:
            raise StoreError(
                f"{self.root} cannot be used as a store: {error.strerror or error}. "
                "Name a directory that this user may create files in."
            ) from None
        self._sweep()

    def _take_over(self) -> None:
        strangers = [name for name in os.listdir(self.root) if name not in (OWN, "lost+found")]
        if strangers and not os.path.exists(f"{self.own}/format"):
            raise StoreError(
                f"{self.root} is not empty and not a store: it holds {min(strangers)!r}. "
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
        """Temporary files of writers that died. Nobody was ever told of them, so they are removed."""
        oldest = time.time() - STALE_TMP
        for entry in os.scandir(f"{self.own}/tmp"):
            try:
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
                    self._report(f"removed {entry.name}, left by a writer that died")
            except OSError:
                continue

    def put_aside(self, path: str, why: str) -> None:
        """Move what is no object of ours out of the way, where somebody can look at it."""
        name = f"{time.time_ns()}-{os.getpid()}-{os.path.basename(path)}"[:250]
        try:
            os.rename(path, f"{self.own}/quarantine/{name}")
        except FileNotFoundError:
            return  # another process was faster
        self._report(f"{os.path.relpath(path, self.root)} {why}; moved to {OWN}/quarantine/{name}")

    def replace(self, path: str, why: str, kept: str, temporary: str) -> None:
        """Put an object aside and give it the body of an earlier version, in one step."""
        name = f"{time.time_ns()}-{os.getpid()}-{os.path.basename(path)}"[:250]
        os.link(path, f"{self.own}/quarantine/{name}", follow_symlinks=False)
        os.link(kept, temporary)
        os.rename(temporary, path)
        self._report(f"{os.path.relpath(path, self.root)} {why}; moved to {OWN}/quarantine/{name}")
        self._report(f"{os.path.relpath(path, self.root)} was put back as it had been before")

    def pass_over(self, path: str, why: str) -> None:
        """Report once what is not served and stays where it is."""
        text = f"{os.path.relpath(path, self.root)} {why}; it is ignored"
        if text not in self.reports:
            self._report(text)

    def _report(self, text: str) -> None:
        self.reports.append(text)
        log.warning("store %s: %s", self.root, text)


def make_folders(path: str) -> None:
    """As os.makedirs, but every level readable by its owner only."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        make_folders(path)


def sync_folder(path: str) -> int:
    """Make the names in it durable; answers its inode."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
        return os.fstat(folder).st_ino
    finally:
        os.close(folder)


def refuse_network_file_system(path: str, mounts: str | None = None) -> None:
    """Locks between machines cannot be trusted there, and a rename may be seen late."""
    kind = file_system_of(path, mounts_here() if mounts is None else mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), whose locks cannot be trusted. Put the directory on a "
            "local disk; for several machines use a bucket (s3://…) or a server store such as postgresql://."
        )
