"""Wake-ups between processes on one machine, within a fraction of a millisecond and without polling.

Next to the database is a small file that every process maps into memory. It has one process slot for each process that
has waited for jobs. (It has nothing to do with the slots of a worker.) A slot contains the number of sleepers, which
are the idle workers of that process, and a bit mask of the places that they wait for. A place is a (queue, task);
different places may share a bit.

A process that commits jobs reads the slots, and sends hints as datagrams to as many sleepers as there are jobs. A
process that receives a hint but has no matching sleeper sends it on to another process. Each hint lists the slots that
have already received it. A lost hint only delays a job until the next poll.
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
from functools import lru_cache

from millrace.domain.hashing import fnv1a
from millrace.domain.tables import Place
from millrace.store.sqlite.connection import Io

SLOTS = 512
_BITS = 256
_SLOT = struct.Struct(f"<Q{_BITS // 8}s")  # sleepers, mask of what they wait for
_HEAD = struct.Struct("<QQ")  # in place of the first slot: slots ever used, and the claimable version
_VERSION, _VERSION_AT = struct.Struct("<Q"), 8
_LONGEST_ADDRESS = 90  # bytes that every system accepts for a Unix socket, less the slot's number
_JOBS, _ENDED, _STOP = b"j", b"e", b"s"


def _bit(text: str) -> int:
    return 1 << fnv1a(text) % _BITS


def _named(place: Place) -> str:
    queue, task = place
    return f"{queue or ''}\0{task or ''}"


@lru_cache(4096)
def mask_of(place: Place) -> int:
    """Return the bit mask of a place. It shares at least one bit with the mask of every sleeper that waits for this
    place.
    """
    queue, task = place
    any_task = "*" if queue is None else f"{queue}\0*"
    return _bit(_named(place)) | (0 if task is None else _bit(any_task))


@lru_cache(1024)
def mask_for(queues: tuple[str, ...], tasks: frozenset[str] | None, held_by: frozenset[Place] | None) -> int:
    """Return the bit mask of what a sleeper waits for: jobs of its tasks in its queues, and room under limits.

    `held_by` is the set of limits that block due jobs for this sleeper. If it is None, these limits are unknown, and
    the sleeper waits for all limits of its queues and tasks.
    """
    mask = 0
    for queue in queues:
        mask |= _bit(f"{queue}\0*") if tasks is None else 0
        for task in tasks or ():
            mask |= _bit(_named((queue, task)))
    if held_by is None:
        held_by = frozenset([*((queue, None) for queue in queues), *((None, task) for task in tasks or ())])
        mask |= _bit("*") if tasks is None else 0
    for place in held_by:
        mask |= _bit(_named(place))
    return mask


class Wake:
    """The wake-up file, as one process uses it, and the socket on which this process receives hints.

    A thread of this object calls `woken` with (place, number of jobs, bit set of the slots that have received the
    hint), and `ended` with a job id.
    """

    def __init__(
        self, path: str, io: Io, woken: Callable[[Place, int, int], None], ended: Callable[[str], None]
    ) -> None:
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
        """Return whether no other process has the store open. If so, clear the slots that ended processes have left.

        This also takes the shared lock on the wake-up file, which every process holds while it has the store open.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        else:
            alone = True
            self._map[:] = bytes(len(self._map))  # the slots belong to processes that have ended
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return alone

    # ── being woken ───────────────────────────────────────────────────────────────────────────

    def publish(self, sleepers: int, mask: int) -> None:
        """Write the number of sleepers and their mask to the process slot of this process.

        This is called before the sleepers check for jobs, so that they miss no hint.
        """
        slot = self.slot()
        if slot is not None:
            _SLOT.pack_into(self._map, slot * _SLOT.size, sleepers, mask.to_bytes(_BITS // 8, "little"))

    def slot(self) -> int | None:
        """Return the process slot of this process. The first call takes one.

        Return None if none could be taken, for example because all are in use. Without a process slot, this process
        only polls.
        """
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
                return  # another user created it, and could read our hints or send false ones
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._slot = next((slot for slot in range(1, SLOTS) if self._bind(listener, slot)), None)
        finally:
            os.close(handle)
        if self._slot is not None:
            used, version = _HEAD.unpack_from(self._map, 0)
            _HEAD.pack_into(self._map, 0, max(used, self._slot), version)
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
        _SLOT.pack_into(self._map, slot * _SLOT.size, 0, b"")
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
                self._received(text)
            elif kind == _ENDED:
                self._ended(text)

    def _received(self, text: str) -> None:
        head, _, names = text.partition(" ")
        count, _, tried = head.partition(":")
        queue, _, task = names.partition("\0")
        with contextlib.suppress(ValueError):
            self._woken((queue or None, task or None), int(count), int(tried, 16))

    # ── waking ────────────────────────────────────────────────────────────────────────────────

    def claimable_version(self) -> int:
        """Return a number that changes whenever jobs become claimable, whichever process commits them."""
        count: int = _VERSION.unpack_from(self._map, _VERSION_AT)[0]
        return count

    def note_claimable(self) -> None:
        _VERSION.pack_into(self._map, _VERSION_AT, (self.claimable_version() + 1) % (1 << 64))

    def wake(self, jobs: Mapping[Place, int], tried: int = 0) -> None:
        """Send hints to other processes. At each place, at most as many sleepers get a hint as there are jobs.

        `tried` is a bit set of the process slots to skip.
        """
        if self._slot is not None:
            tried |= 1 << self._slot
        for place, count in jobs.items():
            self._wake_for(place, count, tried)

    def _wake_for(self, place: Place, count: int, tried: int) -> None:
        mask = mask_of(place)
        start = self._next
        used, _ = _HEAD.unpack_from(self._map, 0)
        for step in range(used):
            if count <= 0:
                return
            slot = (start + step - 1) % used + 1
            sleepers, wanted = _SLOT.unpack_from(self._map, slot * _SLOT.size)
            if not sleepers or tried >> slot & 1 or not int.from_bytes(wanted, "little") & mask:
                continue
            share, tried = min(count, sleepers), tried | 1 << slot
            if self._send(slot, b"%s%d:%x %s" % (_JOBS, share, tried, _named(place).encode())):
                # Not listed until it publishes again, so that the next job wakes another process.
                _SLOT.pack_into(self._map, slot * _SLOT.size, 0, wanted)
                self._next = slot + 1
                count -= share

    def notify_ended(self, slot: int, job_id: str) -> None:
        """Notify the process with this process slot, which waits for the end of a job, that the job has ended."""
        if slot != self._slot:
            self._send(slot, _ENDED + job_id.encode())

    def _send(self, slot: int, message: bytes) -> bool:
        try:
            self._io.send(self._sender, self.address(slot), message)
        except (ConnectionRefusedError, FileNotFoundError):
            _SLOT.pack_into(self._map, slot * _SLOT.size, 0, b"")  # its process is gone
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
            _SLOT.pack_into(self._map, slot * _SLOT.size, 0, b"")
            self._io.send(self._sender, self.address(slot), _STOP)
            self._thread.join()
            os.unlink(self.address(slot))
        if self._socket is not None:
            self._socket.close()
        self._sender.close()
        self._map.close()
        os.close(self._file)
