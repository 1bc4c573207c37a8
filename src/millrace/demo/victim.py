"""The second worker: a separate process that is killed with SIGKILL while it runs jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path

from millrace.domain.errors import StoreError
from millrace.store.protocol import Store

NAME = "back-office"
QUEUES = ("reports", "mail", "images")
SLOTS = 8
PATIENCE = 30.0


class Victim:
    """A `millrace worker` process. If the demo itself is killed, the process's stdin closes, and the worker stops."""

    def __init__(self, folder: Path, url: str, lease: float) -> None:
        self._folder = folder
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        self._environ["MILLRACE_URL"] = url
        self._command = [sys.executable, "-m", "millrace", "worker", "--app", "millrace.demo.shop:app"]
        self._command += ["--queues", ",".join(QUEUES), "--slots", str(SLOTS), "--name", NAME]
        self._command += ["--lease", f"{lease:g}s", "--supervised"]
        self._process: Process | None = None
        self.killed = False

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    async def start(self, store: Store, stopping: asyncio.Event) -> None:
        """Start the process, and wait until the worker is registered in the store or the demo is stopped.

        Raises StoreError if the worker does not start.
        """
        with open(self._folder / f"{NAME}.log", "wb") as log:  # noqa: ASYNC230  # before anything runs
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env=self._environ,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the demo, which then stops it
            )
        begun = asyncio.get_running_loop().time()
        while not stopping.is_set() and NAME not in {record.info.id for record in await store.workers()}:
            late = asyncio.get_running_loop().time() - begun > PATIENCE
            if late or self._process.returncode is not None:
                raise StoreError(f"the second worker did not start. Its log: {self._folder / f'{NAME}.log'}")
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        """Kill the process with SIGKILL: the worker cannot clean up or notify the store."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        self.killed = True

    async def end(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(8):
                    await self._process.wait()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
