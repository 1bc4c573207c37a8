"""Signals of the process, told to every worker that asks: the first means stop, the second means now.

An event loop keeps one handler per signal, so workers that share a process share it here. What was installed
before comes back when the last worker is done.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

SIGNALS = (signal.SIGTERM, signal.SIGINT)

Listener = Callable[[], None]


class _Desk:
    """The listeners of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before: dict[signal.Signals, Any] = {}
        self.listeners: list[Listener] = []

    def open(self) -> None:
        for number in SIGNALS:
            before = signal.getsignal(number)
            try:
                self._loop.add_signal_handler(number, self._tell)
            except NotImplementedError:  # no such thing on this platform
                return
            self._before[number] = before

    def close(self) -> None:
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()

    def _tell(self) -> None:
        for listener in list(self.listeners):
            listener()


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk] = WeakKeyDictionary()


@contextmanager
def heard_by(listener: Listener, enabled: bool = True) -> Iterator[None]:
    """Call `listener` in the running loop at each SIGTERM and SIGINT. Only the main thread can hear them."""
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    desk = _desks.setdefault(loop, _Desk(loop))
    if not desk.listeners:
        desk.open()
    desk.listeners.append(listener)
    try:
        yield
    finally:
        desk.listeners.remove(listener)
        if not desk.listeners:
            desk.close()
            _desks.pop(loop, None)
