"""The worker's side of one child process: start it, send it work, stop it, and wait for its exit.

A child is a new interpreter, not a fork: a worker has threads, for example the heartbeat, and a fork would copy the
locks that they hold at that moment. The child leads its own session. So one signal reaches the child and all processes
that it has started. Ctrl-C in a terminal does not reach them; the worker decides when they stop.
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

from millrace.app.handler.job_log import LogLine
from millrace.app.handler.verdict import Abort
from millrace.domain.errors import InvalidInput
from millrace.domain.outcome import Failure
from millrace.worker.process.death import Death, await_death, kill_group
from millrace.worker.process.wire import (
    Boot,
    CallEnded,
    ChildBroken,
    ChildLine,
    ChildReady,
    ChildRecord,
    Frames,
    Halt,
    Progress,
    Retire,
    ToWorker,
    Work,
    frame,
)

FINAL_READ_WAIT = 0.5  # seconds to read the last messages of a dead child
RETIRE_WAIT = 2.0
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]); from millrace.worker.process.main import main; main(int(sys.argv[1]))"
)

_job_log = logging.getLogger("millrace.handler")


class Reports(Protocol):
    """The interface of a run that receives the progress and the log lines of its child process."""

    progress: bytes | None

    def keep(self, line: LogLine) -> None: ...


class BrokenChild(Exception):
    """The child ended before it was ready for work."""

    def __init__(self, text: str, error: Failure | None = None) -> None:
        self.error = error
        super().__init__(text)


class Child(asyncio.Protocol):
    """The worker's handle for one child process. All methods must be called on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, retire_wait: float = RETIRE_WAIT) -> None:
        self.pid = 0
        self.jobs = 0
        self.memory = 0
        self.halted = False
        self.death: Death | None = None
        self.died: asyncio.Future[Death] = loop.create_future()
        self._loop = loop
        self._retire_wait = retire_wait
        self._ready: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[CallEnded | Death] | None = None
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

    # ── start ─────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the process. Raises BrokenChild if the system has no more files, processes or threads.

        The calling thread must outlive the child: Linux kills the child when that thread ends (see `main.py`).
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
            watch = threading.Thread(
                target=self._wait_for_exit, name=f"millrace-child-{self._process.pid}", daemon=True
            )
            self.pid = self._process.pid
            watch.start()
        except (OSError, RuntimeError) as error:
            self._discard()
            raise BrokenChild(f"the system could not start it: {error}") from error

    def _discard(self) -> None:
        """Close the socket and kill the process of a child whose start failed."""
        self.pid = 0
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def boot(self, boot: Boot, patience: float) -> None:
        """Wait until the child has imported its tasks.

        Raises BrokenChild if that fails or takes longer than `patience` seconds.
        """
        try:
            assert self._channel is not None
            self._channel.setblocking(False)
            await self._loop.create_unix_connection(lambda: self, sock=self._channel)
            self._send(boot)
            async with asyncio.timeout(patience):
                await self._ready
        except TimeoutError:
            self.kill()
            raise BrokenChild(f"it has not imported its tasks within {patience:g} s") from None
        except asyncio.CancelledError:
            self.kill()
            raise

    def _wait_for_exit(self) -> None:
        death = await_death(self.pid)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._exited, death)

    # ── work ──────────────────────────────────────────────────────────────────────────────────

    async def do(self, work: Work, reports: Sequence[Reports]) -> CallEnded | Death:
        """Run one call of a handler in the child. Return how it ended, or the `Death` of the child."""
        self.jobs += 1
        self._reports = reports
        self._answer = self._loop.create_future()
        if self.death is not None:
            return self.death
        self._send(work)
        try:
            return await self._answer
        finally:
            self._answer, self._reports = None, ()

    def halt(self, why: Abort) -> None:
        """Stop the attempt: send the reason to the child, and SIGTERM to the child and all processes it has started."""
        self.halted = True
        self._send(Halt(why))
        if self.death is None and self.pid:
            kill_group(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        self.halted = True
        if self.death is None and self.pid:
            kill_group(self.pid, signal.SIGKILL)

    def retire(self) -> None:
        """Ask the child to exit, and kill it if it does not within `retire_wait` seconds."""
        self.halted = True
        self._send(Retire())
        self._loop.call_later(self._retire_wait, self.kill)

    # ── messages from the child ──────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a socket, so it can be written to

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._received(message)
        except msgspec.DecodeError:  # its handler has written to the channel, so further messages would be misread
            self._sever()

    def _received(self, message: ToWorker) -> None:
        match message:
            case ChildReady():
                if not self._ready.done():
                    self._ready.set_result(None)
            case ChildBroken(error):
                self._broken = error
            case Progress(index, value):
                if index < len(self._reports):
                    self._reports[index].progress = value
            case ChildRecord(level, text, facts):
                _log(level, text, facts)
            case ChildLine(index, line):
                if index < len(self._reports):
                    self._reports[index].keep(line)
            case CallEnded():
                self.memory = message.memory
                self.halted = self.halted or message.retires
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        if self.death is not None:
            self._gone(self.death)
        else:  # most likely the process is about to exit, and its exit status follows
            self._loop.call_later(FINAL_READ_WAIT, self._sever)

    def _sever(self) -> None:
        """Kill a child whose connection is broken."""
        if self.death is None:
            self._severed = True
            self.kill()

    def _exited(self, death: Death) -> None:
        """Record that the process has exited. Its last messages are still read for a short time."""
        if self._severed:
            death = msgspec.structs.replace(death, severed=True)
        self.death = death
        if self._process is not None:
            self._process.returncode = 0 if death.status is None else os.waitstatus_to_exitcode(death.status)
        if self._closed or self._transport is None:
            self._gone(death)
        else:
            self._loop.call_later(FINAL_READ_WAIT, self._gone, death)

    def _gone(self, death: Death) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.died.done():
            self.died.set_result(death)
        if not self._ready.done():
            said = f": {self._broken.type}: {self._broken.message}" if self._broken else ""
            self._ready.set_exception(BrokenChild(f"it {death}{said}", self._broken))
            self._ready.exception()  # mark it as retrieved: the caller of `boot` may no longer wait
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(death)

    def _send(self, message: Boot | Work | Halt | Retire) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))


def _command(number: int) -> list[str]:
    if not sys.executable:
        raise InvalidInput("process=True needs sys.executable to start another interpreter, and it is not set here")
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    home = str(Path(__file__).resolve().parents[3])  # the directory of this package, wherever it was imported from
    return [sys.executable, *flags, "-c", _BOOT, str(number), home]


def _log(level: int, text: str, facts: dict[str, object]) -> None:
    record = _job_log.makeRecord(_job_log.name, level, "(process)", 0, text, (), None, extra=facts)
    if _job_log.isEnabledFor(level):
        _job_log.handle(record)
