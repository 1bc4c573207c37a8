"""File locks, one per shard. A thread holds a lock while it compares and replaces objects of the shard."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from zlib import crc32

from millrace.domain.errors import StoreError
from millrace.store.object.directory.folder import LOCKS

PATIENCE = 30.0  # seconds; a lock is held well under a millisecond per object


def shard_of(key: str) -> int:
    return crc32(key.encode()) % LOCKS


class Locks:
    """The locks of one thread. A lock belongs to an open file, so each thread opens its own files."""

    def __init__(self, folder: str, patience: float = PATIENCE) -> None:
        self._folder = folder
        self._patience = patience
        self._files: dict[int, int] = {}

    @contextmanager
    def held(self, shard: int) -> Generator[None]:
        file = self._file(shard)
        self._take(file, shard)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    @contextmanager
    def held_if_free(self, shard: int) -> Generator[bool]:
        """Take the lock if it is free, without waiting. Yield whether the lock is held."""
        file = self._file(shard)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _file(self, shard: int) -> int:
        file = self._files.get(shard)
        if file is None:
            file = os.open(f"{self._folder}/{shard:02x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._files[shard] = file
        return file

    def _take(self, file: int, shard: int) -> None:
        """Poll until the lock is free. Raise StoreError after a timeout.

        Without the timeout, a process that is suspended while it holds the lock would block all other processes.
        """
        pause, deadline = 0.0001, time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{self._folder}/{shard:02x} has been locked for {self._patience:g} s by {_holder(file)}. "
                        "Nothing was written. Resume or end that process; a dead one holds no lock."
                    ) from None
                time.sleep(pause)
                pause = min(0.005, pause * 1.5)
            else:
                return

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def _holder(file: int) -> str:
    try:
        inode = os.fstat(file).st_ino
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                    return f"process {fields[4]}"
    except OSError:
        pass
    return "another process"
