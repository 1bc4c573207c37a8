"""Threads for `def` handlers: daemons, taken on when needed, kept while idle.

Not an executor: that one waits for its threads when the interpreter exits, and a handler that never returns
would keep the process alive; and a thread that is stuck would take a place in it for ever.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], object]


class Threads:
    """Work beyond `limit` threads waits its turn; a thread given up for lost no longer counts towards it."""

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self._name = name
        self._count = 0
        self._idle = 0
        self._closed = False
        self._work: deque[tuple[contextvars.Context, Work]] = deque()
        self._change = threading.Condition()

    def submit(self, work: Work) -> bool:
        """Run `work` in a copy of the caller's context. False when it has to wait for a thread first."""
        item = (contextvars.copy_context(), work)
        with self._change:
            self._work.append(item)
            at_once = self._idle >= len(self._work)
            if at_once:
                self._change.notify()
                return True
            if self._count >= self.limit:
                return False
            self._count += 1
        threading.Thread(target=self._loop, name=self._name, daemon=True).start()
        return True

    def gave_up(self, by: int = 1) -> None:
        """A handler did not return in time: let another thread take its place (negative: it came back)."""
        with self._change:
            self.limit += by

    def close(self) -> None:
        """Let idle threads end; busy ones end after their work."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _loop(self) -> None:
        while True:
            with self._change:
                while not self._work:
                    if self._closed or self._count > self.limit:
                        self._count -= 1
                        return
                    self._idle += 1
                    self._change.wait()
                    self._idle -= 1
                context, work = self._work.popleft()
            context.run(work)
            del context, work  # an idle thread must not keep the last job alive
