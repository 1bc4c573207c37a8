"""Handling of SIGTERM and SIGINT for all workers of a process.

An event loop has only one handler per signal, so all workers on a loop share the one that is installed here. The
previous handler is restored when the last worker has stopped.
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


class _Listeners:
    """The functions to call on one event loop when a signal arrives, and the signal handlers installed before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before: dict[signal.Signals, Any] = {}
        self.listeners: list[Listener] = []

    def install(self) -> None:
        for number in SIGNALS:
            before = signal.getsignal(number)
            try:
                self._loop.add_signal_handler(number, self._notify)
            except NotImplementedError:  # not on this platform
                return
            self._before[number] = before

    def restore(self) -> None:
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Listeners] = WeakKeyDictionary()


@contextmanager
def on_stop_signal(listener: Listener, enabled: bool = True) -> Iterator[None]:
    """Inside the `with` block, call `listener` on the running loop at each SIGTERM and SIGINT.

    Do nothing if `enabled` is False, or if this is not the main thread.
    """
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    shared = _by_loop.setdefault(loop, _Listeners(loop))
    if not shared.listeners:
        shared.install()
    shared.listeners.append(listener)
    try:
        yield
    finally:
        shared.listeners.remove(listener)
        if not shared.listeners:
            shared.restore()
            _by_loop.pop(loop, None)
