"""Supervises worker processes: starts them, restarts them when they die, and stops them together.

Each child has its own process group. Ctrl-C in a terminal therefore reaches only this process, which sends one SIGTERM
to each child. If this process dies, the stdin of the children closes, and they stop.
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
from millrace.worker.signals import on_stop_signal

log = logging.getLogger("millrace.supervisor")


class Supervisor:
    """Starts `count` child processes and restarts those that die.

    `run` returns when the supervisor is stopped. It also returns when a child ends with a usage error at the start,
    because a restart would not help. With `once`, a child that ends with exit code 0 is not restarted, and `run`
    returns when all children have ended. The delay before a restart doubles from `first` to `longest` seconds, and is
    reset when a child has run for `healthy` seconds.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        count: int,
        environ: Mapping[str, str],
        *,
        stop_timeout: float,
        once: bool = False,
        first: float = 1.0,
        longest: float = 30.0,
        healthy: float = 60.0,
    ) -> None:
        self._command = command
        self._count = count
        self._environ = environ
        self._stop_timeout = stop_timeout
        self._once = once
        self._first, self._longest, self._healthy = first, longest, healthy
        self._children: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._settled = False  # whether some child has lived long enough to be considered started
        self._code = exits.OK
        self.restarts = 0

    @property
    def pids(self) -> dict[int, int]:
        return {number: child.pid for number, child in self._children.items()}

    async def run(self) -> int:
        with on_stop_signal(self._on_signal):
            async with asyncio.TaskGroup() as group:
                for number in range(1, self._count + 1):
                    group.create_task(self._keep(number))
        return self._code

    def stop(self) -> None:
        """Send SIGTERM to all children. A second call sends it again, which makes workers stop at once. It also reduces
        the time after which children are killed to ten seconds.
        """
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
            code = await self._run_once(number)
            lived = clock() - begun
            self._settled = self._settled or lived >= min(self._healthy, 10.0)
            if self._stopping.is_set() or (self._once and code == exits.OK):
                self._note(number, code)
                return
            if code == exits.USAGE and not self._settled:
                log.error("process %d cannot start; stopping all processes", number)
                self._code = code
                self.stop()
                return
            pause = self._first if lived >= self._healthy else pause
            log.warning("process %d %s; restarting it in %g s", number, _ending(code), pause)
            self.restarts += 1
            if await _happens(self._stopping, pause):
                return
            pause = min(pause * 2, self._longest)

    async def _run_once(self, number: int) -> int:
        child = await asyncio.create_subprocess_exec(
            *self._command(number), env=dict(self._environ), stdin=PIPE, start_new_session=True
        )
        self._children[number] = child
        log.info("process %d started, pid %d", number, child.pid)
        if self._stopping.is_set():  # stopped while it was being started
            _send(child, signal.SIGTERM)
        try:
            return await self._ended(child)
        except asyncio.CancelledError:
            _send(child, signal.SIGTERM)
            raise
        finally:
            self._children.pop(number, None)

    async def _ended(self, child: Process) -> int:
        """Wait for the child and return its exit code. After `stop`, the child is killed if it has not ended within
        `stop_timeout` seconds.
        """
        ending = asyncio.ensure_future(child.wait())
        asked = asyncio.ensure_future(self._stopping.wait())
        either: set[asyncio.Future[Any]] = {ending, asked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await self._wait_for_stop(ending)
            if not ending.done():
                log.error("pid %d does not stop; killing it", child.pid)
                _send(child, signal.SIGKILL)
            return await ending
        finally:
            asked.cancel()
            ending.cancel()

    async def _wait_for_stop(self, ending: asyncio.Future[int]) -> None:
        hurry = asyncio.ensure_future(self._hurry.wait())
        either: set[asyncio.Future[Any]] = {ending, hurry}
        try:
            await asyncio.wait(either, timeout=self._stop_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and hurry.done():
                await asyncio.wait({ending}, timeout=min(self._stop_timeout, 10.0))
        finally:
            hurry.cancel()

    def _note(self, number: int, code: int) -> None:
        if code not in (exits.OK, -signal.SIGTERM):  # a child stopped before it handled signals did no work
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
