"""What an idle worker waits for: the next due job, or room under a limit.

A wake-up is sent to a place. There are three kinds of places:

- (queue, task): a job of that task was added to the queue.
- (queue, None): the queue has room under a limit, or was resumed.
- (None, task): the task has room under its limits, in any queue.

Each idle worker registers the places that it waits for, so that a wake-up reaches only workers that can use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millrace.domain.rules.limits import allowance, next_token
from millrace.domain.tables import Place, QueueRow, Tables


class Outlook(NamedTuple):
    """When a worker should claim again, and the places whose wake-ups it should wait for."""

    due: int | None  # the earliest instant at which a claim may find a job
    held_by: frozenset[Place] = frozenset()  # the limits that keep due jobs from being claimed now
    again: int | None = None  # when the next job behind a limit becomes due: compute the outlook again then

    @property
    def until(self) -> int | None:
        """The instant until which a worker sleeps if no wake-up arrives, or None if only a wake-up ends the sleep."""
        return min((at for at in (self.due, self.again) if at is not None), default=None)


class _Findings:
    """Collects the parts of an Outlook, queue by queue."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.due: list[int] = []
        self.again: list[int] = []
        self.held_by: set[Place] = set()

    def kept_back(self, due: int, place: Place) -> None:
        if due <= self.now:
            self.held_by.add(place)
        else:
            self.again.append(due)


def outlook(tables: Tables, queues: Sequence[str], tasks: frozenset[str] | None, now: int) -> Outlook:
    full: set[str] = set()
    look = _Findings(now)
    for task in tables.tasks():
        if (tasks is None or task.name in tasks) and allowance(task.limits, task.running, task.bucket, now) <= 0:
            full.add(task.name)
            if task.limits.max_running is None or task.running < task.limits.max_running:
                look.due.append(next_token(task.limits, task.bucket, now))
    for name in dict.fromkeys(queues):
        _look_at_queue(tables, tables.queue(name), tasks, frozenset(full), look)
    return Outlook(min(look.due, default=None), frozenset(look.held_by), min(look.again, default=None))


def _look_at_queue(
    tables: Tables, row: QueueRow, tasks: frozenset[str] | None, full: frozenset[str], look: _Findings
) -> None:
    limits, place = row.settings, (row.name, None)
    if limits.paused or (limits.max_running is not None and row.running >= limits.max_running):
        due = tables.next_due(row.name, tasks, frozenset())
        if due is not None:
            look.kept_back(due, place)
        return
    due = tables.next_due(row.name, tasks, full)
    if due is not None:
        token = next_token(limits, row.bucket, look.now)
        look.due.append(max(due, token))
        if token > look.now:
            look.kept_back(due, place)
    for task in full:
        due = tables.next_due(row.name, frozenset({task}), frozenset())
        if due is not None:
            look.kept_back(due, (None, task))
