"""Fork handling: objects with locks or connections register here, and are notified before and after each fork.

A forked child has a copy of its parent's memory, but none of its threads. A lock that a thread of the parent held is
never released in the child, and connections and sockets are shared with the parent. After a fork, the registered
objects are notified in both processes.
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
_notified: list[Forkable] = []


def register_for_forks(thing: Forkable) -> None:
    """Register an object. Its `before_fork` and `after_fork` are called before and after every fork of this process."""
    with _lock:
        _known.add(thing)


def hold_over_forks(lock: threading.Lock) -> None:
    """Register a module-level lock. It is acquired before every fork and released in both processes, so the child finds
    it free.
    """
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def _before() -> None:
    _lock.acquire()
    _notified[:] = sorted(_known, key=id)  # always in the same order, in case two threads fork at once
    for thing in _notified:
        thing.before_fork()


def _after(in_child: bool) -> None:
    things = _notified[:]
    _notified.clear()
    _lock.release()
    for thing in things:
        thing.after_fork(in_child=in_child)


def _in_parent() -> None:
    _after(in_child=False)


def _in_child() -> None:
    _after(in_child=True)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
