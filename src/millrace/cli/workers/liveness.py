"""Reports that the event loop of a worker runs: to systemd, and to the probes of containers.

A probe of the store would restart all workers when the store is down, which does not help. A process that exists says
little: its event loop may be blocked by a handler. So a task on the event loop touches a file and notifies systemd's
watchdog, and stops to do so when the loop is blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

EVERY = 5.0  # seconds
log = logging.getLogger("millrace.worker")


@contextlib.contextmanager
def liveness_reported(file: str | None, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Inside this block, touch `file` every few seconds and notify systemd, if it is given and if systemd asks for it.

    The first report is READY=1, which ends the start of a systemd unit with Type=notify. Raises OSError if the file
    cannot be written.
    """
    path = None if file is None else Path(file)
    manager = environ.get("NOTIFY_SOCKET")
    if path is None and manager is None:
        yield
        return
    if path is not None:
        path.touch()
    reporting = asyncio.ensure_future(_report(path, manager, _interval(environ)))
    try:
        yield
    finally:
        reporting.cancel()


def _interval(environ: Mapping[str, str]) -> float:
    """Return the seconds between two reports: at most half of the time after which systemd's watchdog acts."""
    watchdog = environ.get("WATCHDOG_USEC", "")
    return min(EVERY, int(watchdog) / 2_000_000) if watchdog.isdigit() else EVERY


async def _report(path: Path | None, manager: str | None, interval: float) -> None:
    if manager is not None:  # in a task, so that the command listens for signals when it is called ready
        _notify(manager, "READY=1")
    while True:
        try:
            _report_once(path, manager)
        except OSError as error:
            log.warning("cannot report that this worker is alive: %s", error)
        await asyncio.sleep(interval)


def _report_once(path: Path | None, manager: str | None) -> None:
    if path is not None:
        path.touch()
    if manager is not None:
        _notify(manager, "WATCHDOG=1")


def _notify(manager: str, message: str) -> None:
    """Send a message of the protocol sd_notify. A name that begins with @ is in Linux' abstract namespace."""
    address = "\0" + manager[1:] if manager.startswith("@") else manager
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.sendto(message.encode(), address)
