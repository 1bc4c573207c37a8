"""Checks for code that runs in a child process for handlers (process=True).

A child imports the program's main file. Without `if __name__ == "__main__":` this import would enqueue the program's
jobs again and start a worker in the child. A memory store in a child is not the worker's memory store, so jobs enqueued
into it would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.app.connection import Connection

here = False  # whether this process is a child
importing = False  # whether it is still importing the tasks


def enter() -> None:
    """Record that this process is a child for handlers, and that it is importing the tasks."""
    global here, importing  # noqa: PLW0603  # state of the whole process
    here = importing = True


def tasks_imported() -> None:
    global importing  # noqa: PLW0603
    importing = False


def refuse_working() -> None:
    """Raise InvalidInput if this process is a child for handlers. Called when a worker starts."""
    if here:
        raise InvalidInput(
            "a worker cannot run inside a process for handlers. If the program starts one when it is imported, "
            'put that under: if __name__ == "__main__":'
        )


def refuse_connecting(connection: Connection) -> None:
    """Raise InvalidInput if this child is still importing its tasks, or if the app has a memory store.

    This is called in a child when the app connects to its store.
    """
    if importing:
        raise InvalidInput(
            "a process for handlers imports this module to find its tasks, and the import used the app. "
            'Put the code that runs the program under: if __name__ == "__main__":'
        )
    if connection.store.url.startswith("memory:"):
        raise InvalidInput(
            "a handler with process=True cannot use a memory store: it would not be the worker's. "
            "Use ctx.enqueue(…), or a store that processes share, such as sqlite:///jobs.db"
        )
