"""One child as its worker sees it: started, told what to do, told to stop, and seen to its end.

A fresh interpreter, not a fork: a worker has threads (its heartbeat, its store's writer), and a fork would copy the
locks they hold at that moment. It leads a session of its own, so that one signal reaches all it has started, and a
terminal's Ctrl-C reaches none of it: the worker decides.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.outcome import Failure
from millrace.runtime.hold import Abort
from millrace.runtime.process.death import Death, await_death, kill_group
from millrace.runtime.process.wire import (
    Boot,
    Broken,
    Ended,
    Frames,
    Halt,
    Line,
    Progress,
    Ready,
    Retire,
    ToWorker,
    Work,
    frame,
)

LAST_WORDS = 0.5  # seconds that what a dead child has sent may take to be read
RETIRE_WAIT = 2.0
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "from millrace.runtime.process.main import main; main(int(sys.argv[1]))"
)

_job_log = logging.getLogger("millrace.job")


class Reports(Protocol):
    """What a child's progress is written to: the run it works on."""

    progress: bytes | None


class BrokenChild(Exception):
    """It ended before it was ready for work."""

    def __init__(self, text: str, error: Failure | None = None) -> None:
        self.error = error
        super().__init__(text)


class Child(asyncio.Protocol):
    """All methods belong to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = 0
        self.jobs = 0
        self.memory = 0
        self.halted = False
        self.death: Death | None = None
        self.died: asyncio.Future[Death] = loop.create_future()
        self._loop = loop
        self._ready: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[Ended | Death] | None = None
        self._reports: Sequence[Reports] = ()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._broken: Failure | None = None
        self._closed = False
        self._severed = False

    @property
    def usable(self) -> bool:
        return self.death is None and not self._closed

    # ── its birth ─────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """In the thread that stays as long as the child may: Linux ends the child with it (main.py).

        Raises BrokenChild when the system has no room for it: no more files, processes or threads.
        """
        try:
            self._channel, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    _command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            watch = threading.Thread(target=self._see_it_out, name=f"millrace-child-{self._process.pid}", daemon=True)
            self.pid = self._process.pid
            watch.start()
        except (OSError, RuntimeError) as error:
            self._discard()
            raise BrokenChild(f"the system would not start it: {error}") from error

    def _discard(self) -> None:
        """What there is of a child that nobody watches."""
        self.pid = 0
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def boot(self, boot: Boot, patience: float) -> None:
        """Until it has imported its tasks. Raises BrokenChild."""
        try:
            assert self._channel is not None
            self._channel.setblocking(False)
            await self._loop.create_unix_connection(lambda: self, sock=self._channel)
            self._tell(boot)
            async with asyncio.timeout(patience):
                await self._ready
        except TimeoutError:
            self.kill()
            raise BrokenChild(f"it has not imported its tasks within {patience:g} s") from None
        except asyncio.CancelledError:
            self.kill()
            raise

    def _see_it_out(self) -> None:
        death = await_death(self.pid)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._dead, death)

    # ── its work ──────────────────────────────────────────────────────────────────────────────

    async def do(self, work: Work, reports: Sequence[Reports]) -> Ended | Death:
        """One call of a handler, until it has ended or the child has died."""
        self.jobs += 1
        self._reports = reports
        self._answer = self._loop.create_future()
        if self.death is not None:
            return self.death
        self._tell(work)
        try:
            return await self._answer
        finally:
            self._answer, self._reports = None, ()

    def halt(self, why: Abort) -> None:
        """The attempt is to end: the handler hears why, and all that it started gets SIGTERM."""
        self.halted = True
        self._tell(Halt(why))
        if self.death is None and self.pid:
            kill_group(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        self.halted = True
        if self.death is None and self.pid:
            kill_group(self.pid, signal.SIGKILL)

    def retire(self) -> None:
        """Let it exit by itself, within a moment."""
        self.halted = True
        self._tell(Retire())
        self._loop.call_later(RETIRE_WAIT, self.kill)

    # ── what it says ──────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a socket, so it can be written to

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._hear(message)
        except msgspec.DecodeError:  # its handler has written there, and whatever follows would be misread
            self._sever()

    def _hear(self, message: ToWorker) -> None:
        match message:
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(None)
            case Broken(error):
                self._broken = error
            case Progress(index, value):
                if index < len(self._reports):
                    self._reports[index].progress = value
            case Line(level, text, facts):
                _log(level, text, facts)
            case Ended():
                self.memory = message.memory
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        if self.death is not None:
            self._gone(self.death)
        else:  # most likely it is about to end, and how will be known in a moment
            self._loop.call_later(LAST_WORDS, self._sever)

    def _sever(self) -> None:
        """It lives on, but nobody can talk to it any more."""
        if self.death is None:
            self._severed = True
            self.kill()

    def _dead(self, death: Death) -> None:
        """Its last words may still be on the way."""
        if self._severed:
            death = msgspec.structs.replace(death, severed=True)
        self.death = death
        if self._process is not None:
            self._process.returncode = 0 if death.status is None else os.waitstatus_to_exitcode(death.status)
        if self._closed or self._transport is None:
            self._gone(death)
        else:
            self._loop.call_later(LAST_WORDS, self._gone, death)

    def _gone(self, death: Death) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.died.done():
            self.died.set_result(death)
        if not self._ready.done():
            said = f": {self._broken.type}: {self._broken.message}" if self._broken else ""
            self._ready.set_exception(BrokenChild(f"it {death}{said}", self._broken))
            self._ready.exception()  # whoever started it may have stopped waiting
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(death)

    def _tell(self, message: Boot | Work | Halt | Retire) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))


def _command(number: int) -> list[str]:
    if not sys.executable:
        raise InvalidInput("process=True needs sys.executable to start another interpreter, and it is not set here")
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    home = str(Path(__file__).resolve().parents[3])  # what holds this package, wherever it was imported from
    return [sys.executable, *flags, "-c", _BOOT, str(number), home]


def _log(level: int, text: str, facts: dict[str, object]) -> None:
    record = _job_log.makeRecord(_job_log.name, level, "(process)", 0, text, (), None, extra=facts)
    if _job_log.isEnabledFor(level):
        _job_log.handle(record)
