"""Waking other processes, within a fraction of a millisecond and without anybody polling.

Beside the database lies a small file, mapped by every process, with one slot for each process that has waited: is
somebody asleep there, and for which queues? Who commits jobs reads it and sends a datagram to as many sleepers as
there are jobs. All of it is a hint: a lost one costs a poll, never a job.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping

from millrace.domain.hashing import fnv1a
from millrace.store.sqlite.io import Io

SLOTS = 512
_SLOT = struct.Struct("<QQ")  # sleepers, mask of the queues they wait for; the first: slots ever used, and stirs
_STIRS, _STIRS_AT = struct.Struct("<Q"), 8
_LONGEST_ADDRESS = 90  # what every system takes for a Unix socket, less the slot's number
_JOBS, _ENDED, _STOP = b"j", b"e", b"s"


def mask_of(queue: str) -> int:
    return 1 << fnv1a(queue) % 64


class Wake:
    """`woken(queue, jobs)` and `ended(job id)` are called on a thread of this object when a datagram comes."""

    def __init__(self, path: str, io: Io, woken: Callable[[str, int], None], ended: Callable[[str], None]) -> None:
        self._io = io
        self._woken = woken
        self._ended = ended
        self._path = path
        self._lock = threading.Lock()
        self._slot: int | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._next = 1
        self._file = os.open(path + "-wake", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < SLOTS * _SLOT.size:
            os.ftruncate(self._file, SLOTS * _SLOT.size)
        self._map = mmap.mmap(self._file, SLOTS * _SLOT.size)
        self.alone = self._is_alone()

    def _is_alone(self) -> bool:
        """Every process that has the store open shares a lock on this file; who can have it all is the only one."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        else:
            alone = True
            self._map[:] = bytes(len(self._map))  # what the slots say is of processes that are gone
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return alone

    # ── being woken ───────────────────────────────────────────────────────────────────────────

    def publish(self, sleepers: int, mask: int) -> None:
        """Say who sleeps here, before looking whether there is work: a job that comes in between finds us listed."""
        slot = self.slot()
        if slot is not None:
            _SLOT.pack_into(self._map, slot * _SLOT.size, sleepers, mask)

    def slot(self) -> int | None:
        """This process's slot, taken at the first call; None when all are in use, and then we only poll."""
        with self._lock:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                with contextlib.suppress(OSError):
                    self._take_slot(self._socket)
            return self._slot

    def _take_slot(self, listener: socket.socket) -> None:
        directory = self._directory()
        os.makedirs(directory, 0o700, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            facts = os.fstat(handle)
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                return  # somebody else made it: they could listen to our pokes or send false ones
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._slot = next((slot for slot in range(1, SLOTS) if self._bind(listener, slot)), None)
        finally:
            os.close(handle)
        if self._slot is not None:
            used, stirs = _SLOT.unpack_from(self._map, 0)
            _SLOT.pack_into(self._map, 0, max(used, self._slot), stirs)
            self._thread = threading.Thread(target=self._listen, name="millrace-sqlite-wake", daemon=True)
            self._thread.start()

    def _bind(self, listener: socket.socket, slot: int) -> bool:
        address = self.address(slot)
        if os.path.exists(address):
            if self._answers(address):
                return False
            os.unlink(address)
        listener.bind(address)
        os.chmod(address, 0o600)
        _SLOT.pack_into(self._map, slot * _SLOT.size, 0, 0)
        return True

    def _answers(self, address: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)
            except OSError:
                return False
            return True

    def _listen(self) -> None:
        assert self._socket is not None
        while True:
            message = self._socket.recv(4096)
            kind, text = message[:1], message[1:].decode("utf-8", "replace")
            if kind == _STOP:
                return
            if kind == _JOBS:
                count, _, queue = text.partition(" ")
                if count.isdigit():
                    self._woken(queue, int(count))
            elif kind == _ENDED:
                self._ended(text)

    # ── waking ────────────────────────────────────────────────────────────────────────────────

    def stirs(self) -> int:
        """A number that is another whenever jobs have become claimable since it was read, in whichever process."""
        count: int = _STIRS.unpack_from(self._map, _STIRS_AT)[0]
        return count

    def stir(self) -> None:
        _STIRS.pack_into(self._map, _STIRS_AT, (self.stirs() + 1) % (1 << 64))

    def wake(self, jobs: Mapping[str, int]) -> None:
        """Poke sleepers of other processes: at most one for each job."""
        for queue, count in jobs.items():
            self._wake_for(queue, count)

    def _wake_for(self, queue: str, count: int) -> None:
        mask = mask_of(queue)
        start = self._next
        used, _ = _SLOT.unpack_from(self._map, 0)
        for step in range(used):
            if count <= 0:
                return
            slot = (start + step - 1) % used + 1
            sleepers, wanted = _SLOT.unpack_from(self._map, slot * _SLOT.size)
            if not sleepers or not wanted & mask or slot == self._slot:
                continue
            share = min(count, sleepers)
            if self._poke(slot, b"%s%d %s" % (_JOBS, share, queue.encode())):
                # Not listed until it has looked for itself, so that the next job wakes somebody else.
                _SLOT.pack_into(self._map, slot * _SLOT.size, 0, wanted)
                self._next = slot + 1
                count -= share

    def tell(self, slot: int, job_id: str) -> None:
        """Tell the process that enqueued a job, and waits for it, that it ended."""
        if slot != self._slot:
            self._poke(slot, _ENDED + job_id.encode())

    def _poke(self, slot: int, message: bytes) -> bool:
        try:
            self._io.poke(self._sender, self.address(slot), message)
        except (ConnectionRefusedError, FileNotFoundError):
            _SLOT.pack_into(self._map, slot * _SLOT.size, 0, 0)  # its process is gone
            return False
        except OSError:  # its buffer is full: it has enough to wake up for
            return False
        return True

    # ── addresses ─────────────────────────────────────────────────────────────────────────────

    def _directory(self) -> str:
        beside = self._path + "-wake.d"
        if len(os.fsencode(beside)) <= _LONGEST_ADDRESS:
            return beside
        name = hashlib.sha256(os.fsencode(os.path.realpath(self._path))).hexdigest()[:16]
        return os.path.join(tempfile.gettempdir(), f"millrace-{os.getuid()}-{name}")

    def address(self, slot: int) -> str:
        return os.path.join(self._directory(), str(slot))

    def close(self) -> None:
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None and self._thread is not None:
            _SLOT.pack_into(self._map, slot * _SLOT.size, 0, 0)
            self._io.poke(self._sender, self.address(slot), _STOP)
            self._thread.join()
            os.unlink(self.address(slot))
        if self._socket is not None:
            self._socket.close()
        self._sender.close()
        self._map.close()
        os.close(self._file)
