"""Inside a child: what code there must not do, since it is not the worker.

An unguarded main file that a child imports would enqueue its jobs a second time and start a worker inside the
child; and a store in memory would be another one than the worker's, so that what is put there is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.runtime.connection import Connection

here = False  # is this process a child?
importing = False  # does it still import the tasks?


def refuse_working() -> None:
    """A worker inside a handler's process would take jobs that nobody sees it hold."""
    if here:
        raise InvalidInput(
            "a worker cannot run inside a process for handlers. If a program starts one when it is imported, "
            'put that under: if __name__ == "__main__":'
        )


def refuse_connecting(connection: Connection) -> None:
    """Only called in a child."""
    if importing:
        raise InvalidInput(
            "a process for handlers imports this module to find its tasks, and importing it used the app. "
            'Put what the program does under: if __name__ == "__main__":'
        )
    if connection.store.url.startswith("memory:"):
        raise InvalidInput(
            "a handler with process=True cannot use a store in memory: it would be another one than the worker's. "
            "Use ctx.enqueue(…), or a store that processes share, such as sqlite:///jobs.db"
        )
