"""Whose turn it is: one lock file per shard, held by one thread of one process while it compares and replaces."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from zlib import crc32

from millrace.domain.errors import StoreError
from millrace.store.object.directory.home import LOCKS

PATIENCE = 30.0  # seconds; a turn takes well under a millisecond per object


def shard_of(key: str) -> int:
    return crc32(key.encode()) % LOCKS


class Locks:
    """For one thread: a lock belongs to the open file, so two threads need two of them."""

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
        """Without waiting; says whether it is held."""
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
        """Ask again rather than wait: a process that was stopped inside its turn would hold everybody for ever."""
        pause, deadline = 0.0001, time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{self._folder}/{shard:02x} has been locked for {self._patience:g} s by {_holder(file)}. "
                        "Nothing was written. Let that process go on, or end it; a dead one holds no lock."
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
