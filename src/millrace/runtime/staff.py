"""Which way each task of a worker goes, decided once, when the worker starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from millrace.runtime.batch import Batched, Gatherer
from millrace.runtime.batch_task import BatchTask
from millrace.runtime.host import Middleware, Runnable
from millrace.runtime.middleware import around
from millrace.runtime.slots import Slots
from millrace.runtime.ways import InThread, Way, on_loop

if TYPE_CHECKING:
    from millrace.runtime.process.children import Children
    from millrace.runtime.task import Task
    from millrace.runtime.worker import Worker


def ways_for(worker: Worker, slots: Slots, children: Children | None) -> dict[str, Way]:
    """The tasks that are not simply called: those in processes and those with middleware."""
    in_thread = InThread(slots.threads, slots.begin, slots.thread_left, slots.thread_came_back)
    ways: dict[str, Way] = {}
    for name, task in worker.tasks.items():
        layers = layers_of(worker, task)
        if name in slots.gatherers:
            ways[name] = around(slots.gatherers[name], layers)
        elif task.options.process:
            assert children is not None
            ways[name] = around(children.call, layers)
        elif layers:
            ways[name] = around(on_loop if task.is_async else in_thread, layers)
    return ways


def gatherers_for(worker: Worker, slots: Slots, children: Children | None) -> dict[str, Gatherer]:
    """The tasks that take many jobs at once."""
    batched = {name: task for name, task in worker.tasks.items() if isinstance(task, BatchTask)}
    return {name: Gatherer(cast("Batched", task), slots, children) for name, task in batched.items()}


def layers_of(worker: Worker, task: Runnable) -> tuple[Middleware, ...]:
    """From the outermost in: the app's, the worker's, the task's own."""
    return (*worker.app.layers, *worker.layers, *task.layers) if task.inherits else task.layers


def children_for(worker: Worker, slots: Slots) -> Children | None:
    tasks = [task for task in worker.tasks.values() if task.options.process]
    if not tasks:
        return None
    from millrace.runtime.process.address import address_of
    from millrace.runtime.process.children import Children

    return Children(
        [address_of(cast("Task[..., Any]", task)) for task in tasks],
        worker.processes,
        begin=slots.begin,
        max_jobs=worker.max_jobs_per_child,
        max_memory=worker.max_memory_per_child,
    )
