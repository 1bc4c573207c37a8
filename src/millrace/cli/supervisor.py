"""Watching over worker processes: fresh interpreters, started again when they die, stopped together.

Each child has a process group of its own, so that Ctrl-C in a terminal reaches this process alone: it passes one
SIGTERM on, and the children do not mistake it for two. Should this process vanish, their stdin closes and they stop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from millrace.cli import exits
from millrace.runtime.signals import heard_by

log = logging.getLogger("millrace.supervisor")


class Supervisor:
    """`run` ends when it is stopped, when with `once` all children have ended, or when starting makes no sense.

    A child that dies is started again after a pause that doubles, from `first` to `longest` seconds, and begins anew
    once a child has lived for `healthy` seconds.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        count: int,
        environ: Mapping[str, str],
        *,
        patience: float,
        once: bool = False,
        first: float = 1.0,
        longest: float = 30.0,
        healthy: float = 60.0,
    ) -> None:
        self._command = command
        self._count = count
        self._environ = environ
        self._patience = patience
        self._once = once
        self._first, self._longest, self._healthy = first, longest, healthy
        self._children: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._settled = False  # some child has lived long enough to be believed in
        self._code = exits.OK
        self.restarts = 0

    @property
    def pids(self) -> dict[int, int]:
        return {number: child.pid for number, child in self._children.items()}

    async def run(self) -> int:
        with heard_by(self._on_signal):
            async with asyncio.TaskGroup() as group:
                for number in range(1, self._count + 1):
                    group.create_task(self._keep(number))
        return self._code

    def stop(self) -> None:
        """Ask all children to stop; the second time, at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        for child in self._children.values():
            _send(child, signal.SIGTERM)

    def _on_signal(self) -> None:
        log.info("stopping %d processes%s", len(self._children), " at once" if self._stopping.is_set() else "")
        self.stop()

    async def _keep(self, number: int) -> None:
        clock = asyncio.get_running_loop().time
        pause = self._first
        while not self._stopping.is_set():
            begun = clock()
            code = await self._once_through(number)
            lived = clock() - begun
            self._settled = self._settled or lived >= min(self._healthy, 10.0)
            if self._stopping.is_set() or (self._once and code == exits.OK):
                self._note(number, code)
                return
            if code == exits.USAGE and not self._settled:
                log.error("process %d cannot start, and starting it again would not help; stopping", number)
                self._code = code
                self.stop()
                return
            pause = self._first if lived >= self._healthy else pause
            log.warning("process %d %s; it is started again in %g s", number, _ending(code), pause)
            self.restarts += 1
            if await _happens(self._stopping, pause):
                return
            pause = min(pause * 2, self._longest)

    async def _once_through(self, number: int) -> int:
        child = await asyncio.create_subprocess_exec(
            *self._command(number), env=dict(self._environ), stdin=PIPE, start_new_session=True
        )
        self._children[number] = child
        log.info("process %d started, pid %d", number, child.pid)
        if self._stopping.is_set():  # asked to stop while it was being made
            _send(child, signal.SIGTERM)
        try:
            return await self._ended(child)
        except asyncio.CancelledError:
            _send(child, signal.SIGTERM)
            raise
        finally:
            self._children.pop(number, None)

    async def _ended(self, child: Process) -> int:
        """Its exit code; once it was asked to stop, it has `patience` seconds."""
        ending = asyncio.ensure_future(child.wait())
        asked = asyncio.ensure_future(self._stopping.wait())
        either: set[asyncio.Future[Any]] = {ending, asked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await self._patiently(ending)
            if not ending.done():
                log.error("pid %d does not stop; killing it", child.pid)
                _send(child, signal.SIGKILL)
            return await ending
        finally:
            asked.cancel()
            ending.cancel()

    async def _patiently(self, ending: asyncio.Future[int]) -> None:
        hurry = asyncio.ensure_future(self._hurry.wait())
        either: set[asyncio.Future[Any]] = {ending, hurry}
        try:
            await asyncio.wait(either, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and hurry.done():
                await asyncio.wait({ending}, timeout=min(self._patience, 10.0))
        finally:
            hurry.cancel()

    def _note(self, number: int, code: int) -> None:
        if code not in (exits.OK, -signal.SIGTERM):  # one that was asked before it could listen did no work
            log.error("process %d %s while stopping", number, _ending(code))
            self._code = self._code or exits.NO


def _send(child: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        child.send_signal(number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")


async def _happens(event: asyncio.Event, within: float) -> bool:
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True
