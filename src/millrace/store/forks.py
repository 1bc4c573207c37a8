"""Forks: what a process has open does not survive them, so whoever holds something says what to do about it.

A child has its parent's memory but none of its threads: a lock that one of them held is held for ever there, and a
connection or socket is shared with the parent. Everything registered here is told before a fork and after it, on
both sides.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def before_fork(self) -> None: ...
    def after_fork(self, *, in_child: bool) -> None: ...


_lock = threading.RLock()
_known: WeakSet[Forkable] = WeakSet()
_told: list[Forkable] = []


def tell_of_forks(thing: Forkable) -> None:
    with _lock:
        _known.add(thing)


def hold_over_forks(lock: threading.Lock) -> None:
    """For a lock of a module: nobody else has it while the process forks, so the child finds it free."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def _before() -> None:
    _lock.acquire()
    _told[:] = sorted(_known, key=id)  # in one order, for two threads that fork at once
    for thing in _told:
        thing.before_fork()


def _after(in_child: bool) -> None:
    things = _told[:]
    _told.clear()
    _lock.release()
    for thing in things:
        thing.after_fork(in_child=in_child)


def _in_parent() -> None:
    _after(in_child=False)


def _in_child() -> None:
    _after(in_child=True)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
