"""The usual enqueue, cut short: specs without key, group or parents, under ids that nobody has seen.

Nothing can refuse such a batch and nothing follows from it, so it needs no plan. Whatever is not as plain as that goes
the long way (`admission`), which comes to the same for these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from millrace.domain import transition
from millrace.domain.event import Event
from millrace.domain.job import Job, Spec, State
from millrace.domain.request import Enqueued
from millrace.domain.settings import QueueSettings
from millrace.domain.step import Step


def enqueue_plain(step: Step, specs: Sequence[Spec]) -> list[Enqueued] | None:
    """The answers, or None when one of the specs is not plain; then nothing has changed."""
    if not _all_plain(step, specs):
        return None
    tables, now = step.tables, step.now
    jobs: list[Job] = []
    events: list[Event] = []
    for spec, seq in zip(specs, tables.next_seqs(len(specs)), strict=True):
        job, event = transition.enqueue(spec, seq, 1, now)
        job.open = True
        jobs.append(job)
        events.append(event)
    tables.insert_open(jobs, events)
    step.added_plain(Counter([spec.queue for spec in specs]))
    return [Enqueued("queued", job.spec.id, job.seq, 1, State.WAITING) for job in jobs]


def _all_plain(step: Step, specs: Sequence[Spec]) -> bool:
    tables = step.tables
    queues: set[str] = set()
    ids: set[str] = set()
    for spec in specs:
        if spec.key is not None or spec.group is not None or spec.after or spec.hook:
            return False
        ids.add(spec.id)
        queues.add(spec.queue)
    if len(ids) < len(specs) or not all(_takes_all(tables.queue(name).settings) for name in queues):
        return False
    return tables.all_unknown(ids)


def _takes_all(settings: QueueSettings) -> bool:
    rejects = settings.dead_overflow == "reject" and settings.dead_cap is not None
    return settings.lanes is None and settings.max_depth is None and not rejects
