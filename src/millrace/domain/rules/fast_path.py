"""The fast path: the specs, queues and changes that a store may write directly, because no further rule applies.

The predicates here define the fast path for every store. An enqueue by the fast path cannot be refused and affects no
other job. `admission` and the ledger handle every case. The fast path gives the same results as they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import UNSET

from millrace.domain.change import Change, Verb
from millrace.domain.event import Event
from millrace.domain.job import Job, Spec, State
from millrace.domain.request import Enqueued
from millrace.domain.rules import transition
from millrace.domain.rules.step import Step
from millrace.domain.settings import QueueSettings, fair_period


def is_simple(spec: Spec) -> bool:
    """Return whether a spec has no unique key, no group and no parents, and is not a hook."""
    return spec.key is None and spec.group is None and not spec.after and not spec.hook


def accepts_all(settings: QueueSettings) -> bool:
    """Return whether a queue never refuses a job and has no lanes."""
    return settings.lanes is None and settings.max_depth is None and settings.dead_limit is None


def claims_by_order(settings: QueueSettings) -> bool:
    """Return whether claims of a queue follow priority and age only: it has no limits and no fair share."""
    return settings.max_running is None and settings.rate is None and fair_period(settings) == 0


def claims_by_order_and_count(settings: QueueSettings) -> bool:
    """Return whether claims of a queue follow priority and age only, within `max_running`."""
    return settings.rate is None and fair_period(settings) == 0


def ends_alone(settings: QueueSettings) -> bool:
    """Return whether completing a simple job of this queue changes nothing but that job and its counters.

    If so, the completion wakes no worker that waits for `max_running`, enqueues no `on_empty` job and deletes no
    record.
    """
    return settings.max_running is None and ends_alone_or_makes_room(settings)


def ends_alone_or_makes_room(settings: QueueSettings) -> bool:
    """As `ends_alone`, except that a worker that waits for room under `max_running` must be woken."""
    return settings.on_empty is None and settings.keep_completed != 0


def only_completes(change: Change) -> bool:
    """Return whether a change only completes the job: it enqueues no jobs, counts no failure, has no log, and keeps the
    result for the time that is stored with the job.
    """
    if change.verb is not Verb.COMPLETE or change.jobs or change.error is not None or change.log is not None:
        return False
    return not (change.failed or change.stalled or change.reason) and change.keep_result is UNSET


def enqueue_simple(step: Step, specs: Sequence[Spec]) -> list[Enqueued] | None:
    """Enqueue by the fast path and return the answers. Return None, and change nothing, if it does not apply.

    A call of several specs may also have specs with a group: they cannot be refused either, and affect only the other
    members of their group.
    """
    if not _applies(step, specs):
        return None
    tables, now = step.tables, step.now
    jobs: list[Job] = []
    events: list[Event] = []
    have_lines = False
    for spec, seq in zip(specs, tables.next_seqs(len(specs)), strict=True):
        job, event = transition.enqueue(spec, seq, 1, now)
        if spec.group is None:
            job.open = True
        else:
            have_lines = True
        jobs.append(job)
        events.append(event)
    if have_lines:
        step.add_all(jobs, events)
    else:
        tables.insert_open(jobs, events)
        step.added_simple({specs[0].queue: 1} if len(specs) == 1 else Counter([spec.queue for spec in specs]))
    return [Enqueued("queued", job.spec.id, job.seq, 1, State.WAITING) for job in jobs]


def _applies(step: Step, specs: Sequence[Spec]) -> bool:
    tables = step.tables
    if len(specs) == 1:  # the most frequent case
        [spec] = specs
        return is_simple(spec) and accepts_all(tables.queue(spec.queue).settings) and tables.all_unknown([spec.id])
    queues: set[str] = set()
    ids: set[str] = set()
    have_lines = False
    for spec in specs:
        if spec.key is not None or spec.after or spec.hook:
            return False
        if spec.group is not None:
            have_lines = True
        ids.add(spec.id)
        queues.add(spec.queue)
    if len(ids) < len(specs) or not all(accepts_all(tables.queue(name).settings) for name in queues):
        return False
    if have_lines:
        tables.prefetch_specs(specs)
    return tables.all_unknown(ids)
