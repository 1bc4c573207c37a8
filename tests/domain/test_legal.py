"""The table of legal steps says what `transition` does."""

from __future__ import annotations

import pytest

from millrace.domain.change import Change
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, State
from millrace.domain.rules import transition
from millrace.domain.rules.legal import GRANTS, LAST, LEGAL, MAY_FAIL, UNDER_A_LEASE
from millrace.testing.builders import a_spec


def test_every_step_after_the_first_has_its_place_in_the_table() -> None:
    assert set(LEGAL) == set(Kind) - {Kind.ENQUEUED}
    assert set(MAY_FAIL) | set(LAST) | set(GRANTS) | set(UNDER_A_LEASE) <= set(LEGAL)


@pytest.mark.parametrize("kind", sorted(set(LEGAL), key=str))
def test_a_transition_leads_where_the_table_says(kind: Kind) -> None:
    froms, to = LEGAL[kind]
    for state in froms:
        job = a_job(state)
        event = _carried_out(job, kind)
        assert (event.kind, event.state) == (kind, state if to is None else to)


def a_job(state: State) -> Job:
    job, _ = transition.enqueue(a_spec(), 1, 1, 0)
    job.state = state
    if state is State.RUNNING:
        job.worker, job.lease_id, job.lease_until = "w", "a", 1
    return job


def _carried_out(job: Job, kind: Kind) -> Event:
    match kind:
        case Kind.UNBLOCKED:
            return transition.unblock(job, 1)
        case Kind.CLAIMED:
            return transition.claim(job, "w", "a", 1, 1)
        case Kind.RECLAIMED:
            return transition.reclaim(job, "w", "b", 1, 1)
        case Kind.REPLAYED:
            return transition.replay(job, 1)
        case Kind.ARCHIVED | Kind.UNARCHIVED:
            return transition.archive(job, kind is Kind.ARCHIVED, 1)
        case Kind.PRUNED | Kind.EVICTED:
            return transition.remove(job, kind, 1)
        case Kind.BURIED if job.state is State.WAITING:
            return transition.bury(job, "ttl_expired", 1)
        case Kind.CANCELLED if job.state is State.WAITING:
            return transition.cancel(job, 1)
        case _:
            return transition.settle(job, _CHANGES[kind], 1)


_CHANGES = {
    Kind.COMPLETED: Change.completed(),
    Kind.RETRIED: Change.retry(None, delay=1),
    Kind.SNOOZED: Change.snooze(1),
    Kind.RELEASED: Change.release(),
    Kind.BURIED: Change.bury(None, "explicit_fail"),
    Kind.CANCELLED: Change.cancel(),
}
