"""`self.request`: what a task can read about its run, and how the run is found from the task object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.app.handler.context import Context
    from millrace.contrib.celery.task import CeleryTask


@dataclass
class TaskRequest:
    """A run of a task. Outside of a run, `id` is None and `called_directly` is True."""

    id: str | None = None
    task: str | None = None
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    retries: int = 0
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    hostname: str | None = None
    delivery_info: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    eta: str | None = None
    timelimit: tuple[float | None, None] = (None, None)
    ignore_result: bool = False
    is_eager: bool = False
    called_directly: bool = True

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the request, or the default."""
        return getattr(self, name, default)


@dataclass
class RunningTask:
    """The innermost call of a task on this thread. `context` is None if no worker runs it."""

    task: CeleryTask
    request: TaskRequest
    context: Context | None = None
    entered: bool = False  # whether the body of the task runs: a further call of the task is a call of its function

    def enters(self) -> bool:
        """Return whether the body of the task is called now, for the first time."""
        entered, self.entered = self.entered, True
        return not entered


_running: ContextVar[RunningTask | None] = ContextVar("millrace.contrib.celery.running", default=None)


def running() -> RunningTask | None:
    """Return the innermost call of a task on this thread, or None outside of tasks."""
    return _running.get()


@contextmanager
def run_as(call: RunningTask) -> Iterator[None]:
    """Make `call` the innermost call inside the `with` block."""
    token = _running.set(call)
    try:
        yield
    finally:
        _running.reset(token)


def refuse_in_task() -> None:
    """Raise RuntimeError inside of a task that a worker runs: there, waiting for another job can block all slots."""
    call = running()
    if call is not None and call.context is not None:
        raise RuntimeError(
            "Do not call result.get() within a task: the other task may wait for the slot of this one. Use a chain or "
            "a chord, or pass disable_sync_subtasks=False"
        )
