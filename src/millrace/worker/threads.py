"""Threads for `def` handlers: daemon threads, started when needed and reused.

`ThreadPoolExecutor` is not used for two reasons. It joins its threads when the interpreter exits, so a handler that
never returns would keep the process alive. And every thread that hangs would reduce its capacity.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Work = Callable[[], object]


class Threads:
    """Runs work in at most `limit` threads; more work waits. An abandoned thread does not count towards the limit.

    One thread is woken at a time, and wakes the next before it calls its work. So work that blocks delays no other, and
    short work is done by the few threads that are awake.
    """

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self._name = name
        self._count = 0
        self._idle = 0
        self._waking = False  # a thread was woken or started, and has not got the lock yet
        self._closed = False
        self._work: deque[tuple[contextvars.Context, Work]] = deque()
        self._change = threading.Condition()

    @property
    def backlog(self) -> bool:
        """Whether work waits for a thread."""
        return bool(self._work)

    def submit(self, work: Work) -> bool:
        """Run `work` in a thread, in a copy of the caller's context. Return False if no thread is free yet."""
        item = (contextvars.copy_context(), work)
        with self._change:
            self._work.append(item)
            free = len(self._work) <= self._idle + self.limit - self._count
            self._wake_next()
        return free

    def call(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], object],
        on_start: Callable[[], None],
        on_end: Callable[[object, BaseException | None], None],
    ) -> bool:
        """Call `function` in a thread. Then call `on_end` on the loop with its return value and its exception.

        Return False if no thread is free yet. In that case, `on_start` is called on the loop when `function` starts.
        """
        waited = True

        def work() -> None:
            if waited:
                call_in_loop(loop, on_start)
            try:
                value = function()
            except BaseException as error:
                call_in_loop(loop, on_end, None, error)
            else:
                call_in_loop(loop, on_end, value, None)

        waited = not self.submit(work)  # a thread that is faster than this line calls `on_start` as well: harmless
        return not waited

    def abandoned(self) -> None:
        """Allow one more thread, because the handler in one of the threads was abandoned."""
        with self._change:
            self.limit += 1
            with suppress(RuntimeError):  # no more threads: the work waits for one that exists
                self._wake_next()

    def returned(self) -> None:
        """Allow one thread less, because an abandoned handler has returned."""
        with self._change:
            self.limit -= 1

    def close(self) -> None:
        """End idle threads now, and busy threads after their current work."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _wake_next(self) -> None:
        """Wake or start a thread if work waits, unless one is on its way. The caller holds the lock."""
        if not self._work or self._waking:
            return
        if self._idle:
            self._change.notify()
        elif self._count < self.limit:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        else:
            return
        self._waking = True

    def _run(self) -> None:
        new = True
        while True:
            with self._change:
                if new:
                    self._count += 1
                    self._waking = new = False
                while not self._work:
                    if self._closed or self._count > self.limit:
                        self._count -= 1
                        return
                    self._idle += 1
                    self._change.wait()
                    self._idle -= 1
                    self._waking = False
                context, work = self._work.popleft()
                with suppress(RuntimeError):
                    self._wake_next()
            context.run(work)
            del context, work  # an idle thread must not keep the last job in memory


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop is closed: nothing waits for this any more
        return
