"""`millrace worker --reload`: restarts the worker processes when Python files change.

The processes stop as on SIGTERM, so running jobs may finish first. If the new code cannot be started, the next change
is awaited.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from millrace.cli import exits
from millrace.cli.workers.supervisor import Supervisor
from millrace.domain.errors import MissingExtra
from millrace.worker.signals import on_stop_signal

log = logging.getLogger("millrace.supervisor")


async def run_reloading(start: Callable[[], Supervisor], folders: Iterable[Path]) -> int:
    """Run supervisors, one after the other, until a signal stops this process or the workers have nothing left to do.

    Return the exit code.
    """
    if find_spec("watchfiles") is None:
        raise MissingExtra("watching files (--reload)", "file")
    places = sorted({folder.resolve() for folder in folders})
    stopped = asyncio.Event()
    with on_stop_signal(stopped.set):
        while True:
            change, stop = asyncio.ensure_future(_change(places)), asyncio.ensure_future(stopped.wait())
            supervisor = start()
            running = asyncio.ensure_future(supervisor.run())
            await asyncio.wait({running, change}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                supervisor.stop()
            code = await running
            if code != exits.OK and not change.done():
                log.error("the worker could not start; waiting for a change of a file")
                await asyncio.wait({change, stop}, return_when=asyncio.FIRST_COMPLETED)
            goes_on = change.done() and not stopped.is_set()
            change.cancel()
            stop.cancel()
            await asyncio.wait({change, stop})
            if not goes_on:
                return code
            log.info("%s changed: restarting", _named(change.result()))


async def _change(folders: list[Path]) -> set[Path]:
    """Return the Python files that have changed, as soon as there are some."""
    from watchfiles import PythonFilter, awatch

    async for changes in awatch(*folders, watch_filter=PythonFilter()):
        return {Path(path) for _, path in changes}
    return set()


def _named(files: set[Path]) -> str:
    first, *rest = sorted(os.path.relpath(file) for file in files)
    return first + (f" and {len(rest)} more" if rest else "")
